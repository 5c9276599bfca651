/* packager_cuda.h: what the code that a CUDA backend compiles may use of a bundle's runtime. No part of the ABI for
 * programs that load bundles.
 *
 * A primitive function of a CUDA bundle is a C function
 *
 *     int32_t symbol(pk_cuda_t *cuda, pointers..., int64_t scalars...);
 *
 * that enqueues work, waits for nothing and returns 0, or the result of what failed. Pointers are device memory. A
 * backend's object also defines its modules, and declares for each the number that its first kernel has in the bundle:
 *
 *     extern const int32_t acme_module_first;
 *     const pk_cuda_module_t acme_module = { fatbin, "acme_gemm\0acme_add\0", shared_bytes, 2 };
 *     int32_t acme_f(pk_cuda_t *cuda, void *y, const void *x, int64_t n) {
 *       const struct { void *y; const void *x; int64_t n; } arguments = { y, x, n };
 *       const pk_cuda_launch_t launch = { { (uint32_t)((n + 255) / 256), 1, 1 }, { 256, 1, 1 }, 0, 0 };
 *       return pk_cuda_launch(cuda, acme_module_first + 1, &launch, &arguments, sizeof arguments);
 *     }
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef PACKAGER_CUDA_H_
#define PACKAGER_CUDA_H_

#include <stdint.h>

/* One run on one device: stream, kernels, and whether calls are launched, captured, compared or timed. */
typedef struct pk_cuda pk_cuda_t;

/* A fatbin and the names of its kernels. */
typedef struct {
  const void *image;            /* as nvcc -fatbin writes it */
  const char *names;            /* of the kernels, zero-terminated, one after the other */
  const uint32_t *shared_bytes; /* [num_kernels] the most dynamic shared memory that a launch asks for */
  int32_t num_kernels;
} pk_cuda_module_t;

typedef struct {
  uint32_t grid[3]; /* blocks; where one is 0 nothing is launched */
  uint32_t block[3];
  uint32_t shared_bytes; /* dynamic */
  uint32_t flags;        /* 0; for attributes of launches to come */
} pk_cuda_launch_t;

/* Launches kernel number `kernel` of the bundle. `arguments` are `bytes` bytes laid out as the kernel's parameters
 * are, one after the other at their alignments; they are copied. */
int32_t pk_cuda_launch(pk_cuda_t *cuda, int32_t kernel, const pk_cuda_launch_t *launch, const void *arguments,
                       uint64_t bytes);

/* Copies within device memory. */
int32_t pk_cuda_copy(pk_cuda_t *cuda, void *target, const void *source, uint64_t bytes);

#endif /* PACKAGER_CUDA_H_ */
