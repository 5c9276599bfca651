// server.hpp: what the Triton server offers to a backend, as far as tests and a load need it: requests of lines of
// text, tensors in host or device memory, and functions of the C API that keep what a backend answers.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "device.hpp"
#include "triton/core/tritonbackend.h"

struct TRITONSERVER_Error {
  TRITONSERVER_Error_Code code;
  std::string message;
};
struct TRITONBACKEND_Model {
  std::string folder;
  void *state = nullptr;
};
struct TRITONBACKEND_ModelInstance {
  TRITONBACKEND_Model *model;
  void *state = nullptr;
  std::string runs;  // rows of each
  int succeeded = 0;
};
struct TRITONBACKEND_Input {
  TRITONSERVER_DataType type;
  std::vector<std::int64_t> shape;
  std::vector<std::vector<char>> buffers;
  std::vector<std::shared_ptr<DeviceBuffer>> on_device;  // their copies, if the server keeps tensors there
};
struct TRITONBACKEND_Output {
  std::string name;
  TRITONSERVER_DataType type;
  std::vector<std::int64_t> shape;
  std::vector<char> data;
  std::shared_ptr<DeviceBuffer> on_device;  // in place of data until it is sent
};
struct TRITONBACKEND_Request {
  std::vector<std::string> wanted;
  std::map<std::string, TRITONBACKEND_Input> inputs;
  std::string error;
  std::vector<std::shared_ptr<TRITONBACKEND_Output>> outputs;
  bool answered = false, released = false;
};
struct TRITONBACKEND_Response {
  TRITONBACKEND_Request *request;
  std::vector<std::shared_ptr<TRITONBACKEND_Output>> outputs;
};

namespace {

const char *const TYPES[] = {"INVALID", "BOOL",  "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16",
                             "INT32",   "INT64", "FP16",  "FP32",   "FP64",   "BYTES",  "BF16"};
const char *const CODES[] = {"UNKNOWN",     "INTERNAL",    "NOT_FOUND",      "INVALID_ARG",
                             "UNAVAILABLE", "UNSUPPORTED", "ALREADY_EXISTS", "CANCELLED"};

std::vector<std::string> split(const std::string &text, char at) {
  std::vector<std::string> parts;
  std::stringstream stream(text);
  for (std::string part; std::getline(stream, part, at);) parts.push_back(part);
  return parts;
}

std::string joined(const std::vector<std::int64_t> &extents) {
  std::string text;
  for (const std::int64_t extent : extents) text += (text.empty() ? "" : ",") + std::to_string(extent);
  return text;
}

// What a request was answered: an error, or its outputs with their bytes in hex and "sent".
std::string answer_of(const TRITONBACKEND_Request &request) {
  if (!request.answered || !request.released) std::abort();
  if (!request.error.empty()) return "error " + request.error + "\n";
  static const char *const digits = "0123456789abcdef";
  std::string text;
  for (const auto &output : request.outputs) {
    text += "output " + output->name + " " + TYPES[output->type] + " " + joined(output->shape) + " ";
    for (const char byte : output->data) {
      text += digits[static_cast<unsigned char>(byte) / 16];
      text += digits[static_cast<unsigned char>(byte) % 16];
    }
    text += "\n";
  }
  return text + "sent\n";
}

TRITONBACKEND_Request parse(const std::string &line) {
  TRITONBACKEND_Request request;
  std::vector<std::string> words = split(line, ' ');
  if (words[0] != "*") request.wanted = split(words[0], ',');
  const std::size_t buffers = std::stoul(words[1]);
  for (std::size_t i = 2; i < words.size(); i++) {
    const std::vector<std::string> parts = split(words[i], ':');
    TRITONBACKEND_Input &input = request.inputs[parts[0]];
    input.type = static_cast<TRITONSERVER_DataType>(std::find(TYPES, std::end(TYPES), parts[1]) - TYPES);
    for (const std::string &extent : split(parts[2], ',')) input.shape.push_back(std::stoll(extent));
    std::ifstream file(parts[3], std::ios::binary);
    const std::vector<char> data{std::istreambuf_iterator<char>(file), {}};
    const std::size_t size = data.size() / buffers + 1;  // not of whole elements
    for (std::size_t start = 0; start < data.size(); start += size) {
      input.buffers.emplace_back(data.begin() + static_cast<std::ptrdiff_t>(start),
                                 data.begin() + static_cast<std::ptrdiff_t>(std::min(start + size, data.size())));
      if (device_memory()) input.on_device.push_back(std::make_shared<DeviceBuffer>(input.buffers.back()));
    }
  }
  return request;
}

template <typename Function>
Function *find(void *library, const char *name) {
  Function *function = nullptr;
  if (library != nullptr) *reinterpret_cast<void **>(&function) = dlsym(library, name);
  if (function == nullptr) {
    std::cerr << dlerror() << "\n";
    std::exit(1);
  }
  return function;
}

void require(TRITONSERVER_Error *error) {
  if (error == nullptr) return;
  std::cerr << CODES[error->code] << " " << error->message << "\n";
  delete error;
  std::exit(1);
}

// Reads lines of requests from stdin; an empty line ends a batch.
std::vector<std::vector<TRITONBACKEND_Request>> read_batches() {
  std::vector<std::vector<TRITONBACKEND_Request>> batches(1);
  for (std::string line; std::getline(std::cin, line);) {
    if (line.empty()) {
      batches.emplace_back();
    } else {
      batches.back().push_back(parse(line));
    }
  }
  return batches;
}

// The entry points of a backend's library.
#define ENTRY(name) \
  decltype(TRITONBACKEND_##name) *const name = find<decltype(TRITONBACKEND_##name)>(library, "TRITONBACKEND_" #name)
struct Backend {
  explicit Backend(const char *path) : library(dlopen(path, RTLD_NOW | RTLD_LOCAL)) {}
  ~Backend() { dlclose(library); }
  void *const library;
  ENTRY(Initialize);
  ENTRY(ModelInitialize);
  ENTRY(ModelInstanceInitialize);
  ENTRY(ModelInstanceExecute);
  ENTRY(ModelInstanceFinalize);
  ENTRY(ModelFinalize);
};
#undef ENTRY

}  // namespace

extern "C" {

TRITONSERVER_Error *TRITONSERVER_ErrorNew(TRITONSERVER_Error_Code code, const char *message) {
  return new TRITONSERVER_Error{code, message};
}
void TRITONSERVER_ErrorDelete(TRITONSERVER_Error *error) { delete error; }
TRITONSERVER_Error_Code TRITONSERVER_ErrorCode(TRITONSERVER_Error *error) { return error->code; }
const char *TRITONSERVER_ErrorMessage(TRITONSERVER_Error *error) { return error->message.c_str(); }
TRITONSERVER_Error *TRITONSERVER_LogMessage(TRITONSERVER_LogLevel, const char *, int, const char *message) {
  std::cerr << "log: " << message << "\n";
  return nullptr;
}

TRITONSERVER_Error *TRITONBACKEND_ApiVersion(uint32_t *major, uint32_t *minor) {
  const char *const version = std::getenv("TRITON_MINOR");
  *major = TRITONBACKEND_API_VERSION_MAJOR;
  *minor = version != nullptr ? static_cast<uint32_t>(std::atoi(version)) : TRITONBACKEND_API_VERSION_MINOR;
  return nullptr;
}
TRITONSERVER_Error *TRITONBACKEND_ModelRepository(TRITONBACKEND_Model *model, TRITONBACKEND_ArtifactType *type,
                                                  const char **location) {
  *type = TRITONBACKEND_ARTIFACT_FILESYSTEM;
  *location = model->folder.c_str();
  return nullptr;
}
TRITONSERVER_Error *TRITONBACKEND_ModelVersion(TRITONBACKEND_Model *, uint64_t *version) {
  *version = 1;
  return nullptr;
}
TRITONSERVER_Error *TRITONBACKEND_ModelState(TRITONBACKEND_Model *model, void **state) {
  *state = model->state;
  return nullptr;
}
TRITONSERVER_Error *TRITONBACKEND_ModelSetState(TRITONBACKEND_Model *model, void *state) {
  model->state = state;
  return nullptr;
}
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceKind(TRITONBACKEND_ModelInstance *,
                                                    TRITONSERVER_InstanceGroupKind *kind) {
  *kind = device_memory() ? TRITONSERVER_INSTANCEGROUPKIND_GPU : TRITONSERVER_INSTANCEGROUPKIND_CPU;
  return nullptr;
}
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceDeviceId(TRITONBACKEND_ModelInstance *, int32_t *device) {
  *device = 0;
  return nullptr;
}
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceModel(TRITONBACKEND_ModelInstance *instance,
                                                     TRITONBACKEND_Model **model) {
  *model = instance->model;
  return nullptr;
}
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceState(TRITONBACKEND_ModelInstance *instance, void **state) {
  *state = instance->state;
  return nullptr;
}
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceSetState(TRITONBACKEND_ModelInstance *instance, void *state) {
  instance->state = state;
  return nullptr;
}
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportStatistics(TRITONBACKEND_ModelInstance *instance,
                                                                TRITONBACKEND_Request *, const bool success,
                                                                const uint64_t exec_start, const uint64_t compute_start,
                                                                const uint64_t compute_end, const uint64_t exec_end) {
  if (exec_start > compute_start || compute_start > compute_end || compute_end > exec_end) std::abort();
  instance->succeeded += success;
  return nullptr;
}
TRITONSERVER_Error *TRITONBACKEND_ModelInstanceReportBatchStatistics(TRITONBACKEND_ModelInstance *instance,
                                                                     const uint64_t batch_size, const uint64_t,
                                                                     const uint64_t, const uint64_t, const uint64_t) {
  instance->runs += " " + std::to_string(batch_size);
  return nullptr;
}
TRITONSERVER_Error *TRITONBACKEND_RequestInput(TRITONBACKEND_Request *request, const char *name,
                                               TRITONBACKEND_Input **input) {
  const auto found = request->inputs.find(name);
  if (found == request->inputs.end()) return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INVALID_ARG, "no such input");
  *input = &found->second;
  return nullptr;
}
TRITONSERVER_Error *TRITONBACKEND_RequestOutputCount(TRITONBACKEND_Request *request, uint32_t *count) {
  *count = static_cast<uint32_t>(request->wanted.size());
  return nullptr;
}
TRITONSERVER_Error *TRITONBACKEND_RequestOutputName(TRITONBACKEND_Request *request, const uint32_t index,
                                                    const char **name) {
  *name = request->wanted[index].c_str();
  return nullptr;
}
TRITONSERVER_Error *TRITONBACKEND_RequestRelease(TRITONBACKEND_Request *request, uint32_t) {
  if (request->released) std::abort();
  request->released = true;
  request->inputs.clear();  // a backend must not use them any more
  return nullptr;
}
TRITONSERVER_Error *TRITONBACKEND_InputProperties(TRITONBACKEND_Input *input, const char **,
                                                  TRITONSERVER_DataType *datatype, const int64_t **shape,
                                                  uint32_t *dims_count, uint64_t *byte_size, uint32_t *buffer_count) {
  *datatype = input->type;
  *shape = input->shape.data();
  *dims_count = static_cast<uint32_t>(input->shape.size());
  *byte_size = 0;
  for (const std::vector<char> &buffer : input->buffers) *byte_size += buffer.size();
  *buffer_count = static_cast<uint32_t>(input->buffers.size());
  return nullptr;
}
TRITONSERVER_Error *TRITONBACKEND_InputBuffer(TRITONBACKEND_Input *input, const uint32_t index, const void **buffer,
                                              uint64_t *byte_size, TRITONSERVER_MemoryType *memory_type,
                                              int64_t *memory_type_id) {
  *byte_size = input->buffers[index].size();
  *memory_type = input->on_device.empty() ? TRITONSERVER_MEMORY_CPU : TRITONSERVER_MEMORY_GPU;
  *memory_type_id = 0;
  *buffer = input->on_device.empty() ? input->buffers[index].data() : input->on_device[index]->data();
  return nullptr;
}
TRITONSERVER_Error *TRITONBACKEND_ResponseNew(TRITONBACKEND_Response **response, TRITONBACKEND_Request *request) {
  *response = new TRITONBACKEND_Response{request, {}};
  return nullptr;
}
TRITONSERVER_Error *TRITONBACKEND_ResponseOutput(TRITONBACKEND_Response *response, TRITONBACKEND_Output **output,
                                                 const char *name, const TRITONSERVER_DataType datatype,
                                                 const int64_t *shape, const uint32_t dims_count) {
  response->outputs.push_back(std::make_shared<TRITONBACKEND_Output>(
      TRITONBACKEND_Output{name, datatype, std::vector<std::int64_t>(shape, shape + dims_count), {}, {}}));
  *output = response->outputs.back().get();
  return nullptr;
}
TRITONSERVER_Error *TRITONBACKEND_ResponseSend(TRITONBACKEND_Response *response, const uint32_t,
                                               TRITONSERVER_Error *error) {
  TRITONBACKEND_Request &request = *response->request;
  if (request.answered) std::abort();  // one response for each request
  request.answered = true;
  if (error != nullptr) {
    request.error = std::string(CODES[error->code]) + " " + error->message;
  } else {
    for (const auto &output : response->outputs) {
      if (output->on_device != nullptr) output->data = output->on_device->bytes();
    }
    request.outputs = std::move(response->outputs);
  }
  delete response;
  return nullptr;
}
TRITONSERVER_Error *TRITONBACKEND_OutputBuffer(TRITONBACKEND_Output *output, void **buffer, const uint64_t byte_size,
                                               TRITONSERVER_MemoryType *memory_type, int64_t *memory_type_id) {
  if (device_memory() && *memory_type == TRITONSERVER_MEMORY_GPU) {
    output->on_device = std::make_shared<DeviceBuffer>(byte_size);
    *buffer = output->on_device->data();
    *memory_type_id = 0;
    return nullptr;
  }
  output->data.resize(byte_size);
  *buffer = output->data.data();
  *memory_type = TRITONSERVER_MEMORY_CPU;  // also where device memory is preferred
  return nullptr;
}

}  // extern "C"
