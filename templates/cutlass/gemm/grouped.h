/* d = a b, where each group of the rows of a has a matrix of its own, [n, k]; where groups end is data. */
#pragma once

#include <stdint.h>

#include "gemm.h"
#include "grouped_problem.h"
#include "row_tiles.h"

namespace pk {

/* Whether kernels that access `wide` elements of a and b at a time, and `wide_d` of d, may take the problem. */
inline bool takes(const pk_grouped_gemm_t &problem, int64_t size, int64_t wide, int64_t size_d, int64_t wide_d) {
  pk_gemm_t gemm{};
  gemm.a = problem.a, gemm.b = problem.b, gemm.d = problem.d;
  gemm.m = problem.m, gemm.n = problem.n, gemm.k = problem.k, gemm.batch = 1;
  gemm.lda = gemm.ldb = problem.k, gemm.ldd = problem.n;
  return problem.ends && problem.groups > 0 && problem.groups < INT32_MAX &&
         takes(gemm, size, wide, size_d, wide_d, false, false);
}

}  // namespace pk
