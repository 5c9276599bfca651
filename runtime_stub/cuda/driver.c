/* driver.c: opens libcuda.so.1; error messages of its results. */
#define _GNU_SOURCE
#include "driver.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "dynamic_linker.h"

pk_driver_t pk_driver;

/* One text: an array of pointers would cost a relocation each. In the order of pk_driver_t. */
static const char symbols[] =
#define PK_SYMBOL(field, symbol, parameters) symbol "\0"
    PK_DRIVER_FUNCTIONS(PK_SYMBOL)
#undef PK_SYMBOL
    ;

/* Fills `driver`. Returns the name of the function that is missing, or NULL. */
static const char *find_functions(void *library, pk_driver_t *driver) {
  uint8_t *field = (uint8_t *)driver;
  for (const char *symbol = symbols; *symbol; symbol += strlen(symbol) + 1, field += sizeof(void *)) {
    int optional = *symbol == '?';
    void *function = pk_dlsym(library, symbol + optional);
    if (!function && !optional) return symbol;
    memcpy(field, &function, sizeof function);
  }
  return NULL;
}

/* The library stays open until the process ends: it has threads and handlers of its own and does not survive being
 * unloaded. Opening it again, by a bundle that is loaded again, only counts. */
static int32_t open_library(void) {
  if (!pk_have_dl()) {
    return pk_fail(NULL, PACKAGER_ERROR_DRIVER,
                   "this program has no dlopen, which libcuda.so.1 is opened with: link it "
                   "with -ldl");
  }
  void *library = pk_dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    return pk_fail(NULL, PACKAGER_ERROR_DRIVER,
                   "libcuda.so.1 cannot be opened: %s (it is a part of NVIDIA's driver: is the driver installed here?)",
                   pk_dlerror());
  }
  pk_driver_t driver;
  const char *missing = find_functions(library, &driver);
  if (missing) {
    return pk_fail(NULL, PACKAGER_ERROR_DRIVER, "libcuda.so.1 has no %s: the driver is older than that of CUDA 12.0",
                   missing);
  }
  pk_driver = driver;
  return PACKAGER_OK;
}

static int32_t check_version(void) {
  int version = 0;
  CUresult result = pk_driver.cuDriverGetVersion(&version);
  if (result) return pk_fail_result(NULL, PACKAGER_ERROR_DRIVER, result, "the version of the CUDA driver is unknown");
  if (version >= pk_model.cuda->driver) return PACKAGER_OK;
  return pk_fail(NULL, PACKAGER_ERROR_DRIVER,
                 "the driver is too old: it is of CUDA " PK_VERSION_FORMAT
                 ", the bundle's code needs that of CUDA " PK_VERSION_FORMAT " or newer",
                 PK_VERSION_PARTS(version), PK_VERSION_PARTS(pk_model.cuda->driver));
}

int32_t pk_driver_open(void) {
  int32_t status = pk_driver.cuInit ? PACKAGER_OK : open_library();
  if (status) return status;
  if ((status = check_version())) return status; /* cuInit does not report a kernel module that is newer */
  CUresult result = pk_driver.cuInit(0);
  if (!result) return PACKAGER_OK;
  char text[PK_RESULT_BYTES];
  pk_result_text(result, text);
  return pk_fail(NULL, PACKAGER_ERROR_DRIVER, "CUDA cannot be initialized: %s", text);
}

void pk_result_text(CUresult result, char text[PK_RESULT_BYTES]) {
  const char *name = NULL, *meaning = NULL;
  if (pk_driver.cuGetErrorName(result, &name) || !name) {
    snprintf(text, PK_RESULT_BYTES, "CUDA error %d", result);
  } else if (pk_driver.cuGetErrorString(result, &meaning) || !meaning) {
    snprintf(text, PK_RESULT_BYTES, "%s", name);
  } else {
    snprintf(text, PK_RESULT_BYTES, "%s (%s)", name, meaning);
  }
}

int pk_is_fault(CUresult result) {
  switch (result) {
    case CUDA_ERROR_ECC_UNCORRECTABLE:
    case CUDA_ERROR_NVLINK_UNCORRECTABLE:
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_CONTEXT_IS_DESTROYED:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case CUDA_ERROR_EXTERNAL_DEVICE:
    case CUDA_ERROR_UNKNOWN:
      return 1;
    default: /* and illegal instructions, misaligned addresses, invalid address spaces and program counters */
      return result >= CUDA_ERROR_HARDWARE_STACK_ERROR && result < CUDA_ERROR_LAUNCH_FAILED;
  }
}

int32_t pk_fail_result(packager_session_t *session, int32_t status, CUresult result, const char *what) {
  char text[PK_RESULT_BYTES];
  pk_result_text(result, text);
  size_t free = 0, total = 0;
  if (pk_is_fault(result)) status = PACKAGER_ERROR_GPU;
  if (result != CUDA_ERROR_OUT_OF_MEMORY) return pk_fail(session, status, "%s: %s", what, text);
  if (pk_driver.cuMemGetInfo(&free, &total)) { /* there is no context */
    return pk_fail(session, PACKAGER_ERROR_MEMORY, "%s: %s", what, text);
  }
  return pk_fail(session, PACKAGER_ERROR_MEMORY, "%s: %s; %zu of the device's %zu bytes are free", what, text, free,
                 total);
}
