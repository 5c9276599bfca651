/* What kernels of 8-bit data are asked to solve, beside what problems.h says: how their sums become a result.
 *
 *   y = act((sum + offset) * scale + bias + beta * residual)
 *   d = y, or clip(round(y * gain) + zero, low, high) where it has 8 bits
 *
 * int32 results are the sums and their offset. 8-bit floats have no zero, and are rounded last. Structures are compared
 * byte by byte: initialize them to zero first. */
#ifndef PK_CUTLASS_QUANTIZED_H_
#define PK_CUTLASS_QUANTIZED_H_

#include "problems.h"

/* Vectors have an element for each column; where one is NULL, a number is for all of them. */
typedef struct {
  const int32_t *offset; /* for sums of integers alone */
  const float *scale, *bias;
  int32_t offset_of_all;
  float scale_of_all, bias_of_all;
  float beta;
  float gain, zero, low, high; /* of results of 8 bits */
} pk_scales_t;

/* `gemm`'s own bias, alpha and beta are not read; b is [n, k], and there is no batch. */
typedef struct {
  pk_gemm_t gemm;
  pk_scales_t scales;
} pk_quantized_gemm_t;

/* `conv`'s own bias is not read. */
typedef struct {
  pk_conv_t conv;
  pk_scales_t scales;
} pk_quantized_conv_t;

#endif /* PK_CUTLASS_QUANTIZED_H_ */
