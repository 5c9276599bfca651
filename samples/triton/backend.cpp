// backend.cpp: a backend of the Triton Inference Server that runs packager bundles. See README.md for how it is built.
//
// A model of the server is a bundle, MODEL/VERSION/model.so; an instance is a session of it. Requests that the server's
// dynamic batcher brings together share a run where rows can be concatenated. Tensors are used where the server has
// them, in device memory too: what is copied are inputs in several buffers, batches, and outputs that are not as large
// as their shape may be.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "instance.hpp"
#include "model.hpp"
#include "request.hpp"

namespace {

using packager_triton::check;
using packager_triton::count_bytes;
using packager_triton::Failure;
using packager_triton::guarded;
using packager_triton::Instance;
using packager_triton::Model;
using packager_triton::now;
using packager_triton::Output;
using packager_triton::Request;

// How many rows a request adds to a batch, or 0 if it must run alone.
std::int64_t rows_of(const Model &model, const Request &request) {
  if (!model.batched() || request.failed()) return 0;
  for (const DLTensor &input : request.views()) {
    if (input.device.device_type != kDLCPU || input.shape[0] != request.views()[0].shape[0]) return 0;
  }
  return request.views()[0].shape[0];
}

// Whether two requests differ in their numbers of rows alone.
bool fits(const Request &one, const Request &other) {
  for (std::size_t i = 0; i < one.views().size(); i++) {
    const DLTensor &a = one.views()[i], &b = other.views()[i];
    if (a.ndim != b.ndim || !std::equal(a.shape + 1, a.shape + a.ndim, b.shape + 1)) return false;
  }
  return true;
}

// Runs requests as one batch, or a single one on its own tensors. Throws Failure: then no output has been filled.
void run(Instance &instance, std::vector<Request *> &group) {
  const Model &model = instance.model();
  std::vector<DLTensor> inputs = group[0]->views();
  std::vector<std::vector<char>> joined(inputs.size());
  std::vector<std::vector<std::int64_t>> shapes;
  for (std::size_t i = 0; i < inputs.size() && group.size() > 1; i++) {
    shapes.emplace_back(inputs[i].shape, inputs[i].shape + inputs[i].ndim);
    shapes.back()[0] = 0;
    for (const Request *request : group) {
      const DLTensor &part = request->views()[i];
      const char *start = static_cast<const char *>(part.data);
      joined[i].insert(joined[i].end(), start, start + count_bytes(part));
      shapes.back()[0] += part.shape[0];
    }
    inputs[i].data = joined[i].data();
  }
  for (std::size_t i = 0; i < shapes.size(); i++) inputs[i].shape = shapes[i].data();

  std::vector<Output> outputs;
  for (std::int32_t i = 0; i < model.bundle()->num_outputs; i++) {
    outputs.emplace_back(model.bundle()->outputs[i], instance.output_shape(inputs, i));
    const bool in_place = group.size() == 1 && model.determined(i) && group[0]->wants(outputs.back().name());
    if (in_place) {
      outputs.back().place(group[0]->response(), instance.preferred_memory(), instance.device());
    } else {
      outputs.back().allocate();
    }
  }
  instance.run(inputs, outputs);

  std::int64_t row = 0;
  for (Request *request : group) {
    const std::int64_t rows = group.size() > 1 ? request->views()[0].shape[0] : 0;
    try {
      for (Output &output : outputs) {
        if (!output.placed() && request->wants(output.name())) output.copy(request->response(), row, rows);
      }
    } catch (const Failure &failure) {
      request->fail(failure);
    }
    row += rows;
  }
}

// Runs a group and answers its requests. If a batch fails, each runs alone: a bad one must not fail the others.
void answer(Instance &instance, std::vector<Request *> group) {
  const std::uint64_t start = now();
  try {
    run(instance, group);
    std::uint64_t rows = 0;
    for (const Request *request : group)
      rows += static_cast<std::uint64_t>(std::max<std::int64_t>(rows_of(instance.model(), *request), 1));
    Request::drop(
        TRITONBACKEND_ModelInstanceReportBatchStatistics(instance.handle(), rows, start, start, now(), now()));
  } catch (const Failure &failure) {
    if (group.size() > 1) {
      for (Request *request : group) answer(instance, {request});
      return;
    }
    group[0]->fail(failure);
  }
  const std::uint64_t end = now();
  for (Request *request : group) request->send(instance.handle(), start, end);
}

void execute(Instance &instance, std::vector<Request> &requests) {
  const Model &model = instance.model();
  std::vector<Request *> group;
  std::int64_t total = 0;
  for (Request &request : requests) {
    if (request.failed()) {
      const std::uint64_t time = now();
      request.send(instance.handle(), time, time);
      continue;
    }
    const std::int64_t rows = rows_of(model, request);
    if (!group.empty() && (rows == 0 || total == 0 || total + rows > model.most_rows() || !fits(*group[0], request))) {
      answer(instance, std::move(group));
      group.clear();
      total = 0;
    }
    group.push_back(&request);
    total += rows;
  }
  if (!group.empty()) answer(instance, std::move(group));
}

}  // namespace

extern "C" {

TRITONSERVER_Error *TRITONBACKEND_Initialize(TRITONBACKEND_Backend *) {
  return guarded([] {
    std::uint32_t major = 0, minor = 0;
    check(TRITONBACKEND_ApiVersion(&major, &minor));
    if (major != TRITONBACKEND_API_VERSION_MAJOR || minor < TRITONBACKEND_API_VERSION_MINOR) {
      throw Failure(TRITONSERVER_ERROR_UNSUPPORTED, "the server's backend API is of another version");
    }
  });
}

TRITONSERVER_Error *TRITONBACKEND_ModelInitialize(TRITONBACKEND_Model *handle) {
  return guarded([&] { check(TRITONBACKEND_ModelSetState(handle, new Model(handle))); });
}

TRITONSERVER_Error *TRITONBACKEND_ModelFinalize(TRITONBACKEND_Model *handle) {
  return guarded([&] {
    void *state = nullptr;
    check(TRITONBACKEND_ModelState(handle, &state));
    delete static_cast<Model *>(state);
  });
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceInitialize(TRITONBACKEND_ModelInstance *handle) {
  return guarded([&] { check(TRITONBACKEND_ModelInstanceSetState(handle, new Instance(handle))); });
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceFinalize(TRITONBACKEND_ModelInstance *handle) {
  return guarded([&] {
    void *state = nullptr;
    check(TRITONBACKEND_ModelInstanceState(handle, &state));
    delete static_cast<Instance *>(state);
  });
}

TRITONSERVER_Error *TRITONBACKEND_ModelInstanceExecute(TRITONBACKEND_ModelInstance *handle,
                                                       TRITONBACKEND_Request **requests, const std::uint32_t count) {
  return guarded([&] {
    void *state = nullptr;
    check(TRITONBACKEND_ModelInstanceState(handle, &state));
    Instance &instance = *static_cast<Instance *>(state);
    std::vector<Request> accepted;
    accepted.reserve(count);
    for (std::uint32_t i = 0; i < count; i++) accepted.emplace_back(requests[i], instance.model());
    execute(instance, accepted);
  });
}

}  // extern "C"
