// host.cpp: runs a packager bundle from C++17 with packager.h alone; Bundle and Session are a RAII wrapper to copy.
//
//     c++ -std=c++17 -I runtime_stub/include samples/hosts/cpp/host.cpp -o host -ldl
//     ./host ./model.so input.f32 output.f32
//
// The input file holds the model's one float32 input, little-endian, row-major. Where the first extent of the input is
// symbolic it follows from the size of the file. All outputs are written one after another.
#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "packager.h"

namespace {

// A tensor that owns its bytes and its shape.
struct Tensor {
  DLDataType dtype{};
  std::vector<std::int64_t> shape;
  std::vector<char> bytes;

  std::size_t size() const {
    const auto count = std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    return static_cast<std::size_t>(count) * dtype.bits / 8;
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

std::string describe(const packager_tensor_info_t &info) {
  static const char *const names[] = {"int", "uint", "float", "", "bfloat", "", "bool"};
  std::string text = std::string(info.name) + ": ";
  text += (info.dtype.code < std::size(names) ? names[info.dtype.code] : "") + std::to_string(info.dtype.bits) + " [";
  for (std::int32_t axis = 0; axis < info.ndim; axis++) {
    if (axis > 0) text += ", ";
    text += info.shape[axis] == PACKAGER_DIM_SYMBOLIC ? info.dims[axis] : std::to_string(info.shape[axis]);
  }
  return text + "]";
}

// Reads the model's one input and derives a symbolic first extent from the size of the file.
Tensor read_input(const Bundle &bundle, const std::string &path) {
  const packager_tensor_info_t &info = bundle->inputs[0];
  if (bundle->num_inputs != 1 || info.dtype.code != kDLFloat || info.dtype.bits != 32) {
    throw std::runtime_error("needs a model of one float32 input");
  }
  std::ifstream file(path, std::ios::binary);
  Tensor input{info.dtype, {info.shape, info.shape + info.ndim}, {std::istreambuf_iterator<char>(file), {}}};
  if (!file || input.bytes.empty()) throw std::runtime_error(path + ": is empty or cannot be read");

  if (!input.shape.empty() && input.shape[0] == PACKAGER_DIM_SYMBOLIC) {
    input.shape[0] = 1;
    const std::size_t row = input.size();
    input.shape[0] = row == 0 ? 0 : static_cast<std::int64_t>(input.bytes.size() / row);
  }
  for (const std::int64_t extent : input.shape) {
    if (extent == PACKAGER_DIM_SYMBOLIC) throw std::runtime_error("only the first dim may vary");
  }
  if (input.size() != input.bytes.size()) throw std::runtime_error(path + ": its size is not that of the input");
  return input;
}

void write_outputs(const std::vector<Tensor> &outputs, const std::string &path) {
  std::ofstream file(path, std::ios::binary);
  for (const Tensor &output : outputs)
    file.write(output.bytes.data(), static_cast<std::streamsize>(output.bytes.size()));
  file.close();
  if (!file) throw std::runtime_error(path + ": cannot be written");
}

}  // namespace

int main(int argc, char **argv) {
  if (argc != 4) {
    std::cerr << "usage: host BUNDLE INPUT OUTPUT\n";
    return 1;
  }
  try {
    const Bundle bundle(argv[1]);
    std::cout << "model " << bundle->name << "\n";
    for (std::int32_t i = 0; i < bundle->num_inputs; i++) std::cout << "input " << describe(bundle->inputs[i]) << "\n";
    for (std::int32_t i = 0; i < bundle->num_outputs; i++)
      std::cout << "output " << describe(bundle->outputs[i]) << "\n";

    Session session(bundle);
    std::vector<Tensor> inputs;
    inputs.push_back(read_input(bundle, argv[2]));
    write_outputs(session.run(inputs), argv[3]);
  } catch (const std::exception &error) {
    std::cerr << "error: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
