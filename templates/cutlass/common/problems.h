/* What the kernels of the cutlass backend are asked to solve: shared by their host code (C++) and by the primitive
 * functions that call it (C). Strides and leading dimensions are in elements; matrices are row-major unless a kernel's
 * configuration says otherwise. Structures are compared byte by byte: initialize them to zero first. */
#ifndef PK_CUTLASS_PROBLEMS_H_
#define PK_CUTLASS_PROBLEMS_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif
#include "packager_cuda.h"
#ifdef __cplusplus
}
#endif

/* d = act(alpha * a b + bias + beta * c), for each matrix of the batch. */
typedef struct {
  const void *a;    /* [batch, m, k] */
  const void *b;    /* [batch, n, k] (column-major) or [batch, k, n], as the kernel is made for */
  const void *bias; /* [n], or NULL */
  const void *c;    /* [batch, m, n], the residual; NULL where the kernel reads none */
  void *d;          /* [batch, m, n] */
  void *workspace;  /* of kernels that need one */
  int64_t m, n, k, batch;
  int64_t lda, ldb, ldc, ldd;
  int64_t batch_a, batch_b, batch_c, batch_d; /* from one matrix to the next; 0: the same for all */
  float alpha, beta;
  void *counters; /* likewise; zero before a launch, and after it */
} pk_gemm_t;

/* A product whose b has a few bits an element, quantized in blocks of `block` elements along k: (q - zero) * scale. How
 * b, scales and zeros lie is the kernel's; ldb is not read. */
typedef struct {
  pk_gemm_t gemm;
  const void *scales, *zeros; /* zeros is NULL where they are half of the range */
  int64_t block;
  void *floats;  /* workspace of `slice` columns, [slice, k]: where more than few rows are multiplied */
  int64_t slice; /* a multiple of 16 */
} pk_block_gemm_t;

/* d [n, k] are those weights of the columns from `first` on, a multiple of 16, as floats. */
typedef struct {
  const void *b, *scales, *zeros;
  void *d;
  int64_t first, n, k, block;
} pk_dequantize_t;

/* o = softmax(scale * q k^T + mask) v, for each head of the batch. Element [b, s, h, d] of a tensor lies at
 * b * batch + s * row + h * head + d. A sink is the score of a key whose value is zero. */
typedef struct {
  const void *q, *k, *v;
  void *o;
  const void *bias; /* [batch or 1, heads or 1, queries or 1, keys], added to scores, in the element type; or NULL */
  const int32_t *lengths; /* [batch] how many keys there are, the rest is padding; or NULL */
  const float *sinks;     /* [heads], or NULL */
  void *workspace;
  int64_t batch, heads, queries, keys, depth, value_depth;
  int64_t group; /* a head of k and v is that of so many consecutive heads of q; strides are of heads in memory */
  int64_t q_strides[3], k_strides[3], v_strides[3], o_strides[3]; /* of batch, row, head */
  int64_t bias_strides[3];                                        /* of batch, head, row; 0 where it is broadcast */
  float scale;
  float softcap; /* scores become softcap * tanh(scores / softcap) before the mask; 0: they do not */
  void *counters; /* of kernels that need a workspace; zero before a launch, and after it */
} pk_attention_t;

/* y = act(x * w + bias + residual): NHWC data, OHWI weights. With groups, which are runs of channels and of filters, a
 * tile of filters reads `part` channels from the first of its first filter's group on: w has zeros where these are not
 * of a filter's group. */
typedef struct {
  const void *x;        /* [batch, height, width, channels] */
  const void *w;        /* [filters, window height, window width, channels or part] */
  const void *bias;     /* [filters], or NULL */
  const void *residual; /* as y, or NULL */
  void *y;              /* [batch, out_height, out_width, filters] */
  void *workspace;
  int64_t batch, height, width, channels, filters, out_height, out_width;
  int64_t window[2], padding[2], stride[2], dilation[2]; /* of height, width */
  int64_t groups, part;                                  /* 0 where all channels are one group */
} pk_conv_t;

#endif /* PK_CUTLASS_PROBLEMS_H_ */
