// instance.hpp: a session as an instance of a model, and the outputs of its runs.
#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "model.hpp"

namespace packager_triton {

// An output of a run: in a buffer of the server, or in memory of its own until its shape is known.
class Output {
 public:
  explicit Output(const packager_tensor_info_t &info, std::vector<std::int64_t> shape)
      : info_(&info), shape_(std::move(shape)) {
    view_.ndim = info.ndim;
    view_.dtype = info.dtype;
    view_.device = {kDLCPU, 0};
  }

  std::string name() const { return info_->name; }
  bool placed() const { return placed_; }

  // Computes into a buffer of the response, in the preferred memory if the server has it.
  void place(TRITONBACKEND_Response *response, TRITONSERVER_MemoryType memory, std::int64_t device) {
    const DLTensor sized = view();
    view_.data = buffer(response, sized.shape, count_bytes(sized), &memory, &device);
    if (memory == TRITONSERVER_MEMORY_GPU) view_.device = {kDLCUDA, static_cast<std::int32_t>(device)};
    placed_ = true;
  }

  void allocate() {
    bytes_.resize(count_bytes(view()) + 1);  // + 1: an extent may be zero
    view_.data = bytes_.data();
  }

  // Copies `rows` rows from `row` on to a response; with 0 rows all.
  void copy(TRITONBACKEND_Response *response, std::int64_t row, std::int64_t rows) {
    DLTensor part = view();
    std::vector<std::int64_t> shape = shape_;  // the true one: the run has written it
    part.shape = shape.data();
    std::size_t offset = 0;
    if (rows > 0) {
      shape[0] = row;
      offset = count_bytes(part);
      shape[0] = rows;
    }
    TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
    std::int64_t device = 0;
    const std::size_t size = count_bytes(part);
    void *const target = buffer(response, shape.data(), size, &memory, &device);
    if (memory == TRITONSERVER_MEMORY_GPU) {
      throw Failure(TRITONSERVER_ERROR_UNSUPPORTED, name() + ": the server has device memory alone for it");
    }
    if (size > 0) std::memcpy(target, bytes_.data() + offset, size);
  }

  // Valid while this output is not moved.
  DLTensor view() {
    view_.shape = shape_.data();
    return view_;
  }

 private:
  void *buffer(TRITONBACKEND_Response *response, const std::int64_t *shape, std::size_t size,
               TRITONSERVER_MemoryType *memory, std::int64_t *device) const {
    TRITONBACKEND_Output *output = nullptr;
    void *memory_of_server = nullptr;
    check(TRITONBACKEND_ResponseOutput(response, &output, info_->name, type_of(info_->dtype), shape,
                                       static_cast<std::uint32_t>(info_->ndim)));
    check(TRITONBACKEND_OutputBuffer(output, &memory_of_server, size, memory, device));
    return memory_of_server;
  }

  const packager_tensor_info_t *info_;
  std::vector<std::int64_t> shape_;
  std::vector<char> bytes_;
  DLTensor view_{};
  bool placed_ = false;
};

// A session, which the server calls from one thread at a time.
class Instance {
 public:
  explicit Instance(TRITONBACKEND_ModelInstance *handle) : handle_(handle) {
    TRITONBACKEND_Model *model = nullptr;
    void *state = nullptr;
    TRITONSERVER_InstanceGroupKind kind;
    std::int32_t device = 0;
    check(TRITONBACKEND_ModelInstanceModel(handle, &model));
    check(TRITONBACKEND_ModelState(model, &state));
    model_ = static_cast<const Model *>(state);
    check(TRITONBACKEND_ModelInstanceKind(handle, &kind));
    if (kind == TRITONSERVER_INSTANCEGROUPKIND_GPU) check(TRITONBACKEND_ModelInstanceDeviceId(handle, &device));
    device_ = device;

    packager_session_options_t options{};
    options.struct_size = sizeof options;
    options.device_index = device;
    const std::int32_t status = table()->session_create(&options, &session_);
    if (status != PACKAGER_OK) throw failure(status, table()->thread_error());
    if (table()->session_stream(session_) != nullptr) preferred_ = TRITONSERVER_MEMORY_GPU;
  }
  Instance(const Instance &) = delete;
  Instance &operator=(const Instance &) = delete;
  ~Instance() { table()->session_destroy(session_); }  // cannot fail: nothing runs

  TRITONBACKEND_ModelInstance *handle() const { return handle_; }
  const Model &model() const { return *model_; }
  TRITONSERVER_MemoryType preferred_memory() const { return preferred_; }
  std::int64_t device() const { return device_; }

  std::vector<std::int64_t> output_shape(const std::vector<DLTensor> &inputs, std::int32_t output) {
    std::vector<std::int64_t> shape(static_cast<std::size_t>(table()->outputs[output].ndim) + 1);
    const std::vector<const DLTensor *> given = pointers(inputs);
    check_status(table()->session_output_shape(session_, given.data(), static_cast<std::int32_t>(given.size()), output,
                                               shape.data()));
    shape.pop_back();  // a scalar has no extents, and data() of an empty vector may be NULL
    return shape;
  }

  void run(const std::vector<DLTensor> &inputs, std::vector<Output> &outputs) {
    const std::vector<const DLTensor *> given = pointers(inputs);
    std::vector<DLTensor> views;
    for (Output &output : outputs) views.push_back(output.view());
    std::vector<DLTensor *> results;
    for (DLTensor &view : views) results.push_back(&view);
    check_status(table()->session_run(session_, given.data(), static_cast<std::int32_t>(given.size()), results.data(),
                                      static_cast<std::int32_t>(results.size()), nullptr));
  }

 private:
  const packager_bundle_v1_t *table() const { return model_->bundle().operator->(); }

  static std::vector<const DLTensor *> pointers(const std::vector<DLTensor> &tensors) {
    std::vector<const DLTensor *> found;
    for (const DLTensor &tensor : tensors) found.push_back(&tensor);
    return found;
  }

  void check_status(std::int32_t status) const {
    if (status != PACKAGER_OK) throw failure(status, table()->session_error(session_));
  }

  // What the caller gave is an invalid argument, all else is the server's trouble.
  Failure failure(std::int32_t status, const char *message) const {
    const bool argument = status <= PACKAGER_ERROR_ARGUMENT && status >= PACKAGER_ERROR_ALIGNMENT;
    return {argument ? TRITONSERVER_ERROR_INVALID_ARG : TRITONSERVER_ERROR_INTERNAL,
            std::string(table()->status_name(status)) + ": " + message};
  }

  TRITONBACKEND_ModelInstance *handle_;
  const Model *model_ = nullptr;
  packager_session_t *session_ = nullptr;
  TRITONSERVER_MemoryType preferred_ = TRITONSERVER_MEMORY_CPU;
  std::int64_t device_ = 0;
};

}  // namespace packager_triton
