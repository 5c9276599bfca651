/* What GEMM kernels check of a problem before they take it, for their host code. */
#pragma once

#include <stdint.h>
#include <string.h>

#include <algorithm>

#include "problems.h"

namespace pk {

/* A matrix of the problem: its address, leading dimension and the distance to the next of the batch, in bytes. */
struct Matrix {
  const void *data;
  int64_t leading, batch;
};

/* Whether accesses of `bytes` bytes to any row of any matrix of the batch are aligned. */
inline bool aligned(const Matrix &matrix, int64_t batch, int64_t bytes) {
  return reinterpret_cast<uintptr_t>(matrix.data) % bytes == 0 && matrix.leading % bytes == 0 &&
         (batch == 1 || matrix.batch % bytes == 0);
}

/* Whether a kernel that accesses `wide` elements of a and b at a time, and `wide_d` elements of bias, c and d, may take
 * the problem. Its sizes are ints in CUTLASS. `b_rows` says that b is [k, n]. */
inline bool takes(const pk_gemm_t &gemm, int64_t size, int64_t wide, int64_t size_d, int64_t wide_d, bool residual,
                  bool b_rows) {
  if (gemm.m <= 0 || gemm.n <= 0 || gemm.k <= 0 || gemm.batch <= 0) return false;
  if (gemm.m > INT32_MAX || gemm.n > INT32_MAX || gemm.k > INT32_MAX || gemm.batch > INT32_MAX) return false;
  if (gemm.k % wide || gemm.n % wide_d || (b_rows && gemm.n % wide)) return false;
  if (gemm.lda < gemm.k || gemm.ldb < (b_rows ? gemm.n : gemm.k) || gemm.ldd < gemm.n) return false;
  if (!gemm.a || !gemm.b || !gemm.d || (residual && !gemm.c) || (!residual && gemm.beta != 0 && gemm.c)) return false;
  const int64_t bytes = size * wide, bytes_d = size_d * wide_d;
  return aligned({gemm.a, gemm.lda * size, gemm.batch_a * size}, gemm.batch, bytes) &&
         aligned({gemm.b, gemm.ldb * size, gemm.batch_b * size}, gemm.batch, bytes) &&
         aligned({gemm.bias, 0, 0}, 1, bytes_d) &&
         (!residual || aligned({gemm.c, gemm.ldc * size_d, gemm.batch_c * size_d}, gemm.batch, bytes_d)) &&
         aligned({gemm.d, gemm.ldd * size_d, gemm.batch_d * size_d}, gemm.batch, bytes_d);
}

/* The workspace of kernels that split K has room for the partial sums of so many blocks. */
constexpr int64_t kStreamBlocksPerSm = 2;

/* Whether a TMA descriptor was encoded: the driver leaves alone what it refuses, and CUTLASS makes it of zeros. */
template <class Descriptor>
bool encoded(const Descriptor *descriptor) {
  uint64_t words[sizeof(Descriptor) / sizeof(uint64_t)], any = 0;
  memcpy(words, descriptor, sizeof words);
  for (const uint64_t word : words) any |= word;
  return any != 0;
}

}  // namespace pk
