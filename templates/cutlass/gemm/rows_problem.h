/* What functions of products of few normalized rows state, for kernels' host code: rows x of a are multiplied as
 * x / sqrt(mean(x^2) + epsilon). */
#ifndef PK_CUTLASS_ROWS_PROBLEM_H_
#define PK_CUTLASS_ROWS_PROBLEM_H_

#include "problems.h"

typedef struct {
  pk_gemm_t gemm;
  float epsilon;
} pk_normed_gemm_t;

typedef struct {
  pk_block_gemm_t blocks;
  const void *gains; /* [k], of the type of a: what rows are multiplied by, too; or NULL */
  float epsilon;
} pk_normed_block_gemm_t;

#endif /* PK_CUTLASS_ROWS_PROBLEM_H_ */
