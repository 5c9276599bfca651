// device.hpp: tensors of the server in the memory of a GPU, by the driver that is on the machine.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

// The calls of libcuda.so.1 that this needs, with the names of its ABI; 0 is success.
class Driver {
 public:
  static const Driver &get() {
    static const Driver driver;
    return driver;
  }

  std::uint64_t allocate(std::size_t size) const {
    std::uint64_t address = 0;
    current();
    require(mem_alloc_(&address, size > 0 ? size : 1), "cuMemAlloc");
    return address;
  }
  void release(std::uint64_t address) const {
    current();
    require(mem_free_(address), "cuMemFree");
  }
  void upload(std::uint64_t target, const std::vector<char> &source) const {
    current();
    if (!source.empty()) require(to_device_(target, source.data(), source.size()), "cuMemcpyHtoD");
  }
  std::vector<char> download(std::uint64_t source, std::size_t size) const {
    std::vector<char> found(size);
    current();
    if (size > 0) require(to_host_(found.data(), source, size), "cuMemcpyDtoH");
    return found;
  }

 private:
  Driver() : library_(dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL)) {
    if (library_ == nullptr) fail("libcuda.so.1 cannot be opened");
    load(&init_, "cuInit");
    load(&retain_, "cuDevicePrimaryCtxRetain");
    load(&set_current_, "cuCtxSetCurrent");
    load(&mem_alloc_, "cuMemAlloc_v2");
    load(&mem_free_, "cuMemFree_v2");
    load(&to_device_, "cuMemcpyHtoD_v2");
    load(&to_host_, "cuMemcpyDtoH_v2");
    require(init_(0), "cuInit");
    require(retain_(&context_, 0), "cuDevicePrimaryCtxRetain");
  }

  template <typename Function>
  void load(Function **function, const char *name) {
    *reinterpret_cast<void **>(function) = dlsym(library_, name);
    if (*function == nullptr) fail(name);
  }
  void current() const { require(set_current_(context_), "cuCtxSetCurrent"); }
  static void require(int code, const char *what) {
    if (code != 0) fail((std::string(what) + " failed with " + std::to_string(code)).c_str());
  }
  [[noreturn]] static void fail(const char *what) {
    std::cerr << what << "\n";
    std::exit(1);
  }

  void *library_;
  void *context_ = nullptr;
  int (*init_)(unsigned) = nullptr;
  int (*retain_)(void **, int) = nullptr;
  int (*set_current_)(void *) = nullptr;
  int (*mem_alloc_)(std::uint64_t *, std::size_t) = nullptr;
  int (*mem_free_)(std::uint64_t) = nullptr;
  int (*to_device_)(std::uint64_t, const void *, std::size_t) = nullptr;
  int (*to_host_)(void *, std::uint64_t, std::size_t) = nullptr;
};

// So many bytes of device memory.
class DeviceBuffer {
 public:
  explicit DeviceBuffer(std::size_t size) : address_(Driver::get().allocate(size)), size_(size) {}
  explicit DeviceBuffer(const std::vector<char> &bytes) : DeviceBuffer(bytes.size()) {
    Driver::get().upload(address_, bytes);
  }
  DeviceBuffer(const DeviceBuffer &) = delete;
  DeviceBuffer &operator=(const DeviceBuffer &) = delete;
  ~DeviceBuffer() { Driver::get().release(address_); }

  void *data() const { return reinterpret_cast<void *>(address_); }
  std::vector<char> bytes() const { return Driver::get().download(address_, size_); }

 private:
  std::uint64_t address_;
  std::size_t size_;
};

// Whether the server keeps tensors in device memory: TRITON_DEVICE_MEMORY says it.
inline bool device_memory() { return std::getenv("TRITON_DEVICE_MEMORY") != nullptr; }
