// addon.cpp: runs packager bundles in Node.js, by Node-API and bundle.hpp.
//
//     export CPLUS_INCLUDE_PATH=/usr/include/node:runtime_stub/include
//     c++ -std=c++17 -O2 -shared -fPIC samples/hosts/node/addon.cpp -o samples/hosts/node/bundle.node -ldl
//
//     const { open } = require("./bundle.node");
//     const bundle = open("./model.so");  // { name, inputs, outputs, run }
//     const [logits] = await bundle.run([{ shape: [1, 1, 8, 8], data: pixels }]);
//
// Inputs and outputs are { name, dtype, shape, data }; `data` is a typed array or Buffer of an input, whose bytes are
// copied, and an ArrayBuffer of an output. A run does not block the event loop. There is one session: what runs while
// another run is going on is rejected with PACKAGER_ERROR_BUSY. Open the bundle again for more.
#include <node_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "../cpp/bundle.hpp"

namespace {

using packager::Tensor;

struct Model {
  explicit Model(const std::string &path) : bundle(path), session(bundle) {}
  packager::Bundle bundle;
  packager::Session session;
};

// A run on a thread of libuv's pool, which keeps the model alive.
struct Run {
  std::shared_ptr<Model> model;
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;
  std::string error;
  napi_deferred deferred = nullptr;
  napi_async_work work = nullptr;
};

// Throws what Node-API says of a call that failed.
void check(napi_env env, napi_status status) {
  if (status == napi_ok) return;
  const napi_extended_error_info *info = nullptr;
  napi_get_last_error_info(env, &info);
  throw std::runtime_error(info != nullptr && info->error_message != nullptr ? info->error_message : "Node-API failed");
}

// Calls `body`; a C++ exception becomes a JavaScript one.
template <typename Body>
napi_value guarded(napi_env env, Body body) {
  try {
    return body();
  } catch (const std::exception &error) {
    bool pending = false;
    napi_is_exception_pending(env, &pending);
    if (!pending) napi_throw_error(env, nullptr, error.what());
    return nullptr;
  }
}

napi_value string_of(napi_env env, const std::string &text) {
  napi_value value;
  check(env, napi_create_string_utf8(env, text.data(), text.size(), &value));
  return value;
}

void set(napi_env env, napi_value object, const char *name, napi_value value) {
  check(env, napi_set_named_property(env, object, name, value));
}

std::string name_of(DLDataType dtype) {
  static const char *const names[] = {"int", "uint", "float", "", "bfloat", "", "bool"};
  return (dtype.code < std::size(names) ? names[dtype.code] : "type") + std::to_string(dtype.bits);
}

// { name, dtype, shape } of an input or output; symbolic extents are strings unless `shape` has numbers for them.
napi_value describe(napi_env env, const packager_tensor_info_t &info, const std::int64_t *shape) {
  napi_value object, extents;
  check(env, napi_create_object(env, &object));
  check(env, napi_create_array_with_length(env, static_cast<std::size_t>(info.ndim), &extents));
  for (std::int32_t axis = 0; axis < info.ndim; axis++) {
    napi_value extent;
    if (shape[axis] == PACKAGER_DIM_SYMBOLIC) {
      extent = string_of(env, info.dims[axis]);
    } else {
      check(env, napi_create_int64(env, shape[axis], &extent));
    }
    check(env, napi_set_element(env, extents, static_cast<std::uint32_t>(axis), extent));
  }
  set(env, object, "name", string_of(env, info.name));
  set(env, object, "dtype", string_of(env, name_of(info.dtype)));
  set(env, object, "shape", extents);
  return object;
}

napi_value describe_all(napi_env env, const packager_tensor_info_t *infos, std::int32_t count) {
  napi_value array;
  check(env, napi_create_array_with_length(env, static_cast<std::size_t>(count), &array));
  for (std::int32_t i = 0; i < count; i++) {
    check(env, napi_set_element(env, array, static_cast<std::uint32_t>(i), describe(env, infos[i], infos[i].shape)));
  }
  return array;
}

// The bytes of a typed array, a Buffer among them.
std::pair<const char *, std::size_t> bytes_of(napi_env env, napi_value value) {
  bool typed = false;
  check(env, napi_is_typedarray(env, value, &typed));
  if (!typed) throw std::runtime_error("the data of an input must be a typed array");
  napi_value buffer;
  void *memory = nullptr;
  std::size_t size = 0, offset = 0, length = 0;
  check(env, napi_get_typedarray_info(env, value, nullptr, &length, nullptr, &buffer, &offset));
  check(env, napi_get_arraybuffer_info(env, buffer, &memory, &size));
  napi_value measured;
  check(env, napi_get_named_property(env, value, "byteLength", &measured));
  std::int64_t bytes = 0;
  check(env, napi_get_value_int64(env, measured, &bytes));
  return {static_cast<const char *>(memory) + offset, static_cast<std::size_t>(bytes)};
}

Tensor tensor_of(napi_env env, napi_value object, const packager_tensor_info_t &info) {
  napi_value shape, data;
  check(env, napi_get_named_property(env, object, "shape", &shape));
  check(env, napi_get_named_property(env, object, "data", &data));
  Tensor tensor;
  tensor.dtype = info.dtype;
  std::uint32_t ndim = 0;
  check(env, napi_get_array_length(env, shape, &ndim));
  for (std::uint32_t axis = 0; axis < ndim; axis++) {
    napi_value element;
    std::int64_t extent = 0;
    check(env, napi_get_element(env, shape, axis, &element));
    check(env, napi_get_value_int64(env, element, &extent));
    tensor.shape.push_back(extent);
  }
  const auto [start, size] = bytes_of(env, data);
  if (size != tensor.size()) {
    throw std::runtime_error(std::string(info.name) + ": " + std::to_string(size) + " bytes of data, not " +
                             std::to_string(tensor.size()) + " as the shape says");
  }
  tensor.bytes.assign(start, start + size);
  return tensor;
}

void execute(napi_env, void *data) {
  auto *const run = static_cast<Run *>(data);
  try {
    run->outputs = run->model->session.run(run->inputs);
  } catch (const std::exception &error) {
    run->error = error.what();
  }
}

napi_value results_of(napi_env env, const Run &run) {
  napi_value results;
  check(env, napi_create_array_with_length(env, run.outputs.size(), &results));
  for (std::size_t i = 0; i < run.outputs.size(); i++) {
    const Tensor &output = run.outputs[i];
    napi_value result = describe(env, run.model->bundle->outputs[i], output.shape.data()), buffer;
    void *memory = nullptr;
    check(env, napi_create_arraybuffer(env, output.bytes.size(), &memory, &buffer));
    if (!output.bytes.empty()) std::memcpy(memory, output.bytes.data(), output.bytes.size());
    set(env, result, "data", buffer);
    check(env, napi_set_element(env, results, static_cast<std::uint32_t>(i), result));
  }
  return results;
}

void complete(napi_env env, napi_status, void *data) {
  const std::unique_ptr<Run> run(static_cast<Run *>(data));
  try {
    if (!run->error.empty()) throw std::runtime_error(run->error);
    napi_resolve_deferred(env, run->deferred, results_of(env, *run));
  } catch (const std::exception &error) {
    napi_value message, failure;
    napi_create_string_utf8(env, error.what(), NAPI_AUTO_LENGTH, &message);
    napi_create_error(env, nullptr, message, &failure);
    napi_reject_deferred(env, run->deferred, failure);
  }
  napi_delete_async_work(env, run->work);
}

// bundle.run(inputs): a promise of the outputs.
napi_value run(napi_env env, napi_callback_info info) {
  return guarded(env, [&] {
    std::size_t count = 1;
    napi_value inputs, promise, name;
    void *data = nullptr;
    check(env, napi_get_cb_info(env, info, &count, &inputs, nullptr, &data));
    auto run = std::make_unique<Run>();
    run->model = *static_cast<std::shared_ptr<Model> *>(data);
    std::uint32_t given = 0;
    check(env, napi_get_array_length(env, inputs, &given));
    const packager::Bundle &bundle = run->model->bundle;
    if (given != static_cast<std::uint32_t>(bundle->num_inputs)) {
      throw std::runtime_error(std::to_string(given) + " inputs, not " + std::to_string(bundle->num_inputs));
    }
    for (std::uint32_t i = 0; i < given; i++) {
      napi_value input;
      check(env, napi_get_element(env, inputs, i, &input));
      run->inputs.push_back(tensor_of(env, input, bundle->inputs[i]));
    }
    name = string_of(env, "packager.run");
    check(env, napi_create_promise(env, &run->deferred, &promise));
    check(env, napi_create_async_work(env, nullptr, name, execute, complete, run.get(), &run->work));
    check(env, napi_queue_async_work(env, run->work));
    run.release();  // complete() deletes it
    return promise;
  });
}

// open(path): a bundle with one session.
napi_value open(napi_env env, napi_callback_info info) {
  return guarded(env, [&] {
    std::size_t count = 1, size = 0;
    napi_value argument, object, function;
    check(env, napi_get_cb_info(env, info, &count, &argument, nullptr, nullptr));
    check(env, napi_get_value_string_utf8(env, argument, nullptr, 0, &size));
    std::string path(size, '\0');
    check(env, napi_get_value_string_utf8(env, argument, path.data(), size + 1, &size));

    auto model = std::make_unique<std::shared_ptr<Model>>(std::make_shared<Model>(path));
    const packager::Bundle &bundle = (*model)->bundle;
    check(env, napi_create_object(env, &object));
    set(env, object, "name", string_of(env, bundle->name));
    set(env, object, "inputs", describe_all(env, bundle->inputs, bundle->num_inputs));
    set(env, object, "outputs", describe_all(env, bundle->outputs, bundle->num_outputs));
    check(env, napi_create_function(env, "run", NAPI_AUTO_LENGTH, run, model.get(), &function));
    set(env, object, "run", function);
    const auto release = [](napi_env, void *data, void *) { delete static_cast<std::shared_ptr<Model> *>(data); };
    check(env, napi_add_finalizer(env, function, model.get(), release, nullptr, nullptr));
    model.release();  // lives as long as its function
    return object;
  });
}

napi_value initialize(napi_env env, napi_value exports) {
  return guarded(env, [&] {
    napi_value function;
    check(env, napi_create_function(env, "open", NAPI_AUTO_LENGTH, open, nullptr, &function));
    set(env, exports, "open", function);
    return exports;
  });
}

}  // namespace

NAPI_MODULE_INIT() { return initialize(env, exports); }
