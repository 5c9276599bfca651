/* copies.c: constants, for libraries that hold copies of them; and what libraries say when they fail. */
#include <stdio.h>

#include "gpu.h"

void pk_cuda_explain(pk_cuda_t *cuda, const char *why) { snprintf(cuda->said, PK_SAID_BYTES, "%s", why); }

void pk_cuda_do_without(pk_cuda_t *cuda, const pk_library_t *library) {
  if (cuda->mode == PK_PREPARE) cuda->session->unsuitable = library;
}

uint64_t pk_cuda_constants_number(const pk_cuda_t *cuda) { return cuda->session->constants.version; }

int32_t pk_cuda_is_swapped(const pk_cuda_t *cuda, const void *constant) {
  const uintptr_t begin = (uintptr_t)cuda->gpu->constants, address = (uintptr_t)constant;
  return address < begin || address - begin >= pk_model.constant_bytes;
}

/* In a stream of its own: the run's may be captured. */
static CUresult read_constant(const pk_cuda_t *cuda, void *host, const void *constant, uint64_t bytes) {
  CUresult result = cuda->pending ? pk_driver.cuEventSynchronize(cuda->done) : 0;
  CUstream stream = cuda->gpu->uploads;
  if (!result) result = pk_driver.cuMemcpyDtoHAsync(host, (CUdeviceptr)(uintptr_t)constant, bytes, stream);
  return result ? result : pk_driver.cuStreamSynchronize(stream);
}

int32_t pk_cuda_read_constant(pk_cuda_t *cuda, void *host, const void *constant, uint64_t bytes) {
  int mode = pk_relax_captures();
  CUresult result = read_constant(cuda, host, constant, bytes);
  pk_restore_captures(mode);
  return result;
}
