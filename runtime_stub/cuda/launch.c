/* launch.c: the API that primitive functions call (packager_cuda.h). */
#include <string.h>

#include "gpu.h"

int32_t pk_fail_launch(pk_cuda_t *cuda, int32_t kernel, CUresult result) {
  cuda->failed = kernel;
  return cuda->result = result;
}

void pk_cuda_step(pk_cuda_t *cuda, int32_t number) { cuda->step = number; }

void pk_pass(pk_parameters_t *parameters, const pk_work_t *work) {
  void *arguments = (void *)(uintptr_t)work->arguments;
  parameters->bytes = work->bytes;
  parameters->one[0] = arguments;
  memcpy(parameters->buffer,
         (void *[]){CU_LAUNCH_PARAM_BUFFER_POINTER, arguments, CU_LAUNCH_PARAM_BUFFER_SIZE, &parameters->bytes,
                    CU_LAUNCH_PARAM_END},
         sizeof parameters->buffer);
  parameters->params = work->is_one ? parameters->one : NULL;
  parameters->extra = work->is_one ? NULL : parameters->buffer;
}

/* The kernel may be started while the one before it ends, once all blocks of that have run
 * griddepcontrol.launch_dependents or ended: it waits itself until that one has ended and its writes are seen. */
static CUresult launch_overlapping(const pk_cuda_t *cuda, const pk_work_t *work, const pk_parameters_t *passed) {
  static const pk_launch_attribute_t programmatic = {CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION, 0, {1}};
  const pk_cuda_launch_t *launch = work->launch;
  const pk_launch_config_t config = {
      .grid = {launch->grid[0], launch->grid[1], launch->grid[2]},
      .block = {launch->block[0], launch->block[1], launch->block[2]},
      .shared_bytes = launch->shared_bytes,
      .stream = cuda->stream,
      .attributes = &programmatic,
      .num_attributes = 1,
  };
  return pk_driver.cuLaunchKernelEx(&config, cuda->kernels[work->kernel].function, passed->params, passed->extra);
}

/* A launch is programmatic only where it follows a kernel of the same run. The driver lets no kernel overlap a copy;
 * but a kernel of the caller's may let others start without having waited itself, and what it runs beside would still
 * be going on when it has ended. All kernels of a run that may overlap wait, so that what comes after one of them,
 * waiting or not, comes after all before. Where launches are waited for or timed, none overlaps. */
static CUresult launch_kernel(pk_cuda_t *cuda, const pk_work_t *work) {
  pk_parameters_t passed;
  pk_pass(&passed, work);
  const pk_kernel_t *kernel = &cuda->kernels[work->kernel];
  int overlaps = (work->launch->flags & PK_CUDA_PROGRAMMATIC) && kernel->overlaps && cuda->chained;
  cuda->chained = cuda->mode == PK_LAUNCH || cuda->mode == PK_CAPTURE;
  if (overlaps) return launch_overlapping(cuda, work, &passed);
  const uint32_t *grid = work->launch->grid, *block = work->launch->block;
  return pk_driver.cuLaunchKernel(kernel->function, grid[0], grid[1], grid[2], block[0], block[1], block[2],
                                  work->launch->shared_bytes, cuda->stream, passed.params, passed.extra);
}

static CUresult enqueue(pk_cuda_t *cuda, const pk_work_t *work) {
  if (work->kernel >= 0) return launch_kernel(cuda, work);
  if (work->kernel == PK_OPAQUE) return pk_opaque_enqueue(cuda, work);
  const pk_copy_t *copy = work->arguments;
  cuda->chained = 0;
  return pk_driver.cuMemcpyDtoDAsync((CUdeviceptr)(uintptr_t)copy->target, (CUdeviceptr)(uintptr_t)copy->source,
                                     copy->bytes, cuda->stream);
}

static CUresult wait(pk_cuda_t *cuda) {
  CUresult result = pk_driver.cuStreamSynchronize(cuda->stream);
  cuda->caught = result != 0;
  return result;
}

CUresult pk_perform(pk_cuda_t *cuda, const pk_work_t *work) {
  if (cuda->mode == PK_COMPARE) return pk_graph_compare(cuda, work);
  CUresult result = cuda->mode == PK_PROFILE ? pk_measure_begin(cuda) : 0;
  if (!result) result = enqueue(cuda, work);
  if (result) return result;
  switch (cuda->mode) {
    case PK_WAIT:
      return wait(cuda);
    case PK_CAPTURE:
      return pk_graph_remember(cuda, work);
    case PK_PROFILE:
      return pk_measure_end(cuda);
    default:
      return 0;
  }
}

int32_t pk_launch_work(pk_cuda_t *cuda, const pk_work_t *work) {
  const uint32_t *grid = work->launch->grid;
  if (!grid[0] || !grid[1] || !grid[2] || cuda->mode == PK_PREPARE) return 0;
  if (!cuda->kernels[work->kernel].function) return pk_fail_launch(cuda, work->kernel, PK_NOT_LOADED);
  CUresult result = cuda->mode == PK_LAUNCH ? launch_kernel(cuda, work) : pk_perform(cuda, work);
  if (result) cuda->result = result;
  return result;
}

int32_t pk_cuda_launch(pk_cuda_t *cuda, int32_t kernel, const pk_cuda_launch_t *launch, const void *arguments,
                       uint64_t bytes) {
  const pk_work_t work = {kernel, launch, arguments, bytes, 0, NULL};
  return pk_launch_work(cuda, &work);
}

const pk_cuda_device_t *pk_cuda_device(const pk_cuda_t *cuda) { return &cuda->gpu->facts; }

int32_t pk_cuda_copy(pk_cuda_t *cuda, void *target, const void *source, uint64_t bytes) {
  static const pk_cuda_launch_t none;
  if (bytes == 0 || target == source || cuda->mode == PK_PREPARE) return 0;
  const pk_copy_t copy = {target, source, bytes};
  const pk_work_t work = {PK_COPY, &none, &copy, sizeof copy, 0, NULL};
  CUresult result = pk_perform(cuda, &work);
  if (result) cuda->result = result;
  return result;
}

/* Copies to memory that is not pinned would each wait for the device. */
static CUresult pin_extents(pk_cuda_t *cuda) {
  if (cuda->extents) return 0;
  int mode = pk_relax_captures();
  CUresult result =
      pk_driver.cuMemHostAlloc((void **)&cuda->extents, PK_MAX_READS * sizeof(int64_t), CU_MEMHOSTALLOC_PORTABLE);
  pk_restore_captures(mode);
  if (result) cuda->extents = NULL;
  return result;
}

int32_t pk_cuda_extents(pk_cuda_t *cuda, int32_t count, const void *const *sources, int64_t *const *extents) {
  if (cuda->mode == PK_PREPARE) return pk_fail_launch(cuda, PK_COPY, PK_UNKNOWN);
  CUresult result = pin_extents(cuda);
  for (int32_t first = 0; !result && first < count; first += PK_MAX_READS) {
    int32_t some = count - first < PK_MAX_READS ? count - first : PK_MAX_READS;
    for (int32_t i = 0; !result && i < some; ++i) {
      CUdeviceptr source = (CUdeviceptr)(uintptr_t)sources[first + i];
      result = pk_driver.cuMemcpyDtoHAsync(&cuda->extents[i], source, sizeof(int64_t), cuda->stream);
    }
    if (!result) result = pk_driver.cuStreamSynchronize(cuda->stream);
    for (int32_t i = 0; !result && i < some; ++i) *extents[first + i] = cuda->extents[i];
  }
  cuda->chained = 0;
  return result ? pk_fail_launch(cuda, PK_COPY, result) : 0;
}

int32_t pk_cuda_store(pk_cuda_t *cuda, void *target, int64_t value) {
  if (cuda->mode == PK_PREPARE) return 0;
  CUresult result = pk_driver.cuMemcpyHtoDAsync((CUdeviceptr)(uintptr_t)target, &value, sizeof value, cuda->stream);
  cuda->chained = 0;
  return result ? pk_fail_launch(cuda, PK_COPY, result) : 0;
}
