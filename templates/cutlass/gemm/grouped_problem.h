/* What a function of a product of groups of rows states, for kernels' host code. */
#pragma once

#include <stdint.h>

/* d = a b, where each group of the rows of a has a matrix of its own. */
typedef struct {
  const void *a;       /* [m, k] */
  const void *b;       /* [groups, n, k] */
  const int32_t *ends; /* [groups], ascending: rows of the first group, of the first two, ...; of those behind all d is 0 */
  void *d;             /* [m, n] */
  int64_t m, n, k, groups;
} pk_grouped_gemm_t;
