/* device.c: the CUDA device: a session's own part, and constants that are swapped. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

_Static_assert(sizeof(pk_copy_node_t) == 200, "layout of CUDA_MEMCPY3D");
_Static_assert(sizeof(pk_kernel_node_t) == 56, "layout of CUDA_KERNEL_NODE_PARAMS_v1");
_Static_assert(sizeof(pk_launch_config_t) == 56, "layout of CUlaunchConfig");
_Static_assert(sizeof(pk_launch_attribute_t) == 72, "layout of CUlaunchAttribute");

static int32_t check_arena(const packager_session_options_t *options) {
  uint64_t bytes = options->device_arena_bytes;
  if (!options->device_arena) {
    if (!bytes) return PACKAGER_OK;
    return pk_fail(NULL, PACKAGER_ERROR_ARGUMENT,
                   "options: device_arena_bytes is %" PRIu64 ", but device_arena is NULL", bytes);
  }
  if ((uintptr_t)options->device_arena % PK_ARENA_ALIGNMENT) {
    return pk_fail(NULL, PACKAGER_ERROR_ARGUMENT, "options: device_arena is not aligned to %d bytes",
                   PK_ARENA_ALIGNMENT);
  }
  if (bytes >= pk_model.arena_bytes) return PACKAGER_OK;
  return pk_fail(NULL, PACKAGER_ERROR_ARGUMENT,
                 "options: device_arena_bytes is %" PRIu64 ", expected %" PRIu64 " or more", bytes,
                 pk_model.arena_bytes);
}

int32_t pk_device_check_options(const packager_session_options_t *options) {
  if (options->device_index < 0) {
    return pk_fail(NULL, PACKAGER_ERROR_ARGUMENT, "options: device_index is %" PRId32 ", expected 0 or more",
                   options->device_index);
  }
  if (options->graph < PACKAGER_GRAPH_AUTO || options->graph > PACKAGER_GRAPH_OFF) {
    return pk_fail(NULL, PACKAGER_ERROR_ARGUMENT,
                   "options: graph is %" PRId32 ", expected a packager_graph_mode_t, 0..2", options->graph);
  }
  if (options->launch_blocking != 0 && options->launch_blocking != 1) {
    return pk_fail(NULL, PACKAGER_ERROR_ARGUMENT, "options: launch_blocking is %" PRId32 ", expected 0 or 1",
                   options->launch_blocking);
  }
  if (options->launch_blocking && options->graph == PACKAGER_GRAPH_ON) {
    return pk_fail(NULL, PACKAGER_ERROR_ARGUMENT,
                   "options: launch_blocking and PACKAGER_GRAPH_ON are given: a graph cannot be waited for in parts");
  }
  return check_arena(options);
}

/* Hands out the parts of the session's block; see pk_device_bytes(). */
typedef struct {
  uint8_t *next;
  uint64_t bytes;
} parts_t;

static void *take(parts_t *parts, uint64_t bytes) {
  uint8_t *part = parts->next;
  bytes = (bytes + 7) & ~(uint64_t)7;
  parts->bytes += bytes;
  if (part) parts->next = part + bytes;
  return part;
}

/* Runs, and segments, of static shapes need one graph each. */
static int32_t count_graphs(void) {
  pk_most_t most = pk_most();
  if (most.dims == 0 && most.graphs <= PK_MAX_GRAPHS) return most.graphs;
  return PK_MAX_GRAPHS * (most.segments < PK_MAX_SEGMENTS ? most.segments : PK_MAX_SEGMENTS);
}

static pk_cuda_t *lay_out(parts_t *parts) {
  pk_most_t most = pk_most();
  uint64_t tensors = (uint64_t)most.tensors;
  int32_t graphs = count_graphs();
  pk_cuda_t *cuda = take(parts, sizeof *cuda);
  pk_staging_t *staging = take(parts, tensors * sizeof *staging);
  pk_graph_t *graph = take(parts, (uint64_t)graphs * sizeof *graph);
  char *said = take(parts, PK_SAID_BYTES);
  if (cuda) {
    cuda->said = said;
    cuda->staging = staging;
    cuda->graphs = graph;
    cuda->num_graphs = graphs;
  }
  for (int32_t i = 0; i < graphs; ++i) {
    int64_t *dims = take(parts, (uint64_t)most.dims * sizeof *dims);
    void **pointers = take(parts, tensors * sizeof *pointers);
    if (!cuda) continue;
    graph[i].dims = dims;
    graph[i].pointers = pointers;
  }
  return cuda;
}

uint64_t pk_device_bytes(void) {
  parts_t parts = {NULL, 0};
  lay_out(&parts);
  return parts.bytes;
}

/* From the device's pool where it has one, so that a session costs little after the first. */
static int32_t allocate_arena(pk_cuda_t *cuda) {
  uint64_t bytes = pk_model.arena_bytes;
  if (!cuda->gpu->has_pools) return pk_gpu_allocate(NULL, bytes, "the arena", &cuda->arena);
  CUresult result = pk_driver.cuMemAllocAsync(&cuda->arena, bytes, cuda->own);
  if (result) {
    cuda->arena = 0;
  } else {
    result = pk_driver.cuStreamSynchronize(cuda->own); /* runs may be on other streams */
  }
  if (!result) return PACKAGER_OK;
  char text[128];
  snprintf(text, sizeof text, "could not allocate %" PRIu64 " bytes of device memory for the arena", bytes);
  return pk_fail_result(NULL, PACKAGER_ERROR_DRIVER, result, text);
}

static int32_t fill(pk_cuda_t *cuda, const packager_session_options_t *options) {
  CUresult result = pk_driver.cuStreamCreate(&cuda->own, CU_STREAM_NON_BLOCKING);
  if (!result) result = pk_driver.cuStreamGetId(cuda->own, &cuda->own_identity);
  if (!result) result = pk_driver.cuEventCreate(&cuda->done, CU_EVENT_DISABLE_TIMING);
  if (!result) result = pk_driver.cuEventCreate(&cuda->staged, CU_EVENT_DISABLE_TIMING);
  if (result) {
    return pk_fail_result(NULL, PACKAGER_ERROR_DRIVER, result, "a stream and its events cannot be created");
  }
  int32_t status = PACKAGER_OK;
  if (pk_model.state_bytes > 0) status = pk_gpu_allocate(NULL, pk_model.state_bytes, "the states", &cuda->states);
  if (status || options->device_arena || pk_model.arena_bytes == 0) return status;
  return allocate_arena(cuda);
}

/* In the device's context. Results are not looked at: after a fault everything fails, and goes with the context. */
static void empty(pk_cuda_t *cuda) {
  pk_graphs_release(cuda);
  pk_kept_release_own(cuda);
  pk_filled_release(cuda);
  pk_staging_release(cuda);
  if (cuda->arena && cuda->gpu->has_pools) {
    pk_driver.cuMemFreeAsync(cuda->arena, cuda->own);
    pk_driver.cuStreamSynchronize(cuda->own); /* only then the pool gives it back */
  } else if (cuda->arena) {
    pk_driver.cuMemFree(cuda->arena);
  }
  if (cuda->states) pk_driver.cuMemFree(cuda->states);
  if (cuda->extents) pk_driver.cuMemFreeHost(cuda->extents);
  if (cuda->opaque) pk_driver.cuStreamDestroy(cuda->opaque);
  if (cuda->captures) pk_driver.cuStreamDestroy(cuda->captures);
  if (cuda->staged) pk_driver.cuEventDestroy(cuda->staged);
  if (cuda->done) pk_driver.cuEventDestroy(cuda->done);
  if (cuda->own) pk_driver.cuStreamDestroy(cuda->own);
  free(cuda->measures);
}

static int32_t acquire(packager_session_t *session, const packager_session_options_t *options) {
  memset(session->device, 0, pk_device_bytes());
  parts_t parts = {session->device, 0};
  pk_cuda_t *cuda = lay_out(&parts);
  int32_t status = pk_gpu_acquire(options->device_index, &cuda->gpu);
  if (status) return status;
  CUresult result = pk_gpu_enter(cuda->gpu);
  if (result) {
    status = pk_fail_result(NULL, PACKAGER_ERROR_DRIVER, result, "the device's context cannot be made current");
  } else {
    if ((status = fill(cuda, options))) empty(cuda);
    pk_gpu_leave();
  }
  if (status) {
    pk_gpu_release(cuda->gpu);
    return status;
  }
  cuda->kernels = cuda->gpu->kernels;
  cuda->blocking = options->launch_blocking;
  cuda->graph_mode = options->graph;
  session->call.cuda = cuda;
  cuda->session = session;
  session->call.threads = 1;
  session->call.arena = options->device_arena ? options->device_arena : (uint8_t *)(uintptr_t)cuda->arena;
  session->call.states = (uint8_t *)(uintptr_t)cuda->states;
  pk_constants_start(session, (const uint8_t *)(uintptr_t)cuda->gpu->constants);
  return PACKAGER_OK;
}

int32_t pk_device_acquire(packager_session_t *session, const packager_session_options_t *options) {
  int32_t status = pk_driver_open();
  if (status) return status;
  int mode = pk_relax_captures();
  status = acquire(session, options);
  pk_restore_captures(mode);
  if (status || !pk_model.cuda->opaque) return status;
  if ((status = pk_prepare(session))) pk_device_release(session);
  return status;
}

void pk_device_finish(packager_session_t *session) {
  const pk_cuda_t *cuda = session->call.cuda;
  if (pk_gpu_enter(cuda->gpu)) return;
  int mode = pk_relax_captures();
  pk_driver.cuEventSynchronize(cuda->done);
  pk_driver.cuStreamSynchronize(cuda->own); /* what the host program has enqueued there */
  pk_restore_captures(mode);
  pk_gpu_leave();
}

void pk_device_release(packager_session_t *session) {
  pk_cuda_t *cuda = session->call.cuda;
  int mode = pk_relax_captures();
  int entered = !pk_gpu_enter(cuda->gpu);
  empty(cuda);
  if (entered) pk_gpu_leave();
  pk_gpu_release(cuda->gpu);
  pk_restore_captures(mode);
}

void pk_device_describe(const packager_session_t *session, char text[PK_DEVICE_TEXT_BYTES]) {
  const pk_gpu_t *gpu = session->call.cuda->gpu;
  snprintf(text, PK_DEVICE_TEXT_BYTES, "%s (sm_%" PRId32 "), device %" PRId32, gpu->name, gpu->facts.arch, gpu->index);
}

int32_t pk_device_check_tensor(packager_session_t *session, const char *role, const char *name, DLDevice device) {
  int type = (int)device.device_type;
  if (type == kDLCUDAHost) return PACKAGER_OK;
  if (!session) {
    return pk_fail(NULL, PACKAGER_ERROR_DEVICE,
                   "%s '%s': device type is %d, expected %d (CPU): values are copied from "
                   "host memory",
                   role, name, type, kDLCPU);
  }
  if (type == PK_DL_CUDA_MANAGED) return PACKAGER_OK; /* of no device in particular */
  int32_t index = session->call.cuda->gpu->index;
  if (type != kDLCUDA) {
    return pk_fail(session, PACKAGER_ERROR_DEVICE, "%s '%s': device type is %d, expected %d (CUDA) or %d (CPU)", role,
                   name, type, kDLCUDA, kDLCPU);
  }
  if (device.device_id == index) return PACKAGER_OK;
  return pk_fail(session, PACKAGER_ERROR_DEVICE,
                 "%s '%s': on CUDA device %" PRId32 ", expected device %" PRId32 ", the session's", role, name,
                 device.device_id, index);
}

void *pk_device_stream(const packager_session_t *session) { return session->call.cuda->own; }

static int32_t enter(const pk_cuda_t *cuda) {
  CUresult result = pk_gpu_enter(cuda->gpu);
  if (!result) return PACKAGER_OK;
  return pk_fail_result(NULL, PACKAGER_ERROR_DRIVER, result, "the device's context cannot be made current");
}

int32_t pk_device_allocate(packager_session_t *session, uint64_t bytes, const char *what, void **memory) {
  const pk_cuda_t *cuda = session->call.cuda;
  CUdeviceptr allocated;
  int32_t status = enter(cuda);
  if (status) return status;
  int mode = pk_relax_captures();
  status = pk_gpu_allocate(NULL, bytes, what, &allocated);
  pk_restore_captures(mode);
  pk_gpu_leave();
  if (!status) *memory = (void *)(uintptr_t)allocated;
  return status;
}

/* A run that was not waited for may read it still. */
void pk_device_free(packager_session_t *session, void *memory) {
  const pk_cuda_t *cuda = session->call.cuda;
  if (enter(cuda)) return; /* the context is gone, and its memory with it */
  int mode = pk_relax_captures();
  pk_driver.cuEventSynchronize(cuda->done);
  pk_driver.cuMemFree((CUdeviceptr)(uintptr_t)memory);
  pk_restore_captures(mode);
  pk_gpu_leave();
}

/* No run that begins from now on reads `target` before it is published; one that is not done yet may. */
static CUresult upload(const pk_cuda_t *cuda, void *target, const void *source, uint64_t bytes) {
  int mode = pk_relax_captures();
  CUresult result = pk_driver.cuEventSynchronize(cuda->done);
  CUstream stream = cuda->gpu->uploads;
  if (!result) result = pk_driver.cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)target, source, bytes, stream);
  if (!result) result = pk_driver.cuStreamSynchronize(stream);
  pk_restore_captures(mode);
  return result;
}

int32_t pk_device_write_constant(packager_session_t *session, uint8_t *target, const pk_slot_t *slot,
                                 const DLTensor *value) {
  const pk_cuda_t *cuda = session->call.cuda;
  void *gathered;
  int32_t status = pk_allocate(&session->allocator, slot->nbytes, "a constant", &gathered);
  if (status) return status;
  pk_constants_gather(gathered, slot, value);
  if (!(status = enter(cuda))) {
    CUresult result = upload(cuda, target, gathered, slot->nbytes);
    if (result) {
      status = pk_fail_result(NULL, PACKAGER_ERROR_DRIVER, result, "a constant cannot be copied to the device");
    }
    pk_gpu_leave();
  }
  pk_release(&session->allocator, gathered);
  return status;
}
