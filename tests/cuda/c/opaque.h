/* opaque.h: model.c's add as work of a library: two copies, from a and from b to y; three where n is odd. For each n
 * the library makes an "algorithm" first, a stream. It fails with status 9 where n is 17. With -DLIBRARY_FAILS=n it
 * cannot make the one of that n, which is status 3. */
#ifndef OPAQUE_H_
#define OPAQUE_H_

#include "gpu.h"

#ifndef LIBRARY_FAILS
#define LIBRARY_FAILS (-1)
#endif

static int32_t make_algorithm(const void *key, void *context, void **value) {
  int64_t n;
  memcpy(&n, key, sizeof n);
  if (n == LIBRARY_FAILS || context != &second_module) return 3;
  return pk_driver.cuStreamCreate((CUstream *)value, CU_STREAM_NON_BLOCKING);
}

static void release_algorithm(void *value) { pk_driver.cuStreamDestroy(value); }

static int32_t copy(void *stream, void *to, const void *from, uint64_t bytes) {
  return pk_driver.cuMemcpyDtoDAsync((CUdeviceptr)(uintptr_t)to, (CUdeviceptr)(uintptr_t)from, bytes, stream);
}

static int32_t enqueue_add(pk_cuda_t *cuda, void *stream, const void *problem) {
  static const pk_cuda_kept_t algorithms = {make_algorithm, release_algorithm};
  const arguments_t *p = problem;
  void *algorithm;
  if (p->n == 17) return 9;
  int32_t status = pk_cuda_keep(cuda, &algorithms, &p->n, sizeof p->n, (void *)(uintptr_t)&second_module, &algorithm);
  if (!status) status = copy(stream, p->y, p->a, (uint64_t)p->n * 16);
  for (int64_t i = 0; !status && i <= p->n % 2; ++i) status = copy(stream, p->y, p->b, 16);
  return status;
}

static int32_t add(pk_cuda_t *cuda, void *y, const void *a, const void *b, int64_t n) {
  const arguments_t problem = {y, a, b, n};
  return n == 0 ? 0 : pk_cuda_enqueue(cuda, enqueue_add, &problem, sizeof problem);
}

#endif /* OPAQUE_H_ */
