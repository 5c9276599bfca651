/* staging.c: copies of tensors that kernels cannot access in place: those in host memory, and misaligned ones on the
 * device. Buffers are allocated on first use, and kept. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "gpu.h"

#define LEAST_BYTES 4096

static int is_host(const DLTensor *tensor) {
  return (int)tensor->device.device_type == kDLCPU || (int)tensor->device.device_type == kDLCUDAHost;
}
static int is_pageable(const DLTensor *tensor) { return (int)tensor->device.device_type == kDLCPU; }
static int is_aligned(const void *data) { return (uintptr_t)data % PK_TENSOR_ALIGNMENT == 0; }

static CUdeviceptr address(const void *memory) { return (CUdeviceptr)(uintptr_t)memory; }

/* Rounds up to powers of two, so that slowly growing sizes do not reallocate each time. */
static uint64_t room_for(uint64_t bytes) {
  uint64_t room = LEAST_BYTES;
  while (room < bytes) room *= 2;
  return room;
}

static int32_t fail_pinned(packager_session_t *session, CUresult result, uint64_t bytes) {
  char what[128];
  snprintf(what, sizeof what, "could not allocate %" PRIu64 " bytes of pinned host memory for a tensor", bytes);
  return pk_fail_result(session, PACKAGER_ERROR_MEMORY, result, what);
}

/* Work that was not waited for may use the old buffers. */
static int32_t grow(packager_session_t *session, pk_staging_t *staging, uint64_t bytes, int pinned) {
  const pk_cuda_t *cuda = session->call.cuda;
  CUresult result = cuda->pending ? pk_driver.cuEventSynchronize(cuda->done) : 0;
  if (result) return pk_fail_run(session, result, "earlier work of the session");
  uint64_t room = room_for(bytes);
  if (staging->device_bytes < bytes) {
    if (staging->device) pk_driver.cuMemFree(staging->device);
    staging->device = staging->device_bytes = 0;
    int32_t status = pk_gpu_allocate(session, room, "a tensor", &staging->device);
    if (status) return status;
    staging->device_bytes = room;
  }
  if (pinned && staging->host_bytes < bytes) {
    if (staging->host) pk_driver.cuMemFreeHost(staging->host);
    staging->host = NULL;
    staging->host_bytes = 0;
    if ((result = pk_driver.cuMemHostAlloc(&staging->host, room, CU_MEMHOSTALLOC_PORTABLE))) {
      staging->host = NULL;
      return fail_pinned(session, result, room);
    }
    staging->host_bytes = room;
  }
  return PACKAGER_OK;
}

/* Gives a tensor of the call its place on the device: `*pointer` becomes that. */
static int32_t place(packager_session_t *session, pk_staging_t *staging, const DLTensor *tensor, void **pointer,
                     uint64_t bytes) {
  staging->caller = NULL;
  if (bytes == 0 || (!is_host(tensor) && is_aligned(*pointer))) return PACKAGER_OK;
  int pinned = is_pageable(tensor);
  if (staging->device_bytes < bytes || (pinned && staging->host_bytes < bytes)) {
    int mode = pk_relax_captures();
    int32_t status = grow(session, staging, bytes, pinned);
    pk_restore_captures(mode);
    if (status) return status;
  }
  staging->caller = *pointer;
  *pointer = (void *)(uintptr_t)staging->device;
  return PACKAGER_OK;
}

/* Pinned memory may be written again when what was copied from it has arrived. */
static CUresult wait_for_staged(pk_cuda_t *cuda) {
  if (!cuda->staging_busy) return 0;
  cuda->staging_busy = 0;
  return pk_driver.cuEventSynchronize(cuda->staged);
}

static CUresult copy_in(pk_cuda_t *cuda, const pk_staging_t *staging, const DLTensor *tensor, uint64_t bytes) {
  if (!is_host(tensor)) {
    return pk_driver.cuMemcpyDtoDAsync(staging->device, address(staging->caller), bytes, cuda->stream);
  }
  const void *source = staging->caller;
  if (is_pageable(tensor)) {
    memcpy(staging->host, source, bytes);
    source = staging->host;
  }
  return pk_driver.cuMemcpyHtoDAsync(staging->device, source, bytes, cuda->stream);
}

int32_t pk_stage_inputs(packager_session_t *session, const DLTensor *const *inputs, DLTensor *const *outputs) {
  const pk_entry_t *entry = session->entry;
  pk_cuda_t *cuda = session->call.cuda;
  pk_staging_t *staging = cuda->staging;
  int32_t status = PACKAGER_OK;
  int pageable = 0;
  for (int32_t i = 0; !status && i < entry->num_inputs; ++i) {
    status = place(session, &staging[i], inputs[i], &session->inputs[i], session->input_bytes[i]);
    pageable |= staging[i].caller && is_pageable(inputs[i]);
  }
  staging += entry->num_inputs;
  for (int32_t i = 0; !status && i < entry->num_outputs; ++i) {
    status = place(session, &staging[i], outputs[i], &session->outputs[i], session->output_bytes[i]);
  }
  if (status) return status;
  CUresult result = pageable ? wait_for_staged(cuda) : 0;
  for (int32_t i = 0; !result && i < entry->num_inputs; ++i) {
    if (!cuda->staging[i].caller) continue;
    result = copy_in(cuda, &cuda->staging[i], inputs[i], session->input_bytes[i]);
  }
  if (!result && pageable && !(result = pk_driver.cuEventRecord(cuda->staged, cuda->stream))) cuda->staging_busy = 1;
  return result ? pk_fail_run(session, result, "inputs cannot be copied to the device") : PACKAGER_OK;
}

int32_t pk_stage_outputs(packager_session_t *session, DLTensor *const *outputs, int *waits) {
  const pk_entry_t *entry = session->entry;
  pk_cuda_t *cuda = session->call.cuda;
  const pk_staging_t *staging = cuda->staging + entry->num_inputs;
  CUresult result = 0;
  for (int32_t i = 0; !result && i < entry->num_outputs; ++i) {
    if (!staging[i].caller) continue;
    uint64_t bytes = session->output_bytes[i];
    if (!is_host(outputs[i])) {
      result = pk_driver.cuMemcpyDtoDAsync(address(staging[i].caller), staging[i].device, bytes, cuda->stream);
      continue;
    }
    *waits |= is_pageable(outputs[i]);
    void *target = is_pageable(outputs[i]) ? staging[i].host : staging[i].caller;
    result = pk_driver.cuMemcpyDtoHAsync(target, staging[i].device, bytes, cuda->stream);
  }
  return result ? pk_fail_run(session, result, "outputs cannot be copied from the device") : PACKAGER_OK;
}

void pk_unstage_outputs(packager_session_t *session, DLTensor *const *outputs) {
  const pk_entry_t *entry = session->entry;
  const pk_staging_t *staging = session->call.cuda->staging + entry->num_inputs;
  for (int32_t i = 0; i < entry->num_outputs; ++i) {
    if (!staging[i].caller || !is_pageable(outputs[i])) continue;
    memcpy(staging[i].caller, staging[i].host, session->output_bytes[i]);
  }
}

static int32_t check_capturable(packager_session_t *session, const char *role, const char *name, const DLTensor *tensor,
                                const void *data, uint64_t bytes) {
  if (bytes == 0) return PACKAGER_OK;
  if (is_host(tensor)) {
    return pk_fail(session, PACKAGER_ERROR_DEVICE,
                   "%s '%s': in host memory, expected device memory: the stream is being captured", role, name);
  }
  if (is_aligned(data)) return PACKAGER_OK;
  return pk_fail(session, PACKAGER_ERROR_ALIGNMENT,
                 "%s '%s': not aligned to %d bytes, as it must be while the stream is being captured", role, name,
                 PK_TENSOR_ALIGNMENT);
}

/* The caller's graph would read and write buffers that are the session's, whenever it is launched. */
int32_t pk_check_capturable(packager_session_t *session, const DLTensor *const *inputs, DLTensor *const *outputs) {
  const pk_entry_t *entry = session->entry;
  int32_t status = PACKAGER_OK;
  for (int32_t i = 0; !status && i < entry->num_inputs; ++i) {
    status = check_capturable(session, "input", entry->inputs[i].name, inputs[i], session->inputs[i],
                              session->input_bytes[i]);
  }
  for (int32_t i = 0; !status && i < entry->num_outputs; ++i) {
    status = check_capturable(session, "output", entry->outputs[i].name, outputs[i], session->outputs[i],
                              session->output_bytes[i]);
  }
  return status;
}

void pk_staging_release(pk_cuda_t *cuda) {
  int32_t tensors = pk_most().tensors;
  for (int32_t i = 0; i < tensors; ++i) {
    if (cuda->staging[i].device) pk_driver.cuMemFree(cuda->staging[i].device);
    if (cuda->staging[i].host) pk_driver.cuMemFreeHost(cuda->staging[i].host);
  }
}
