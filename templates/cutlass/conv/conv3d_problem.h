/* What the kernels of 3-D convolutions are asked to solve, as problems.h has it of others. */
#ifndef PK_CUTLASS_CONV3D_PROBLEM_H_
#define PK_CUTLASS_CONV3D_PROBLEM_H_

#include <stdint.h>

/* y = act(x * w + bias + residual): NDHWC data, ODHWI weights. Triples are of depth, height, width. */
typedef struct {
  const void *x;        /* [batch, image, channels] */
  const void *w;        /* [filters, window, channels] */
  const void *bias;     /* [filters], or NULL */
  const void *residual; /* as y, or NULL */
  void *y;              /* [batch, result, filters] */
  int64_t batch, channels, filters;
  int64_t image[3], result[3], window[3], padding[3], stride[3], dilation[3];
} pk_conv3d_t;

#endif /* PK_CUTLASS_CONV3D_PROBLEM_H_ */
