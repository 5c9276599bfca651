/* gpu.c: what the sessions on one device share: the primary context, loaded modules, constants. */
#include "gpu.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PROGRAMMATIC_ARCH 90      /* the first that has griddepcontrol */
#define STATIC_SHARED_BYTES 49152 /* more shared memory than this has to be asked for, function by function */

static pk_gpu_t *gpus; /* under pk_lock() */

static int32_t fail_load(const pk_gpu_t *gpu, int32_t module, CUresult result) {
  char what[256];
  snprintf(what, sizeof what, "module %" PRId32 " of %" PRId32 " cannot be loaded on %s (sm_%" PRId32 ")", module + 1,
           pk_model.cuda->num_modules, gpu->name, gpu->facts.arch);
  switch (result) {
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
      return pk_fail(NULL, PACKAGER_ERROR_MACHINE,
                     "%s is of sm_%" PRId32 ", which the bundle has no code for: it has %s", gpu->name, gpu->facts.arch,
                     pk_model.cuda->code);
    case CUDA_ERROR_INVALID_PTX:
    case CUDA_ERROR_JIT_COMPILER_NOT_FOUND:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION: {
      int version = 0;
      char text[PK_RESULT_BYTES];
      pk_driver.cuDriverGetVersion(&version);
      pk_result_text(result, text);
      return pk_fail(NULL, PACKAGER_ERROR_DRIVER,
                     "%s (sm_%" PRId32
                     ") needs the bundle's PTX (it has %s), which the driver of CUDA " PK_VERSION_FORMAT
                     " cannot compile: %s",
                     gpu->name, gpu->facts.arch, pk_model.cuda->code, PK_VERSION_PARTS(version), text);
    }
    default:
      return pk_fail_result(NULL, PACKAGER_ERROR_KERNEL, result, what);
  }
}

static int32_t fail_kernel(const char *name, CUresult result, const char *what) {
  char text[256];
  snprintf(text, sizeof text, "kernel %s: %s", name, what);
  return pk_fail_result(NULL, PACKAGER_ERROR_KERNEL, result, text);
}

/* What a fatbin has for this device may be PTX of an older architecture, in which kernels do not wait for those before
 * them: __CUDA_ARCH__ was that of the PTX when they were compiled. */
static CUresult find_overlap(const pk_gpu_t *gpu, pk_kernel_t *kernel) {
  int ptx = 0;
  if (gpu->facts.arch < PROGRAMMATIC_ARCH) return 0;
  CUresult result = pk_driver.cuFuncGetAttribute(&ptx, CU_FUNC_ATTRIBUTE_PTX_VERSION, kernel->function);
  kernel->overlaps = ptx >= PROGRAMMATIC_ARCH;
  return result;
}

/* Finds a module's kernels, and loads their code now rather than with their first launch: that would take memory and
 * time in a run, and cannot be captured by all drivers. */
static int32_t find_kernels(const pk_gpu_t *gpu, const pk_cuda_module_t *module, CUmodule loaded,
                            pk_kernel_t *kernels) {
  const char *name = module->names;
  for (int32_t i = 0; i < module->num_kernels; ++i, name += strlen(name) + 1) {
    CUresult result = pk_driver.cuModuleGetFunction(&kernels[i].function, loaded, name);
    if (result) return fail_kernel(name, result, "not found in its module");
    if (module->shared_bytes[i] > STATIC_SHARED_BYTES) {
      result = pk_driver.cuFuncSetAttribute(kernels[i].function, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                            (int)module->shared_bytes[i]);
      if (result) return fail_kernel(name, result, "it needs more shared memory than the device has");
    }
    if ((result = find_overlap(gpu, &kernels[i]))) return fail_kernel(name, result, "it cannot be asked what it is");
    if (!pk_driver.cuFuncLoad) continue;
    if ((result = pk_driver.cuFuncLoad(kernels[i].function))) return fail_kernel(name, result, "it cannot be loaded");
  }
  return PACKAGER_OK;
}

static int32_t load_modules(pk_gpu_t *gpu) {
  const pk_cuda_model_t *model = pk_model.cuda;
  uint64_t kernels = 0;
  for (int32_t i = 0; i < model->num_modules; ++i) kernels += (uint64_t)model->modules[i]->num_kernels;
  gpu->modules = calloc((uint64_t)model->num_modules + 1, sizeof *gpu->modules);
  gpu->kernels = calloc(kernels + 1, sizeof *gpu->kernels);
  if (!gpu->modules || !gpu->kernels)
    return pk_fail(NULL, PACKAGER_ERROR_MEMORY, "could not allocate a table of kernels");
  pk_kernel_t *first = gpu->kernels;
  int32_t loaded = 0;
  for (int32_t i = 0; i < model->num_modules; first += model->modules[i++]->num_kernels) {
    int32_t arch = model->modules[i]->arch;
    if (arch && arch != gpu->facts.arch) continue;
    CUresult result = pk_driver.cuModuleLoadData(&gpu->modules[i], model->modules[i]->image);
    if (result) return fail_load(gpu, i, result);
    int32_t status = find_kernels(gpu, model->modules[i], gpu->modules[i], first);
    if (status) return status;
    ++loaded;
  }
  return loaded || !model->num_modules ? PACKAGER_OK : fail_load(gpu, 0, CUDA_ERROR_NO_BINARY_FOR_GPU);
}

const char *pk_kernel_name(int32_t kernel) {
  const pk_cuda_module_t *const *module = pk_model.cuda->modules;
  for (; kernel >= (*module)->num_kernels; ++module) kernel -= (*module)->num_kernels;
  const char *name = (*module)->names;
  while (kernel-- > 0) name += strlen(name) + 1;
  return name;
}

int32_t pk_gpu_allocate(packager_session_t *session, uint64_t bytes, const char *what, CUdeviceptr *memory) {
  CUresult result = pk_driver.cuMemAlloc(memory, bytes);
  if (!result) return PACKAGER_OK;
  *memory = 0;
  char text[256];
  snprintf(text, sizeof text, "could not allocate %" PRIu64 " bytes of device memory for %s", bytes, what);
  return pk_fail_result(session, PACKAGER_ERROR_DRIVER, result, text);
}

static int32_t upload_constants(pk_gpu_t *gpu) {
  if (pk_model.constant_bytes == 0) return PACKAGER_OK;
  int32_t status = pk_gpu_allocate(NULL, pk_model.constant_bytes, "constants", &gpu->constants);
  const uint8_t *constants;
  if (status || (status = pk_weights_acquire(&constants))) return status;
  CUresult result = pk_driver.cuMemcpyHtoDAsync(gpu->constants, constants, pk_model.constant_bytes, gpu->uploads);
  if (!result) result = pk_driver.cuStreamSynchronize(gpu->uploads);
  pk_weights_release(); /* sessions read what is on the device */
  return result ? pk_fail_result(NULL, PACKAGER_ERROR_DRIVER, result, "constants cannot be copied to the device")
                : PACKAGER_OK;
}

static int32_t describe(pk_gpu_t *gpu) {
  int major = 0, minor = 0;
  CUresult result = pk_driver.cuDeviceGetName(gpu->name, sizeof gpu->name, gpu->device);
  if (!result) {
    result = pk_driver.cuDeviceGetAttribute(&major, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, gpu->device);
  }
  if (!result) {
    result = pk_driver.cuDeviceGetAttribute(&minor, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, gpu->device);
  }
  if (!result) {
    result = pk_driver.cuDeviceGetAttribute(&gpu->facts.num_sms, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, gpu->device);
  }
  if (!result) {
    result = pk_driver.cuDeviceGetAttribute(&gpu->has_pools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, gpu->device);
  }
  if (result) return pk_fail_result(NULL, PACKAGER_ERROR_DRIVER, result, "the device cannot be asked what it is");
  gpu->facts.arch = major * 10 + minor;
  return PACKAGER_OK;
}

static int32_t find_device(int32_t index, CUdevice *device) {
  int count = 0;
  CUresult result = pk_driver.cuDeviceGetCount(&count);
  if (!result && index < count) result = pk_driver.cuDeviceGet(device, index);
  if (result) return pk_fail_result(NULL, PACKAGER_ERROR_DRIVER, result, "CUDA devices cannot be listed");
  if (index < count) return PACKAGER_OK;
  return pk_fail(NULL, PACKAGER_ERROR_DRIVER, "options: device_index is %" PRId32 ", but CUDA sees %d device(s)", index,
                 count);
}

static int32_t fill_context(pk_gpu_t *gpu) {
  CUresult result = pk_gpu_enter(gpu);
  if (result) return pk_fail_result(NULL, PACKAGER_ERROR_DRIVER, result, "the device's context cannot be made current");
  result = pk_driver.cuStreamCreate(&gpu->uploads, CU_STREAM_NON_BLOCKING);
  int32_t status =
      result ? pk_fail_result(NULL, PACKAGER_ERROR_DRIVER, result, "a stream cannot be created") : load_modules(gpu);
  if (!status) status = upload_constants(gpu);
  pk_gpu_leave();
  return status;
}

static int32_t open_gpu(pk_gpu_t *gpu) {
  int32_t status = find_device(gpu->index, &gpu->device);
  if (!status) status = describe(gpu);
  if (status) return status;
  CUresult result = pk_driver.cuDevicePrimaryCtxRetain(&gpu->context, gpu->device);
  if (result) {
    gpu->context = NULL;
    return pk_fail_result(NULL, PACKAGER_ERROR_DRIVER, result, "the device's context cannot be created");
  }
  return fill_context(gpu);
}

/* Frees what there is. Results are not looked at: after a fault everything fails, and goes with the context. */
static void close_gpu(pk_gpu_t *gpu) {
  if (gpu->context && !pk_gpu_enter(gpu)) {
    pk_kept_release(gpu);
    if (gpu->constants) pk_driver.cuMemFree(gpu->constants);
    for (int32_t i = 0; gpu->modules && i < pk_model.cuda->num_modules; ++i) {
      if (gpu->modules[i]) pk_driver.cuModuleUnload(gpu->modules[i]);
    }
    if (gpu->uploads) pk_driver.cuStreamDestroy(gpu->uploads);
    pk_gpu_leave();
  }
  if (gpu->context) pk_driver.cuDevicePrimaryCtxRelease(gpu->device);
  free(gpu->modules);
  free(gpu->kernels);
  free(gpu);
}

int32_t pk_gpu_acquire(int32_t index, pk_gpu_t **acquired) {
  int32_t status;
  pk_gpu_t *gpu = gpus;
  while (gpu && gpu->index != index) gpu = gpu->next;
  if (!gpu) {
    if (!(gpu = calloc(1, sizeof *gpu)))
      return pk_fail(NULL, PACKAGER_ERROR_MEMORY, "could not allocate a device's state");
    gpu->index = index;
    if ((status = open_gpu(gpu))) {
      close_gpu(gpu);
      return status;
    }
    gpu->next = gpus;
    gpus = gpu;
  }
  ++gpu->sessions;
  *acquired = gpu;
  return PACKAGER_OK;
}

void pk_gpu_release(pk_gpu_t *gpu) {
  if (--gpu->sessions > 0) return;
  pk_gpu_t **link = &gpus;
  while (*link != gpu) link = &(*link)->next;
  *link = gpu->next;
  close_gpu(gpu);
}
