/* d = act(alpha * a b + bias + beta * c) of few rows, whose time is that of reading b [n, k] once.
 *
 * Gated, b and bias have twice the columns of d, in turns of eight of gates and of factors: d = act(gates) * factors.
 * Normed, rows of a are divided by their root mean square, which is that of all that a block loads of them: a scale of
 * its results.
 *
 * b is constant: its first elements are loaded before the kernel waits for those before it. Lanes load 16 bytes at a
 * time straight into the operands of matrix instructions, which sum over k in any order: b's rows are the 16 rows of an
 * instruction, a's its 8 columns. The warps of a block share k, and add up in shared memory. */
#pragma once

#include <algorithm>

#include "gemm.h"
#include "rows_problem.h"
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
  float alpha, beta, epsilon;
};

/* Floats of shared memory: what each warp has of the results, and of the squares of a row. */
constexpr int rows_memory(int rows, int tiles, bool normed) { return kRowsWarps * rows * (16 * tiles + normed); }

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
/* The sum of the squares of eight elements. */
template <class Type>
__device__ inline float squares_of(const uint4 &x) {
  float sum = 0.0f;
  for (const uint32_t pair : {x.x, x.y, x.z, x.w}) {
    const float low = low_of<Type>(pair), high = high_of<Type>(pair);
    sum += low * low + high * high;
  }
  return sum;
}

/* Adds up what the warps of a block have of its results, and of the squares of its rows, and writes the results. */
template <class Out, class Activation, bool kGated, bool kNormed, int kTiles, int kParts>
__device__ inline void finish_rows(const RowsParams &p, const float (&acc)[kTiles][kParts][4],
                                   const float (&squares)[kParts], float *memory) {
  using Result = typename Out::Storage;
  constexpr int kRows = 8 * kParts, kColumns = 16 * kTiles, kResults = kGated ? kColumns / 2 : kColumns;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  float *sums = memory + kRowsWarps * kRows * kColumns;
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
  if constexpr (kNormed) {
#pragma unroll
    for (int j = 0; j < kParts; j++) {
      float sum = squares[j];
      sum += shuffle_xor(sum, 1), sum += shuffle_xor(sum, 2);
      if (t == 0) sums[warp * kRows + 8 * j + g] = sum;
    }
  }
  __syncthreads();
  for (int at = threadIdx.x; at < p.m * kResults; at += kRowsThreads) {
    const int row = at / kResults, result = at % kResults;
    const int column = blockIdx.x * kResults + result;
    if (column >= p.n) continue;
    float scale = p.alpha;
    if constexpr (kNormed) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kRowsWarps; i++) sum += sums[i * kRows + row];
      scale *= rsqrtf(sum / float(p.k) + p.epsilon);
    }
    auto product = [&](int place) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kRowsWarps; i++) sum += memory[(i * kRows + row) * kColumns + place];
      sum *= scale;
      if (p.bias != nullptr) sum += Out::widen(static_cast<const Result *>(p.bias)[blockIdx.x * kColumns + place]);
      return sum;
    };
    float value;
    if constexpr (kGated) {
      const int gate = result / 8 * 16 + result % 8;
      value = Activation{}(product(gate)) * product(gate + 8);
    } else {
      value = product(result);
      if (p.c != nullptr) value += p.beta * Out::widen(static_cast<const Result *>(p.c)[row * p.ldc + column]);
      value = Activation{}(value);
    }
    static_cast<Result *>(p.d)[row * p.ldd + column] = Out::narrow(value);
  }
}

/* kRows: 8 or 16 rows of a; a block has 16 * kTiles columns. */
template <class Type, class Out, class Activation, int kRows, int kTiles, bool kGated, bool kNormed>
__device__ inline void rows_product(const RowsParams &p, float *memory) {
  using Storage = typename Type::Storage;
  constexpr int kParts = kRows / 8, kUnits = 4 / kTiles, kColumns = 16 * kTiles;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int first = blockIdx.x * kColumns, columns = kGated ? 2 * p.n : p.n;
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
          w[unit][i][r][c] = column < columns && at < p.k ? load_once(b + column * p.ldb + at) : zero;
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

  float acc[kTiles][kParts][4] = {}, squares[kParts] = {};
  for (int k = 0; k < p.k; k += kAll) {
#pragma unroll
    for (int u = 0; u < kUnits; u++) {
      if constexpr (kNormed) {
#pragma unroll
        for (int j = 0; j < kParts; j++) squares[j] += squares_of<Type>(x[u][j][0]) + squares_of<Type>(x[u][j][1]);
      }
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

  finish_rows<Out, Activation, kGated, kNormed>(p, acc, squares, memory);
}
#endif

#ifdef PK_HOST
/* What a kernel of few rows is made for; epsilon is of rows that are normed. */
struct RowsForm {
  int rows, tiles;
  bool residual, gated;
};

inline int32_t rows_fill(const pk_gemm_t &gemm, const RowsForm &form, float epsilon, void *arguments,
                         pk_cuda_launch_t *launch) {
  *launch = {};
  const int64_t columns = form.gated ? 2 * gemm.n : gemm.n;
  if (gemm.m < 1 || gemm.m > form.rows || gemm.n < 1 || gemm.k < 8 || gemm.batch != 1) return -1;
  if (gemm.n > INT32_MAX / 2 - 64 || gemm.k > INT32_MAX / 2 || gemm.k % 8 != 0) return -1;
  if (gemm.lda % 8 != 0 || gemm.ldb % 8 != 0 || (form.gated && gemm.n % 8 != 0)) return -1;
  if (gemm.lda < gemm.k || gemm.ldb < gemm.k || gemm.ldd < gemm.n) return -1;
  for (const void *pointer : {gemm.a, gemm.b}) {
    if (pointer == nullptr || reinterpret_cast<uintptr_t>(pointer) % 16 != 0) return -1;
  }
  if (!(epsilon >= 0.0f)) return -1;
  if (gemm.d == nullptr || (form.residual && !gemm.c) || (!form.residual && gemm.beta != 0 && gemm.c)) return -1;
  RowsParams &p = *static_cast<RowsParams *>(arguments);
  p.a = gemm.a, p.b = gemm.b, p.bias = gemm.bias, p.c = form.residual ? gemm.c : nullptr, p.d = gemm.d;
  p.m = int32_t(gemm.m), p.n = int32_t(gemm.n), p.k = int32_t(gemm.k);
  p.lda = gemm.lda, p.ldb = gemm.ldb, p.ldc = gemm.ldc, p.ldd = gemm.ldd;
  p.alpha = gemm.alpha, p.beta = gemm.beta, p.epsilon = epsilon;
  const int tile = 16 * form.tiles;
  *launch = {{uint32_t((columns + tile - 1) / tile), 1, 1}, {kRowsThreads, 1, 1}, 0, PK_CUDA_PROGRAMMATIC};
  return 0;
}
#endif

}  // namespace pk
