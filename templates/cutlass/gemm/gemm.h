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

/* Memory that a kernel will read, none where `bytes` is 0. */
struct Prefetch {
  const char *data;
  uint64_t bytes;
};

/* A larger b does not stay in the L2 cache until it is read; its beginning does. */
constexpr uint64_t kPrefetchBytes = 16 << 20;

/* What is to be fetched of b: nothing of batches, whose b is computed by earlier kernels. */
inline Prefetch prefetched(const pk_gemm_t &gemm, uint64_t size, bool b_rows) {
  if (gemm.batch > 1) return {};
  const uint64_t bytes =
      size * static_cast<uint64_t>(gemm.ldb) * static_cast<uint64_t>((b_rows ? gemm.k : gemm.n) - 1) +
      size * static_cast<uint64_t>(b_rows ? gemm.n : gemm.k);
  return {static_cast<const char *>(gemm.b), std::min(bytes, kPrefetchBytes)};
}

#ifndef PK_HOST
/* Each block fetches its share into the L2 cache. It may be stale there: it is the cache that all writes go through. */
__device__ inline void fetch(const Prefetch &prefetch) {
  if (threadIdx.x != 0 || prefetch.bytes == 0) return;
  const uint64_t blocks = gridDim.x * gridDim.y * gridDim.z;
  const uint64_t block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const uint64_t share = ((prefetch.bytes + blocks - 1) / blocks + 15) / 16 * 16, begin = block * share;
  if (begin >= prefetch.bytes) return;
  const uint64_t left = prefetch.bytes - begin;
  const uint32_t bytes = static_cast<uint32_t>((share < left ? share : left) / 16 * 16);
  if (bytes == 0) return;
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(prefetch.data + begin), "r"(bytes) : "memory");
}
#endif

/* The workspace of kernels that split K. Its first bytes count arrivals: they are zero before the first launch, and
 * each launch leaves them so. Partial sums follow, for at most so many blocks. */
constexpr int64_t kBarrierBytes = 1 << 16;
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
