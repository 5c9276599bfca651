/* d = act(alpha * a b + bias + beta * c) of few rows, whose time is that of reading b [n, k] once.
 *
 * b is constant: its first elements are loaded before the kernel waits for those before it. Lanes load 16 bytes at a
 * time straight into the operands of matrix instructions, which sum over k in any order: b's rows are the 16 rows of an
 * instruction, a's its 8 columns. The warps of a block share k, and add up in shared memory. */
#pragma once

#include <algorithm>

#include "gemm.h"
#include "warp.h"

namespace pk {

constexpr int kRowsWarps = 8, kRowsThreads = 32 * kRowsWarps;
/* Elements of k that a warp takes at a time: 128 bytes of each row. */
constexpr int kRowsUnit = 64;

struct RowsParams {
  const void *a, *b, *bias, *c;
  void *d;
  int32_t m, n, k;
  int64_t lda, ldb, ldc, ldd;
  float alpha, beta;
};

/* float32 results. */
struct F32 {
  using Storage = float;
  static __device__ inline float widen(float x) { return x; }
  static __device__ inline float narrow(float x) { return x; }
};

struct Unchanged {
  __device__ inline float operator()(float x) const { return x; }
};

#if !defined(PK_HOST) || defined(PK_SIMT)
/* Adds up what the warps of a block have of its results, and writes these. */
template <class Out, class Activation, int kTiles, int kParts>
__device__ inline void finish_rows(const RowsParams &p, const float (&acc)[kTiles][kParts][4], float *memory) {
  using Result = typename Out::Storage;
  constexpr int kRows = 8 * kParts, kColumns = 16 * kTiles;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int first = blockIdx.x * kColumns;
  // [warp, row, column]
#pragma unroll
  for (int i = 0; i < kTiles; i++) {
#pragma unroll
    for (int j = 0; j < kParts; j++) {
#pragma unroll
      for (int n = 0; n < 4; n++) {
        const int row = 8 * j + 2 * t + n % 2, column = 16 * i + n / 2 * 8 + g;
        memory[(warp * kRows + row) * kColumns + column] = acc[i][j][n];
      }
    }
  }
  __syncthreads();
  for (int at = threadIdx.x; at < p.m * kColumns; at += kRowsThreads) {
    const int row = at / kColumns, column = first + at % kColumns;
    if (column >= p.n) continue;
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kRowsWarps; i++) sum += memory[i * kRows * kColumns + at];
    sum *= p.alpha;
    if (p.bias != nullptr) sum += Out::widen(static_cast<const Result *>(p.bias)[column]);
    if (p.c != nullptr) sum += p.beta * Out::widen(static_cast<const Result *>(p.c)[row * p.ldc + column]);
    static_cast<Result *>(p.d)[row * p.ldd + column] = Out::narrow(Activation{}(sum));
  }
}

/* kRows: 8 or 16 rows of a; a block has 16 * kTiles columns. */
template <class Type, class Out, class Activation, int kRows, int kTiles>
__device__ inline void rows_product(const RowsParams &p, float *memory) {
  using Storage = typename Type::Storage;
  constexpr int kParts = kRows / 8, kUnits = 4 / kTiles, kColumns = 16 * kTiles;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int first = blockIdx.x * kColumns;
  const uint4 zero = make_uint4(0, 0, 0, 0);
  const Storage *a = static_cast<const Storage *>(p.a), *b = static_cast<const Storage *>(p.b);

  uint4 w[kUnits][kTiles][2][2], x[kUnits][kParts][2];
  auto load_b = [&](int unit, int k) {
#pragma unroll
    for (int i = 0; i < kTiles; i++) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int column = first + 16 * i + 8 * r + g;
#pragma unroll
        for (int c = 0; c < 2; c++) {
          const int at = k + 32 * c + 8 * t;
          w[unit][i][r][c] = column < p.n && at < p.k ? load_once(b + column * p.ldb + at) : zero;
        }
      }
    }
  };
  auto load_a = [&](int unit, int k) {
#pragma unroll
    for (int i = 0; i < kParts; i++) {
      const int row = 8 * i + g;
#pragma unroll
      for (int c = 0; c < 2; c++) {
        const int at = k + 32 * c + 8 * t;
        x[unit][i][c] = row < p.m && at < p.k ? *reinterpret_cast<const uint4 *>(a + row * p.lda + at) : zero;
      }
    }
  };
  constexpr int kAll = kUnits * kRowsWarps * kRowsUnit;
  auto place = [&](int unit) { return (unit * kRowsWarps + warp) * kRowsUnit; };

  release_next();
#pragma unroll
  for (int u = 0; u < kUnits; u++) load_b(u, place(u));
  wait_for_earlier();
#pragma unroll
  for (int u = 0; u < kUnits; u++) load_a(u, place(u));

  float acc[kTiles][kParts][4] = {};
  for (int k = 0; k < p.k; k += kAll) {
#pragma unroll
    for (int u = 0; u < kUnits; u++) {
#pragma unroll
      for (int i = 0; i < kTiles; i++) {
#pragma unroll
        for (int j = 0; j < kParts; j++) {
#pragma unroll
          for (int c = 0; c < 2; c++) {
            const uint4 &top = w[u][i][0][c], &bottom = w[u][i][1][c], &right = x[u][j][c];
            mma<Type>(acc[i][j], top.x, bottom.x, top.y, bottom.y, right.x, right.y);
            mma<Type>(acc[i][j], top.z, bottom.z, top.w, bottom.w, right.z, right.w);
          }
        }
      }
      // As soon as the registers are free: loads are always under way.
      if (k + kAll < p.k) load_b(u, k + kAll + place(u)), load_a(u, k + kAll + place(u));
    }
  }

  finish_rows<Out, Activation>(p, acc, memory);
}
#endif

#ifdef PK_HOST
inline int32_t rows_fill(const pk_gemm_t &gemm, int rows, int tiles, bool residual, void *arguments,
                         pk_cuda_launch_t *launch) {
  *launch = {};
  if (gemm.m < 1 || gemm.m > rows || gemm.n < 1 || gemm.k < 8 || gemm.batch != 1) return -1;
  if (gemm.n > INT32_MAX - 64 || gemm.k > INT32_MAX / 2 || gemm.k % 8 != 0 || gemm.lda % 8 != 0 || gemm.ldb % 8 != 0)
    return -1;
  if (gemm.lda < gemm.k || gemm.ldb < gemm.k || gemm.ldd < gemm.n) return -1;
  for (const void *pointer : {gemm.a, gemm.b}) {
    if (pointer == nullptr || reinterpret_cast<uintptr_t>(pointer) % 16 != 0) return -1;
  }
  if (gemm.d == nullptr || (residual && !gemm.c) || (!residual && gemm.beta != 0 && gemm.c)) return -1;
  RowsParams &p = *static_cast<RowsParams *>(arguments);
  p.a = gemm.a, p.b = gemm.b, p.bias = gemm.bias, p.c = residual ? gemm.c : nullptr, p.d = gemm.d;
  p.m = int32_t(gemm.m), p.n = int32_t(gemm.n), p.k = int32_t(gemm.k);
  p.lda = gemm.lda, p.ldb = gemm.ldb, p.ldc = gemm.ldc, p.ldd = gemm.ldd;
  p.alpha = gemm.alpha, p.beta = gemm.beta;
  const int columns = 16 * tiles;
  *launch = {{uint32_t((gemm.n + columns - 1) / columns), 1, 1}, {kRowsThreads, 1, 1}, 0, PK_CUDA_PROGRAMMATIC};
  return 0;
}
#endif

}  // namespace pk
