/* d = act(alpha * a b + bias + beta * c) of few rows, whose time is that of reading b [n, k] once.
 *
 * Gated, b and bias have twice the columns of d, in turns of eight of gates and of factors: d = act(gates) * factors.
 * Normed, rows of a are divided by their root mean square, which is that of all that a block loads of them: a scale of
 * its results.
 *
 * b is constant: its first elements are loaded before the kernel waits for those before it. Lanes load 16 bytes at a
 * time straight into the operands of matrix instructions, which sum over k in any order: b's rows are the 16 rows of an
 * instruction, a's its 8 columns. The warps of a block share k, and add up in shared memory. A block has tiles of
 * columns one after the other, and loads the next one while it ends one. */
#pragma once

#include <algorithm>

#include "gemm.h"
#include "rows_problem.h"
#include "warp.h"

namespace pk {

/* Elements of k that a warp takes at a time: 128 bytes of each row. */
constexpr int kRowsUnit = 64;

struct RowsParams {
  const void *a, *b, *bias, *c;
  void *d;
  int32_t m, n, k;
  int64_t lda, ldb, ldc, ldd;
  float alpha, beta, epsilon;
};

/* Floats of shared memory: what each warp has of the results of two tiles, and of the squares of a row. */
constexpr int rows_memory(int warps, int rows, int tiles, bool normed) { return warps * rows * (32 * tiles + normed); }

/* What becomes of sums, beside a bias and an activation. */
enum class Ending { kPlain, kResidual, kGated };

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

/* Has each warp's part of the squares of all rows in `sums` [warp, row], which are there behind a barrier. */
template <class Type, int kWarps, int kRows>
__device__ inline void sum_squares(const RowsParams &p, float *sums) {
  const typename Type::Storage *a = static_cast<const typename Type::Storage *>(p.a);
#pragma unroll 1
  for (int row = 0; row < p.m; row++) {
    float sum = 0.0f;
#pragma unroll 2
    for (int at = 8 * threadIdx.x; at < p.k; at += 8 * 32 * kWarps) {
      sum += squares_of<Type>(*reinterpret_cast<const uint4 *>(a + row * p.lda + at));
    }
#pragma unroll
    for (int lanes = 16; lanes > 0; lanes /= 2) sum += shuffle_xor(sum, lanes);
    if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32 * kRows + row] = sum;
  }
}

/* What is added to a result before its activation; to a factor of gated ones. */
struct Addends {
  float value, factor;
};

/* Those of the result `at` of a tile of kColumns columns of b. */
template <class Out, Ending kEnding, int kColumns>
__device__ inline Addends load_addends(const RowsParams &p, int tile, int at) {
  constexpr bool kGated = kEnding == Ending::kGated;
  constexpr int kResults = kGated ? kColumns / 2 : kColumns;
  Addends sums = {};
  const int row = at / kResults, result = at % kResults, column = tile * kResults + result;
  if (row >= p.m || column >= p.n) return sums;
  const typename Out::Storage *bias = static_cast<const typename Out::Storage *>(p.bias);
  const int place = tile * kColumns + (kGated ? result / 8 * 16 + result % 8 : result);
  if (bias != nullptr) sums.value = Out::widen(bias[place]);
  if (kGated && bias != nullptr) sums.factor = Out::widen(bias[place + 8]);
  if constexpr (kEnding == Ending::kResidual) {
    sums.value += p.beta * Out::widen(static_cast<const typename Out::Storage *>(p.c)[row * p.ldc + column]);
  }
  return sums;
}

/* Whether what is added to a thread's first result is loaded before its sum is there: what kernels before have made
 * mostly is, also of one row as a bias, but to gates and to products of normed rows little is added. */
template <Ending kEnding, bool kNormed>
constexpr bool kIsEarly = kEnding != Ending::kGated && !kNormed;

template <class Out, Ending kEnding, bool kNormed, int kColumns>
__device__ inline Addends load_early(const RowsParams &p, int tile) {
  if constexpr (kIsEarly<kEnding, kNormed>) return load_addends<Out, kEnding, kColumns>(p, tile, threadIdx.x);
  return {};
}

/* Has the biases of a block's tiles in the L2 cache when they are added, if they are constant. */
template <class Out, int kColumns>
__device__ inline void prefetch_biases(const RowsParams &p, int tiles) {
  const int tile = blockIdx.x + threadIdx.x * gridDim.x;
  if (p.bias != nullptr && tile < tiles) {
    prefetch(static_cast<const typename Out::Storage *>(p.bias) + tile * kColumns);
  }
}

/* Adds up in `memory` what the warps of a block have of the results of a tile, and writes these; see load_early. */
template <class Out, class Activation, int kWarps, int kRows, Ending kEnding, bool kNormed, int kTiles, int kParts>
__device__ inline void finish_rows(const RowsParams &p, const float (&acc)[kTiles][kParts][4], int tile,
                                   const Addends &early, const float *sums, float *memory) {
  using Result = typename Out::Storage;
  constexpr bool kGated = kEnding == Ending::kGated;
  constexpr int kColumns = 16 * kTiles, kResults = kGated ? kColumns / 2 : kColumns;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  // [warp, row, column]
#pragma unroll
  for (int i = 0; i < kTiles; i++) {
#pragma unroll
    for (int j = 0; j < kParts; j++) {
#pragma unroll
      for (int n = 0; n < 4; n++) {
        const int row = 8 * j + 2 * t + n % 2, column = 16 * i + n / 2 * 8 + g;
        if (kRows >= 8 || row < kRows) memory[(warp * kRows + row) * kColumns + column] = acc[i][j][n];
      }
    }
  }
  __syncthreads();
#pragma unroll 1
  for (int at = threadIdx.x; at < p.m * kResults; at += 32 * kWarps) {
    const int row = at / kResults, result = at % kResults;
    const int column = tile * kResults + result;
    if (column >= p.n) continue;
    float scale = p.alpha;
    if constexpr (kNormed) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kWarps; i++) sum += sums[i * kRows + row];
      scale *= rsqrtf(sum / float(p.k) + p.epsilon);
    }
    auto product = [&](int place) {
      float sum = 0.0f;
#pragma unroll
      for (int i = 0; i < kWarps; i++) sum += memory[(i * kRows + row) * kColumns + place];
      return sum * scale;
    };
    const bool is_early = kIsEarly<kEnding, kNormed> && at == threadIdx.x;
    const Addends added = is_early ? early : load_addends<Out, kEnding, kColumns>(p, tile, at);
    const int place = kGated ? result / 8 * 16 + result % 8 : result;
    float value = Activation{}(product(place) + added.value);
    if constexpr (kGated) value *= product(place + 8) + added.factor;
    static_cast<Result *>(p.d)[row * p.ldd + column] = Out::narrow(value);
  }
}

/* kRows: 8 or 16 rows of a; a tile has 16 * kTiles columns. */
template <class Type, class Out, class Activation, int kWarps, int kRows, int kTiles, Ending kEnding, bool kNormed>
__device__ inline void rows_product(const RowsParams &p, float *memory) {
  using Storage = typename Type::Storage;
  constexpr bool kGated = kEnding == Ending::kGated;
  constexpr int kParts = kRows / 8, kUnits = 4 / kTiles, kColumns = 16 * kTiles;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int columns = kGated ? 2 * p.n : p.n, tiles = (columns + kColumns - 1) / kColumns;
  const uint4 zero = make_uint4(0, 0, 0, 0);
  const Storage *a = static_cast<const Storage *>(p.a), *b = static_cast<const Storage *>(p.b);

  uint4 w[kUnits][kTiles][2][2], x[kUnits][kParts][2];
  auto load_b = [&](int unit, int tile, int k) {
#pragma unroll
    for (int i = 0; i < kTiles; i++) {
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int column = tile * kColumns + 16 * i + 8 * r + g;
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
  constexpr int kAll = kUnits * kWarps * kRowsUnit, kPartial = kWarps * kRows * kColumns;
  auto place = [&](int unit) { return (unit * kWarps + warp) * kRowsUnit; };

  release_next();
#pragma unroll
  for (int u = 0; u < kUnits; u++) load_b(u, blockIdx.x, place(u));
  prefetch_biases<Out, kColumns>(p, tiles);
  wait_for_earlier();
#pragma unroll
  for (int u = 0; u < kUnits; u++) load_a(u, place(u));
  float *sums = memory + 2 * kPartial;
  if constexpr (kNormed) sum_squares<Type, kWarps, kRows>(p, sums);

  for (int tile = blockIdx.x, turn = 0; tile < tiles; tile += gridDim.x, turn = kPartial - turn) {
    const Addends early = load_early<Out, kEnding, kNormed, kColumns>(p, tile);
    float acc[kTiles][kParts][4] = {};
#pragma unroll 1
    for (int k = 0; k < p.k; k += kAll) {
      const bool ends = k + kAll >= p.k;
      const int next_tile = ends ? tile + gridDim.x : tile, next = ends ? 0 : k + kAll;
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
        // As soon as the registers are free: loads are always under way. Rows that fit stay.
        if (next_tile < tiles) {
          load_b(u, next_tile, next + place(u));
          if (p.k > kAll) load_a(u, next + place(u));
        }
      }
    }
    // Partial sums alternate between two places: none is read any more when it is written again.
    finish_rows<Out, Activation, kWarps, kRows, kEnding, kNormed>(p, acc, tile, early, sums, memory + turn);
  }
}
#endif

#ifdef PK_HOST
/* What a kernel of few rows is made for: so many blocks on a multiprocessor; epsilon is of rows that are normed. */
struct RowsForm {
  int blocks, warps, rows, tiles;
  bool residual, gated;
};

inline int32_t rows_fill(const pk_cuda_device_t *device, const pk_gemm_t &gemm, const RowsForm &form, float epsilon,
                         void *arguments, pk_cuda_launch_t *launch) {
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
  // All blocks run at once, and have as many tiles, or one less.
  const int64_t tile = 16 * form.tiles, tiles = (columns + tile - 1) / tile;
  const int64_t at_once = std::max(1, device->num_sms) * form.blocks, each = (tiles + at_once - 1) / at_once;
  const uint32_t blocks = uint32_t((tiles + each - 1) / each), threads = uint32_t(32 * form.warps);
  *launch = {{blocks, 1, 1}, {threads, 1, 1}, 0, PK_CUDA_PROGRAMMATIC};
  return 0;
}
#endif

}  // namespace pk
