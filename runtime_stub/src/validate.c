/* validate.c: checks the tensors of a run before any primitive function is called. */
#include <inttypes.h>
#include <stdio.h>

#include "device.h"

static const char *const kInput = "input";
static const char *const kOutput = "output";
static const char *const kConstant = "constant";
static const char *const kState = "state";

static void print_dtype(DLDataType dtype, char text[32]) {
  static const char *const names[] = {"int", "uint", "float", "handle", "bfloat", "complex", "bool"};
  /* DLPack's types of at most 8 bits; code and bits say the same. */
  static const char *const narrow[] = {"float8_e3m4",     "float8_e4m3",   "float8_e4m3b11fnuz", "float8_e4m3fn",
                                       "float8_e4m3fnuz", "float8_e5m2",   "float8_e5m2fnuz",    "float8_e8m0fnu",
                                       "float6_e2m3fn",   "float6_e3m2fn", "float4_e2m1fn"};
  enum { kFirstNarrow = sizeof names / sizeof *names };
  const char *name = dtype.code < kFirstNarrow ? names[dtype.code] : NULL;
  if (dtype.lanes == 1 && dtype.code >= kFirstNarrow && dtype.code < kFirstNarrow + sizeof narrow / sizeof *narrow) {
    snprintf(text, 32, "%s", narrow[dtype.code - kFirstNarrow]);
  } else if (!name) {
    snprintf(text, 32, "code %u, %u bits, x%u", dtype.code, dtype.bits, dtype.lanes);
  } else if (dtype.lanes != 1) {
    snprintf(text, 32, "%s%ux%u", name, dtype.bits, dtype.lanes);
  } else if (dtype.code == kDLBool && dtype.bits == 8) {
    snprintf(text, 32, "bool");
  } else {
    snprintf(text, 32, "%s%u", name, dtype.bits);
  }
}

static int32_t fail_dtype(packager_session_t *session, const char *role, const packager_tensor_info_t *info,
                          DLDataType got) {
  char got_name[32], expected[32];
  print_dtype(got, got_name);
  print_dtype(info->dtype, expected);
  return pk_fail(session, PACKAGER_ERROR_DTYPE, "%s '%s': dtype is %s, expected %s", role, info->name, got_name,
                 expected);
}

/* The parts of a description that do not depend on symbolic dims. */
static int32_t check_kind(packager_session_t *session, const char *role, const packager_tensor_info_t *info,
                          const DLTensor *tensor) {
  if (!tensor) return pk_fail(session, PACKAGER_ERROR_ARGUMENT, "%s '%s': the tensor is NULL", role, info->name);
  if (tensor->ndim != info->ndim) {
    return pk_fail(session, PACKAGER_ERROR_RANK, "%s '%s': rank is %" PRId32 ", expected %" PRId32, role, info->name,
                   tensor->ndim, info->ndim);
  }
  if (tensor->ndim > 0 && !tensor->shape) {
    return pk_fail(session, PACKAGER_ERROR_ARGUMENT, "%s '%s': shape is NULL", role, info->name);
  }
  if (tensor->dtype.code != info->dtype.code || tensor->dtype.bits != info->dtype.bits ||
      tensor->dtype.lanes != info->dtype.lanes) {
    return fail_dtype(session, role, info, tensor->dtype);
  }
  if ((int)tensor->device.device_type == kDLCPU) return PACKAGER_OK;
  return pk_device_check_tensor(session, role, info->name, tensor->device);
}

static int32_t check_shape(packager_session_t *session, const char *role, const packager_tensor_info_t *info,
                           const DLTensor *tensor, const int64_t *extents) {
  int empty = 0;
  for (int32_t axis = 0; axis < info->ndim; ++axis) {
    empty |= extents[axis] == 0;
    if (tensor->shape[axis] == extents[axis]) continue;
    const char *dim = info->dims ? info->dims[axis] : NULL;
    return pk_fail(session, PACKAGER_ERROR_SHAPE,
                   "%s '%s': axis %" PRId32 " is %" PRId64 ", expected %" PRId64 "%s%s%s", role, info->name, axis,
                   tensor->shape[axis], extents[axis], dim ? " (" : "", dim ? dim : "", dim ? ")" : "");
  }
  if (!tensor->strides || empty) return PACKAGER_OK;
  int64_t stride = 1;
  for (int32_t axis = info->ndim - 1; axis >= 0; --axis) {
    if (extents[axis] != 1 && tensor->strides[axis] != stride) {
      return pk_fail(session, PACKAGER_ERROR_LAYOUT,
                     "%s '%s': stride of axis %" PRId32 " is %" PRId64 ", expected %" PRId64 " (compact row-major)",
                     role, info->name, axis, tensor->strides[axis], stride);
    }
    stride *= extents[axis];
  }
  return PACKAGER_OK;
}

/* Stores address and size of the data; integer arithmetic, because an empty tensor may have data = NULL. */
static int32_t check_data(packager_session_t *session, const char *role, const packager_tensor_info_t *info,
                          const DLTensor *tensor, const int64_t *extents, void **data, uint64_t *bytes) {
  uint64_t elements = 1;
  for (int32_t axis = 0; axis < info->ndim; ++axis) elements *= (uint64_t)extents[axis];
  uint64_t alignment = ((uint64_t)info->dtype.bits + 7) / 8 * info->dtype.lanes; /* narrow elements have a byte each */
  uintptr_t address = (uintptr_t)tensor->data + (uintptr_t)tensor->byte_offset;
  *data = (void *)address;
  *bytes = elements * alignment;
  if (elements == 0) return PACKAGER_OK;
  if (!tensor->data) return pk_fail(session, PACKAGER_ERROR_ARGUMENT, "%s '%s': data is NULL", role, info->name);
  if (address & (alignment - 1)) {
    return pk_fail(session, PACKAGER_ERROR_ALIGNMENT,
                   "%s '%s': data (with its byte_offset of %" PRIu64 ") is not aligned to %" PRIu64 " bytes", role,
                   info->name, tensor->byte_offset, alignment);
  }
  return PACKAGER_OK;
}

static int32_t check_count(packager_session_t *session, const char *role, const void *tensors, int32_t got,
                           int32_t expected) {
  if (got != expected) {
    return pk_fail(session, PACKAGER_ERROR_ARGUMENT, "number of %ss is %" PRId32 ", expected %" PRId32, role, got,
                   expected);
  }
  if (expected > 0 && !tensors) return pk_fail(session, PACKAGER_ERROR_ARGUMENT, "the array of %ss is NULL", role);
  return PACKAGER_OK;
}

int32_t pk_fail_condition(packager_session_t *session, const char *condition, int64_t left, int64_t right) {
  return pk_fail(session, PACKAGER_ERROR_SHAPE, "the shapes do not fit together: %s, but %" PRId64 " and %" PRId64,
                 condition, left, right);
}

/* Computed once per change of the dims; before each run that writes the extents that it computes itself. */
static int32_t shape(packager_session_t *session, const pk_entry_t *entry) {
  int64_t values[2];
  int32_t broken = entry->check ? entry->check(session->dims, values) : 0;
  if (broken) return pk_fail_condition(session, entry->conditions[broken - 1], values[0], values[1]);
  (entry->room ? entry->room : entry->shapes)(session->dims, session->extents);
  session->shaped = !entry->room;
  return PACKAGER_OK;
}

static int32_t bind_dims(packager_session_t *session, const DLTensor *const *inputs) {
  const pk_entry_t *entry = session->entry;
  for (int32_t i = 0; i < entry->num_dims; ++i) {
    const pk_dim_t *dim = &entry->dims[i];
    int64_t extent = inputs[dim->input]->shape[dim->axis];
    if (extent < dim->min || extent > dim->max) {
      return pk_fail(session, PACKAGER_ERROR_SHAPE, "input '%s': dim %s = %" PRId64 " is outside %" PRId64 "..%" PRId64,
                     entry->inputs[dim->input].name, dim->name, extent, dim->min, dim->max);
    }
    if (session->dims[i] == extent) continue;
    session->dims[i] = extent;
    session->shaped = 0;
  }
  return (entry->num_dims == 0 && entry->num_extents == 0) || session->shaped ? PACKAGER_OK : shape(session, entry);
}

static int32_t check_kinds(packager_session_t *session, const pk_entry_t *entry, const DLTensor *const *inputs,
                           int32_t num_inputs) {
  int32_t status = check_count(session, kInput, inputs, num_inputs, entry->num_inputs);
  for (int32_t i = 0; !status && i < num_inputs; ++i) {
    status = check_kind(session, kInput, &entry->inputs[i], inputs[i]);
  }
  return status;
}

static int32_t fail_size(packager_session_t *session, const char *input, const pk_bucketed_dim_t *dim, int64_t extent) {
  char sizes[PK_MESSAGE_BYTES / 2] = "";
  size_t used = 0;
  for (int32_t i = 0; i < dim->num_sizes && used < sizeof sizes; ++i) {
    used += (size_t)snprintf(sizes + used, sizeof sizes - used, "%s%" PRId64, i ? ", " : "", dim->sizes[i]);
  }
  return pk_fail(session, PACKAGER_ERROR_SHAPE, "input '%s': dim %s = %" PRId64 " is none of its buckets: %s", input,
                 dim->name, extent, sizes);
}

int32_t pk_choose_variant(packager_session_t *session, const pk_entry_t **entry, const DLTensor *const *inputs,
                          int32_t num_inputs) {
  const pk_entry_t *whole = *entry;
  int32_t status = check_kinds(session, whole, inputs, num_inputs);
  int32_t number = 0;
  for (int32_t i = 0; !status && i < whole->num_bucketed; ++i) {
    const pk_bucketed_dim_t *dim = &whole->bucketed[i];
    int64_t extent = inputs[dim->input]->shape[dim->axis];
    int32_t place = 0;
    while (place < dim->num_sizes && dim->sizes[place] != extent) ++place;
    if (place == dim->num_sizes) status = fail_size(session, whole->inputs[dim->input].name, dim, extent);
    number = number * dim->num_sizes + place;
  }
  if (!status) *entry = &whole->variants[number];
  return status;
}

int32_t pk_check_inputs(packager_session_t *session, const DLTensor *const *inputs, int32_t num_inputs) {
  const pk_entry_t *entry = session->entry;
  int32_t status = check_kinds(session, entry, inputs, num_inputs);
  if (!status) status = bind_dims(session, inputs);
  const int64_t *extents = session->extents;
  for (int32_t i = 0; !status && i < num_inputs; ++i) {
    status = check_shape(session, kInput, &entry->inputs[i], inputs[i], extents);
    extents += entry->inputs[i].ndim;
  }
  return status;
}

static int overlap(const void *a, uint64_t a_bytes, const void *b, uint64_t b_bytes) {
  uintptr_t a_begin = (uintptr_t)a, b_begin = (uintptr_t)b;
  return a_bytes > 0 && b_bytes > 0 && a_begin < b_begin + b_bytes && b_begin < a_begin + a_bytes;
}

static int32_t check_overlaps(packager_session_t *session) {
  const pk_entry_t *entry = session->entry;
  for (int32_t i = 0; i < entry->num_outputs; ++i) {
    const char *role = NULL, *other = NULL;
    for (int32_t j = 0; j < entry->num_inputs; ++j) {
      if (!overlap(session->outputs[i], session->output_bytes[i], session->inputs[j], session->input_bytes[j]))
        continue;
      role = kInput;
      other = entry->inputs[j].name;
    }
    for (int32_t j = 0; j < i; ++j) {
      if (!overlap(session->outputs[i], session->output_bytes[i], session->outputs[j], session->output_bytes[j]))
        continue;
      role = kOutput;
      other = entry->outputs[j].name;
    }
    if (role) {
      return pk_fail(session, PACKAGER_ERROR_OVERLAP, "output '%s' overlaps %s '%s'", entry->outputs[i].name, role,
                     other);
    }
  }
  return PACKAGER_OK;
}

int32_t pk_check_memory(packager_session_t *session, const DLTensor *const *inputs, DLTensor *const *outputs,
                        int32_t num_outputs) {
  const pk_entry_t *entry = session->entry;
  int32_t status = check_count(session, kOutput, outputs, num_outputs, entry->num_outputs);
  const int64_t *extents = session->extents;
  for (int32_t i = 0; !status && i < entry->num_inputs; ++i) {
    const packager_tensor_info_t *info = &entry->inputs[i];
    status = check_data(session, kInput, info, inputs[i], extents, &session->inputs[i], &session->input_bytes[i]);
    extents += info->ndim;
  }
  for (int32_t i = 0; !status && i < num_outputs; ++i) {
    const packager_tensor_info_t *info = &entry->outputs[i];
    status = check_kind(session, kOutput, info, outputs[i]);
    if (!status) status = check_shape(session, kOutput, info, outputs[i], extents);
    if (!status) {
      status = check_data(session, kOutput, info, outputs[i], extents, &session->outputs[i], &session->output_bytes[i]);
    }
    extents += info->ndim;
  }
  return status ? status : check_overlaps(session);
}

int32_t pk_check_constant(const packager_constant_info_t *info, const DLTensor *value, void **data) {
  const packager_tensor_info_t tensor = {info->name,  info->dtype, info->ndim, info->shape,
                                         info->shape, info->shape, NULL};
  uint64_t bytes;
  int32_t status = check_kind(NULL, kConstant, &tensor, value);
  if (!status) status = check_shape(NULL, kConstant, &tensor, value, info->shape);
  return status ? status : check_data(NULL, kConstant, &tensor, value, info->shape, data, &bytes);
}

int32_t pk_check_state(packager_session_t *session, const packager_tensor_info_t *info, const DLTensor *value,
                       void **data) {
  uint64_t bytes;
  int32_t status = check_kind(session, kState, info, value);
  if (!status) status = check_shape(session, kState, info, value, info->shape);
  return status ? status : check_data(session, kState, info, value, info->shape, data, &bytes);
}
