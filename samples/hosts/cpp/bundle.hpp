// bundle.hpp: a RAII wrapper of packager.h for C++17, to copy and to change.
//
//     packager::Bundle bundle("./model.so");
//     packager::Session session(bundle);
//     std::vector<packager::Tensor> outputs = session.run(inputs);
//
// Errors of the bundle are std::runtime_error. Sessions share a bundle's code and constants; each runs in one thread at
// a time.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <vector>

#include "packager.h"

namespace packager {

// A tensor that owns its bytes and its shape.
struct Tensor {
  DLDataType dtype{};
  std::vector<std::int64_t> shape;
  std::vector<char> bytes;

  std::size_t size() const {
    const auto count = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    return static_cast<std::size_t>(count) * ((dtype.bits + 7U) / 8);  // narrow types have a byte for each element
  }

  // Valid while this tensor is neither moved nor resized.
  DLTensor view() {
    DLTensor view{};
    view.data = bytes.data();
    view.device.device_type = kDLCPU;
    view.ndim = static_cast<std::int32_t>(shape.size());
    view.dtype = dtype;
    view.shape = shape.data();
    return view;
  }
};

// A loaded bundle: the table of packager.h, valid as long as this object lives.
class Bundle {
 public:
  // Throws std::runtime_error when the file is not a bundle of this version.
  explicit Bundle(const std::string &path) : library_(dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (!library_) throw std::runtime_error(dlerror());
    auto *const entry = reinterpret_cast<packager_bundle_v1_fn *>(dlsym(library_.get(), PACKAGER_ENTRY_SYMBOL));
    if (entry == nullptr) throw std::runtime_error(dlerror());
    table_ = entry();
    if (table_->abi_version != PACKAGER_ABI_VERSION) {
      throw std::runtime_error(path + ": made for another version of packager.h");
    }
  }

  const packager_bundle_v1_t *operator->() const { return table_; }

 private:
  struct Close {
    void operator()(void *library) const { dlclose(library); }
  };
  std::unique_ptr<void, Close> library_;
  const packager_bundle_v1_t *table_ = nullptr;
};

// A session of a bundle, which has to outlive it. Errors of the bundle become std::runtime_error.
class Session {
 public:
  explicit Session(const Bundle &bundle) : bundle_(bundle) {
    const std::int32_t status = bundle_->session_create(nullptr, &session_);
    check("session_create", status, bundle_->thread_error());
  }
  Session(const Session &) = delete;
  Session &operator=(const Session &) = delete;
  ~Session() {
    // Cannot fail: nothing else knows this session, so it is not running.
    bundle_->session_destroy(session_);
  }

  // Runs once; returns the outputs in the bundle's order.
  std::vector<Tensor> run(std::vector<Tensor> &inputs) {
    std::vector<DLTensor> views = view_all(inputs);
    const auto arguments = point_to<const DLTensor>(views);
    const auto num_inputs = static_cast<std::int32_t>(arguments.size());

    std::vector<Tensor> outputs(static_cast<std::size_t>(bundle_->num_outputs));
    for (std::size_t i = 0; i < outputs.size(); i++) {
      outputs[i].dtype = bundle_->outputs[i].dtype;
      outputs[i].shape.resize(static_cast<std::size_t>(bundle_->outputs[i].ndim));
      check("session_output_shape",
            bundle_->session_output_shape(session_, arguments.data(), num_inputs, static_cast<std::int32_t>(i),
                                          outputs[i].shape.data()));
      outputs[i].bytes.resize(outputs[i].size());
    }
    std::vector<DLTensor> output_views = view_all(outputs);
    const auto results = point_to<DLTensor>(output_views);
    check("session_run", bundle_->session_run(session_, arguments.data(), num_inputs, results.data(),
                                              static_cast<std::int32_t>(results.size()), nullptr));
    // An extent that only the run knows may be smaller than its room.
    for (Tensor &output : outputs) output.bytes.resize(output.size());
    return outputs;
  }

 private:
  static std::vector<DLTensor> view_all(std::vector<Tensor> &tensors) {
    std::vector<DLTensor> views;
    for (Tensor &tensor : tensors) views.push_back(tensor.view());
    return views;
  }

  template <typename T>
  static std::vector<T *> point_to(std::vector<DLTensor> &views) {
    std::vector<T *> pointers;
    for (DLTensor &view : views) pointers.push_back(&view);
    return pointers;
  }

  void check(const std::string &call, std::int32_t status) const {
    if (status != PACKAGER_OK) check(call, status, bundle_->session_error(session_));
  }

  void check(const std::string &call, std::int32_t status, const char *message) const {
    if (status != PACKAGER_OK) throw std::runtime_error(call + ": " + bundle_->status_name(status) + ": " + message);
  }

  const Bundle &bundle_;
  packager_session_t *session_ = nullptr;
};

}  // namespace packager
