// model.hpp: a bundle as a model of the server, and its sessions as instances.
#pragma once

#include <triton/core/tritonbackend.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <stdexcept>
#include <string>
#include <vector>

#include "../hosts/cpp/bundle.hpp"

namespace packager_triton {

// An error with the server's code.
class Failure : public std::runtime_error {
 public:
  Failure(TRITONSERVER_Error_Code code, const std::string &message) : std::runtime_error(message), code_(code) {}
  TRITONSERVER_Error_Code code() const { return code_; }

 private:
  TRITONSERVER_Error_Code code_;
};

// Throws what a function of the server returned.
inline void check(TRITONSERVER_Error *error) {
  if (error == nullptr) return;
  const Failure failure(TRITONSERVER_ErrorCode(error), TRITONSERVER_ErrorMessage(error));
  TRITONSERVER_ErrorDelete(error);
  throw failure;
}

// Runs the body of an entry point: exceptions become errors of the server.
template <typename Body>
TRITONSERVER_Error *guarded(Body body) {
  try {
    body();
    return nullptr;
  } catch (const Failure &failure) {
    return TRITONSERVER_ErrorNew(failure.code(), failure.what());
  } catch (const std::exception &error) {
    return TRITONSERVER_ErrorNew(TRITONSERVER_ERROR_INTERNAL, error.what());
  }
}

inline std::uint64_t now() {
  const auto time = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(time).count());
}

inline std::size_t count_bytes(const DLTensor &tensor) {
  std::size_t size = (tensor.dtype.bits + 7U) / 8;
  for (std::int32_t axis = 0; axis < tensor.ndim; axis++) size *= static_cast<std::size_t>(tensor.shape[axis]);
  return size;
}

// The server's name of an element type; TRITONSERVER_TYPE_INVALID for those that it does not know.
inline TRITONSERVER_DataType type_of(DLDataType dtype) {
  static const struct {
    int code, bits;
    TRITONSERVER_DataType type;
  } types[] = {
      {kDLBool, 8, TRITONSERVER_TYPE_BOOL},    {kDLUInt, 8, TRITONSERVER_TYPE_UINT8},
      {kDLUInt, 16, TRITONSERVER_TYPE_UINT16}, {kDLUInt, 32, TRITONSERVER_TYPE_UINT32},
      {kDLUInt, 64, TRITONSERVER_TYPE_UINT64}, {kDLInt, 8, TRITONSERVER_TYPE_INT8},
      {kDLInt, 16, TRITONSERVER_TYPE_INT16},   {kDLInt, 32, TRITONSERVER_TYPE_INT32},
      {kDLInt, 64, TRITONSERVER_TYPE_INT64},   {kDLFloat, 16, TRITONSERVER_TYPE_FP16},
      {kDLFloat, 32, TRITONSERVER_TYPE_FP32},  {kDLFloat, 64, TRITONSERVER_TYPE_FP64},
      {kDLBfloat, 16, TRITONSERVER_TYPE_BF16},
  };
  for (const auto &known : types) {
    if (dtype.code == known.code && dtype.bits == known.bits) return known.type;
  }
  return TRITONSERVER_TYPE_INVALID;
}

// The names in an expression of dims: "max", "n" and "m" of "max(n, 2*m)".
inline std::vector<std::string> names_in(const char *expression) {
  std::vector<std::string> names(1);
  bool inside = false;
  for (const char *at = expression; *at != '\0'; at++) {
    const bool letter = std::isalpha(static_cast<unsigned char>(*at)) != 0 || *at == '_';
    inside = letter || (inside && std::isdigit(static_cast<unsigned char>(*at)) != 0);
    if (inside) {
      names.back() += *at;
    } else if (!names.back().empty()) {
      names.emplace_back();
    }
  }
  if (names.back().empty()) names.pop_back();
  return names;
}

inline bool contains(const std::vector<std::string> &names, const std::string &name) {
  for (const std::string &other : names) {
    if (other == name) return true;
  }
  return false;
}

// A bundle: MODEL/VERSION/model.so.
class Model {
 public:
  explicit Model(TRITONBACKEND_Model *handle) : bundle_(path_of(handle)) {
    std::vector<std::string> given;
    batched_ = bundle_->num_inputs > 0;
    const char *rows = nullptr;
    most_rows_ = INT64_MAX;
    for (std::int32_t i = 0; i < bundle_->num_inputs; i++) visit(bundle_->inputs[i], &given, &rows);
    for (std::int32_t i = 0; i < bundle_->num_outputs; i++) {
      std::vector<std::string> used;
      visit(bundle_->outputs[i], &used, &rows);
      bool determined = true;
      for (const std::string &name : used) determined = determined && contains(given, name);
      determined_.push_back(determined);
      batched_ = batched_ && determined;
    }
    if (bundle_->num_states > 0) {
      throw Failure(TRITONSERVER_ERROR_UNSUPPORTED, "the model keeps states, and requests of clients would share them");
    }
  }

  const packager::Bundle &bundle() const { return bundle_; }
  // Whether the first axis of all tensors is one dim, which no other axis depends on: rows can be concatenated.
  bool batched() const { return batched_; }
  std::int64_t most_rows() const { return most_rows_; }
  // Whether the shape of an output follows from the shapes of the inputs.
  bool determined(std::int32_t output) const { return determined_[static_cast<std::size_t>(output)]; }

 private:
  void visit(const packager_tensor_info_t &info, std::vector<std::string> *names, const char **rows) {
    if (type_of(info.dtype) == TRITONSERVER_TYPE_INVALID) {
      throw Failure(TRITONSERVER_ERROR_UNSUPPORTED, std::string(info.name) + ": the server has no such element type");
    }
    if (info.ndim == 0 || info.shape[0] != PACKAGER_DIM_SYMBOLIC) batched_ = false;
    if (batched_ && *rows == nullptr) *rows = info.dims[0];
    if (batched_ && std::string(*rows) != info.dims[0]) batched_ = false;
    if (batched_ && names_in(*rows).size() != 1) batched_ = false;
    if (batched_) most_rows_ = std::min(most_rows_, info.max_shape[0]);
    for (std::int32_t axis = 0; axis < info.ndim; axis++) {
      if (info.shape[axis] != PACKAGER_DIM_SYMBOLIC) continue;
      for (const std::string &name : names_in(info.dims[axis])) {
        names->push_back(name);
        if (axis > 0 && *rows != nullptr && name == *rows) batched_ = false;
      }
    }
  }

  static std::string path_of(TRITONBACKEND_Model *handle) {
    TRITONBACKEND_ArtifactType type;
    const char *location = nullptr;
    std::uint64_t version = 0;
    check(TRITONBACKEND_ModelRepository(handle, &type, &location));
    if (type != TRITONBACKEND_ARTIFACT_FILESYSTEM) {
      throw Failure(TRITONSERVER_ERROR_UNSUPPORTED, "bundles are loaded from the file system alone");
    }
    check(TRITONBACKEND_ModelVersion(handle, &version));
    return std::string(location) + "/" + std::to_string(version) + "/model.so";
  }

  packager::Bundle bundle_;
  bool batched_ = false;
  std::int64_t most_rows_ = 0;
  std::vector<bool> determined_;
};

}  // namespace packager_triton
