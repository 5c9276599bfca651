// request.hpp: a request of the server: its inputs as tensors, and its response.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "model.hpp"

namespace packager_triton {

class Request {
 public:
  // Reads the inputs; what is wrong with them is the answer, and no other request's trouble.
  Request(TRITONBACKEND_Request *handle, const Model &model) : handle_(handle), start_(now()) {
    try {
      check(TRITONBACKEND_ResponseNew(&response_, handle));
      read_wanted();
      const packager::Bundle &bundle = model.bundle();
      for (std::int32_t i = 0; i < bundle->num_inputs; i++) read(bundle->inputs[i]);
    } catch (const Failure &failure) {
      fail(failure);
    }
  }

  const std::vector<DLTensor> &views() const { return views_; }
  TRITONBACKEND_Response *response() const { return response_; }
  bool failed() const { return failure_ != nullptr; }
  void fail(const Failure &failure) { failure_ = std::make_unique<Failure>(failure); }
  bool wants(const std::string &output) const { return wanted_.empty() || contains(wanted_, output); }

  // Answers the request and gives it back; the run took from `start` to `end`.
  void send(TRITONBACKEND_ModelInstance *instance, std::uint64_t start, std::uint64_t end) {
    TRITONSERVER_Error *error = nullptr;
    if (failure_ != nullptr) error = TRITONSERVER_ErrorNew(failure_->code(), failure_->what());
    if (response_ != nullptr) drop(TRITONBACKEND_ResponseSend(response_, TRITONSERVER_RESPONSE_COMPLETE_FINAL, error));
    drop(TRITONBACKEND_ModelInstanceReportStatistics(instance, handle_, error == nullptr, start_, start, end, now()));
    if (error != nullptr) TRITONSERVER_ErrorDelete(error);
    drop(TRITONBACKEND_RequestRelease(handle_, TRITONSERVER_REQUEST_RELEASE_ALL));
  }

  // Logs an error that nobody can be told.
  static void drop(TRITONSERVER_Error *error) {
    if (error == nullptr) return;
    TRITONSERVER_LogMessage(TRITONSERVER_LOG_ERROR, __FILE__, __LINE__, TRITONSERVER_ErrorMessage(error));
    TRITONSERVER_ErrorDelete(error);
  }

 private:
  void read_wanted() {
    std::uint32_t count = 0;
    check(TRITONBACKEND_RequestOutputCount(handle_, &count));
    for (std::uint32_t i = 0; i < count; i++) {
      const char *name = nullptr;
      check(TRITONBACKEND_RequestOutputName(handle_, i, &name));
      wanted_.emplace_back(name);
    }
  }

  void read(const packager_tensor_info_t &info) {
    TRITONBACKEND_Input *input = nullptr;
    TRITONSERVER_DataType type;
    const std::int64_t *shape = nullptr;
    std::uint32_t ndim = 0, buffers = 0;
    std::uint64_t size = 0;
    check(TRITONBACKEND_RequestInput(handle_, info.name, &input));
    check(TRITONBACKEND_InputProperties(input, nullptr, &type, &shape, &ndim, &size, &buffers));
    DLTensor view{};
    view.device = {kDLCPU, 0};
    view.ndim = static_cast<std::int32_t>(ndim);
    view.dtype = info.dtype;
    shapes_.push_back(std::make_unique<std::vector<std::int64_t>>(shape, shape + ndim));
    view.shape = shapes_.back()->data();
    const bool negative = std::any_of(shape, shape + ndim, [](std::int64_t extent) { return extent < 0; });
    if (type != type_of(info.dtype) || view.ndim != info.ndim || negative || count_bytes(view) != size) {
      throw Failure(TRITONSERVER_ERROR_INVALID_ARG,
                    std::string(info.name) + ": its type, rank or size is not that of the model's input");
    }
    read_data(info, input, buffers, &view);
    views_.push_back(view);
  }

  // Uses a single buffer where it is; others are joined.
  void read_data(const packager_tensor_info_t &info, TRITONBACKEND_Input *input, std::uint32_t buffers,
                 DLTensor *view) {
    auto joined = std::make_unique<std::vector<char>>();
    for (std::uint32_t i = 0; i < buffers; i++) {
      const void *data = nullptr;
      std::uint64_t size = 0;
      std::int64_t device = 0;
      TRITONSERVER_MemoryType memory = TRITONSERVER_MEMORY_CPU;
      check(TRITONBACKEND_InputBuffer(input, i, &data, &size, &memory, &device));
      const bool aligned = reinterpret_cast<std::uintptr_t>(data) % ((info.dtype.bits + 7U) / 8) == 0;
      if (memory == TRITONSERVER_MEMORY_GPU && buffers > 1) {
        throw Failure(TRITONSERVER_ERROR_UNSUPPORTED, std::string(info.name) + ": is in several device buffers");
      }
      if (buffers == 1 && (aligned || memory == TRITONSERVER_MEMORY_GPU)) {
        view->data = const_cast<void *>(data);
        if (memory == TRITONSERVER_MEMORY_GPU) view->device = {kDLCUDA, static_cast<std::int32_t>(device)};
        return;
      }
      joined->insert(joined->end(), static_cast<const char *>(data), static_cast<const char *>(data) + size);
    }
    if (joined->size() != count_bytes(*view)) {
      throw Failure(TRITONSERVER_ERROR_INVALID_ARG, std::string(info.name) + ": its buffers are cut short");
    }
    joined->resize(joined->size() + 1);  // data() of an empty vector may be NULL
    joined_.push_back(std::move(joined));
    view->data = joined_.back()->data();
  }

  TRITONBACKEND_Request *handle_;
  TRITONBACKEND_Response *response_ = nullptr;
  std::uint64_t start_;
  std::vector<DLTensor> views_;
  std::vector<std::unique_ptr<std::vector<std::int64_t>>> shapes_;
  std::vector<std::unique_ptr<std::vector<char>>> joined_;
  std::vector<std::string> wanted_;
  std::unique_ptr<Failure> failure_;
};

}  // namespace packager_triton
