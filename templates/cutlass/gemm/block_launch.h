/* The launches of a product with weights in blocks, by its rows at run time.
 *
 * Few rows are multiplied by the packed bits, 16 at a time. Of more, the weights are made floats in a workspace, some
 * columns at a time: a part of the L2 cache, so that most of it is read there. */
#ifndef PK_CUTLASS_BLOCK_LAUNCH_H_
#define PK_CUTLASS_BLOCK_LAUNCH_H_

#include <stddef.h>

#include "problems.h"

/* Launches a kernel that solves a problem. */
typedef int32_t pk_launch_fn(pk_cuda_t *cuda, const void *problem, uint64_t bytes);

/* Kernels of one row, of at most 8 and of 16; one that makes weights floats, and one that multiplies by these. NULL where no
 * number of rows that a model may have needs it. */
typedef struct {
  pk_launch_fn *of_1, *of_8, *of_16, *dequantize, *multiply;
  int64_t few;     /* so many rows are multiplied by the packed bits */
  int64_t d_bytes; /* of an element of bias, c and d; of a it is two */
} pk_block_kernels_t;

static inline const void *pk_at(const void *pointer, int64_t bytes) {
  return pointer ? (const char *)pointer + bytes : NULL;
}

static inline int32_t pk_multiply_few(pk_cuda_t *cuda, const pk_block_gemm_t *problem,
                                      const pk_block_kernels_t *kernels) {
  const pk_gemm_t *gemm = &problem->gemm;
  int32_t status = 0;
  for (int64_t row = 0; !status && row < gemm->m; row += 16) {
    pk_block_gemm_t part = *problem;
    part.gemm.m = gemm->m - row < 16 ? gemm->m - row : 16;
    part.gemm.a = pk_at(gemm->a, row * gemm->lda * 2);
    part.gemm.c = pk_at(gemm->c, row * gemm->ldc * kernels->d_bytes);
    part.gemm.d = (char *)gemm->d + row * gemm->ldd * kernels->d_bytes;
    pk_launch_fn *launch = part.gemm.m <= 8 && kernels->of_8 ? kernels->of_8 : kernels->of_16;
    if (part.gemm.m == 1 && kernels->of_1) launch = kernels->of_1;
    status = launch(cuda, &part, sizeof part);
  }
  return status;
}

static inline int32_t pk_multiply_blocks(pk_cuda_t *cuda, const pk_block_gemm_t *problem,
                                         const pk_block_kernels_t *kernels) {
  const pk_gemm_t *gemm = &problem->gemm;
  if (gemm->m <= kernels->few) return pk_multiply_few(cuda, problem, kernels);
  int32_t status = 0;
  for (int64_t column = 0; !status && column < gemm->n; column += problem->slice) {
    pk_gemm_t part = *gemm;
    part.n = gemm->n - column < problem->slice ? gemm->n - column : problem->slice;
    part.b = problem->floats;
    part.bias = pk_at(gemm->bias, column * kernels->d_bytes);
    part.c = pk_at(gemm->c, column * kernels->d_bytes);
    part.d = (char *)gemm->d + column * kernels->d_bytes;
    const pk_dequantize_t floats = {gemm->b, problem->scales, problem->zeros, problem->floats,
                                    column,  part.n,          gemm->k,        problem->block};
    status = kernels->dequantize(cuda, &floats, sizeof floats);
    if (!status) status = kernels->multiply(cuda, &part, sizeof part);
  }
  return status;
}

#endif /* PK_CUTLASS_BLOCK_LAUNCH_H_ */
