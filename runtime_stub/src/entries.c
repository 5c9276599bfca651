/* entries.c: runs of a bundle's models. */
#include <inttypes.h>
#include <string.h>

#include "device.h"

static int32_t count_extents(const packager_tensor_info_t *infos, int32_t count) {
  int32_t extents = 0;
  for (int32_t i = 0; i < count; ++i) extents += infos[i].ndim;
  return extents;
}

static void raise_to(int32_t *most, int32_t count) {
  if (*most < count) *most = count;
}

pk_most_t pk_most(void) {
  pk_most_t most = {0, 0, 0, 0, 0, 0, 0};
  for (int32_t i = 0; i < pk_model.num_entries; ++i) {
    const pk_entry_t *entry = &pk_model.entries[i];
    raise_to(&most.inputs, entry->num_inputs);
    raise_to(&most.outputs, entry->num_outputs);
    raise_to(&most.tensors, entry->num_inputs + entry->num_outputs);
    const pk_entry_t *variants = entry->variants ? entry->variants : entry;
    for (int32_t n = 0; n < (entry->variants ? entry->num_variants : 1); ++n) {
      int32_t segments = variants[n].num_segments > 0 ? variants[n].num_segments : 1;
      raise_to(&most.dims, variants[n].num_dims + variants[n].num_extents);
      raise_to(&most.segments, segments);
      most.graphs += segments;
    }
    raise_to(&most.extents,
             count_extents(entry->inputs, entry->num_inputs) + count_extents(entry->outputs, entry->num_outputs));
  }
  return most;
}

static void write_static_extents(int64_t *extents, const packager_tensor_info_t *infos, int32_t count) {
  for (int32_t i = 0; i < count; extents += infos[i++].ndim) {
    for (int32_t axis = 0; axis < infos[i].ndim; ++axis) extents[axis] = infos[i].shape[axis];
  }
}

/* Extents are written by each run where they depend on dims. */
void pk_enter_entry(packager_session_t *session, const pk_entry_t *entry) {
  if (session->entry == entry) return;
  session->entry = entry;
  session->shaped = 0;
  session->call.extents = session->dims + entry->num_dims;
  if (entry->num_dims > 0 || entry->num_extents > 0) return;
  write_static_extents(session->extents, entry->inputs, entry->num_inputs);
  write_static_extents(session->extents + count_extents(entry->inputs, entry->num_inputs), entry->outputs,
                       entry->num_outputs);
}

const char *pk_call_name(const packager_session_t *session, int32_t number) {
  const char *name = session->entry->call_names;
  while (--number > 0) name += strlen(name) + 1;
  return name;
}

int32_t pk_fail_step(packager_session_t *session, int32_t failed) {
  const pk_entry_t *entry = session->entry;
  const int64_t *refused = session->refused;
  if (failed == PK_OUTSIDE) {
    return pk_fail(session, PACKAGER_ERROR_SHAPE,
                   "a shape that the run computes is not possible: %s is %" PRId64 ", expected 0..%" PRId64,
                   entry->extents[refused[0]], refused[1], refused[2]);
  }
  if (failed == PK_BROKEN) return pk_fail_condition(session, entry->conditions[refused[0]], refused[1], refused[2]);
  return pk_fail(session, PACKAGER_ERROR_KERNEL, "call %" PRId32 " (%s) reported failure", failed,
                 pk_call_name(session, failed));
}

/* A tensor's data are compact, so that its strides follow from its shape. */
static void write_shape(const packager_tensor_info_t *info, const int64_t *extents, const DLTensor *tensor) {
  int64_t stride = 1;
  for (int32_t axis = info->ndim - 1; axis >= 0; --axis) {
    if (tensor->shape[axis] != extents[axis]) tensor->shape[axis] = extents[axis];
    if (tensor->strides && tensor->strides[axis] != stride) tensor->strides[axis] = stride;
    stride *= extents[axis];
  }
}

void pk_write_shapes(packager_session_t *session, DLTensor *const *outputs) {
  const pk_entry_t *entry = session->entry;
  entry->shapes(session->dims, session->extents);
  const int64_t *extents = session->extents + count_extents(entry->inputs, entry->num_inputs);
  for (int32_t i = 0; i < entry->num_outputs; extents += entry->outputs[i++].ndim) {
    write_shape(&entry->outputs[i], extents, outputs[i]);
  }
}

int32_t pk_enter(packager_session_t *session, const char *function) {
  if (!session) return pk_fail(NULL, PACKAGER_ERROR_ARGUMENT, "%s: session is NULL", function);
  if (atomic_exchange_explicit(&session->busy, 1, memory_order_acquire)) {
    return pk_fail(NULL, PACKAGER_ERROR_BUSY, "%s: the session is in use by another thread", function);
  }
  return PACKAGER_OK;
}

int32_t pk_leave(packager_session_t *session, int32_t status) {
  atomic_store_explicit(&session->busy, 0, memory_order_release);
  return status;
}

/* Switches to an entry, or to its variant for these inputs. */
static inline int32_t enter_entry(packager_session_t *session, const pk_entry_t *entry, const DLTensor *const *inputs,
                                  int32_t num_inputs) {
  int32_t status = entry->variants ? pk_choose_variant(session, &entry, inputs, num_inputs) : PACKAGER_OK;
  if (!status) pk_enter_entry(session, entry);
  return status;
}

static inline int32_t check_tensors(packager_session_t *session, const DLTensor *const *inputs, int32_t num_inputs,
                                    DLTensor *const *outputs, int32_t num_outputs) {
  int32_t status = pk_check_inputs(session, inputs, num_inputs);
  return status ? status : pk_check_memory(session, inputs, outputs, num_outputs);
}

int32_t pk_entry_run(packager_session_t *session, const pk_entry_t *entry, const DLTensor *const *inputs,
                     int32_t num_inputs, DLTensor *const *outputs, int32_t num_outputs, void *stream) {
  int32_t status = pk_enter(session, "session_run");
  if (status) return status;
  status = enter_entry(session, entry, inputs, num_inputs);
  if (!status) status = check_tensors(session, inputs, num_inputs, outputs, num_outputs);
  if (!status) status = pk_device_run(session, inputs, outputs, stream);
  if (!status && session->entry->num_extents > 0) pk_write_shapes(session, outputs);
  return pk_leave(session, status);
}

int32_t pk_session_run(packager_session_t *session, const DLTensor *const *inputs, int32_t num_inputs,
                       DLTensor *const *outputs, int32_t num_outputs, void *stream) {
  return pk_entry_run(session, pk_model.entries, inputs, num_inputs, outputs, num_outputs, stream);
}

int32_t pk_entry_profile(packager_session_t *session, const pk_entry_t *entry, const DLTensor *const *inputs,
                         int32_t num_inputs, DLTensor *const *outputs, int32_t num_outputs, packager_profile_fn *report,
                         void *context) {
  int32_t status = pk_enter(session, "session_profile");
  if (status) return status;
  if (!report) {
    return pk_leave(session, pk_fail(session, PACKAGER_ERROR_ARGUMENT, "session_profile: report is NULL"));
  }
  status = enter_entry(session, entry, inputs, num_inputs);
  if (!status) status = check_tensors(session, inputs, num_inputs, outputs, num_outputs);
  if (!status) status = pk_device_profile(session, inputs, outputs, report, context);
  if (!status && session->entry->num_extents > 0) pk_write_shapes(session, outputs);
  return pk_leave(session, status);
}

int32_t pk_session_profile(packager_session_t *session, const DLTensor *const *inputs, int32_t num_inputs,
                           DLTensor *const *outputs, int32_t num_outputs, packager_profile_fn *report, void *context) {
  return pk_entry_profile(session, pk_model.entries, inputs, num_inputs, outputs, num_outputs, report, context);
}

int32_t pk_entry_output_shape(packager_session_t *session, const pk_entry_t *entry, const DLTensor *const *inputs,
                              int32_t num_inputs, int32_t output, int64_t *shape) {
  int32_t status = pk_enter(session, "session_output_shape");
  if (status) return status;
  if (output < 0 || output >= entry->num_outputs) {
    return pk_leave(session,
                    pk_fail(session, PACKAGER_ERROR_ARGUMENT, "there is no output %" PRId32 ", expected 0..%" PRId32,
                            output, entry->num_outputs - 1));
  }
  int32_t ndim = entry->outputs[output].ndim;
  if (!shape && ndim > 0) {
    return pk_leave(session, pk_fail(session, PACKAGER_ERROR_ARGUMENT, "session_output_shape: shape is NULL"));
  }
  status = enter_entry(session, entry, inputs, num_inputs);
  if (!status) status = pk_check_inputs(session, inputs, num_inputs);
  if (status) return pk_leave(session, status);
  const int64_t *extents = session->extents + count_extents(entry->inputs, entry->num_inputs);
  extents += count_extents(entry->outputs, output);
  for (int32_t axis = 0; axis < ndim; ++axis) shape[axis] = extents[axis];
  return pk_leave(session, status);
}

int32_t pk_session_output_shape(packager_session_t *session, const DLTensor *const *inputs, int32_t num_inputs,
                                int32_t output, int64_t *shape) {
  return pk_entry_output_shape(session, pk_model.entries, inputs, num_inputs, output, shape);
}
