/* d = act(alpha * a b + bias + beta * c) of few rows, where b has 4 or 8 bits an element, quantized in blocks along k.
 *
 * Products of b's elements less their zero points with a are exact in float32, in which the sum over a block, or over
 * what a lane takes of it, is scaled. Of blocks of 16, which are less than a matrix instruction takes, the elements are
 * scaled, and rounded, as where they are dequantized at build time. */
#pragma once

#include "block_format.h"
#include "gemm_rows.h"

namespace pk {

struct BlocksParams : RowsParams {
  const void *gains;     /* of normed rows, or NULL */
  const void *scales;    /* [tiles, blocks / kBlocks, 8, kBlocks, 2] halves: of columns g and g + 8 */
  const void *zeros;     /* likewise, bytes */
  int32_t units, blocks; /* of a column */
  int32_t shift;         /* a block of several units has 1 << shift */
};

/* Units of a warp that are under way. */
constexpr int kBlockUnits = 4;

#if !defined(PK_HOST) || defined(PK_SIMT)
/* What a lane reads of a tile. kBlocks: blocks of a unit, 1 where a block is a unit or more. */
template <int kBits, int kBlocks, bool kZeros>
struct BlockReader {
  const BlocksParams &p;
  const uint4 *weights;
  const uint32_t *scales;
  const uint16_t *zeros;

  __device__ inline void begin_tile(int tile) {
    const int lane = threadIdx.x % 32;
    const int64_t pairs = int64_t(tile) * p.blocks * 8 + lane / 4 * kBlocks;
    weights = static_cast<const uint4 *>(p.b) + int64_t(tile) * p.units * 32 + lane;
    scales = static_cast<const uint32_t *>(p.scales) + pairs;
    zeros = kZeros ? static_cast<const uint16_t *>(p.zeros) + pairs : nullptr;
  }
  __device__ inline uint4 load(int unit) const {
    return unit < p.units ? load_once(weights + unit * 32) : make_uint4(0, 0, 0, 0);
  }
  /* Where the numbers of a unit's blocks begin among scales and zeros. */
  __device__ inline int numbers(int unit) const { return (unit >> p.shift) * 8 * kBlocks; }
  /* The zero points of the blocks of a unit, of one or two, in turns of columns g and g + 8. */
  __device__ inline uint32_t load_zeros(int unit) const {
    if (!kZeros || unit >= p.units) return 0;
    const uint16_t *from = zeros + numbers(unit);
    return kBlocks == 2 ? *reinterpret_cast<const uint32_t *>(from) : *from;
  }
  /* Elements of a chunk, of columns g and g + 8: those of a lane less the zero points of `block`. */
  __device__ static inline void unpack_chunk(const uint4 &w, int chunk, uint32_t zeros, int block, uint32_t (&top)[4],
                                             uint32_t (&bottom)[4]) {
    constexpr uint32_t kMiddle = 1u << (kBits - 1);
    const uint32_t words[4] = {w.x, w.y, w.z, w.w}, of_block = zeros >> 16 * block;
    const uint32_t zero_top = kZeros ? of_block & 0xff : kMiddle, zero_bottom = kZeros ? of_block >> 8 & 0xff : kMiddle;
    if constexpr (kBits == 4) {
      unpack<4>(words[2 * chunk], 0, zero_top, top), unpack<4>(words[2 * chunk + 1], 0, zero_bottom, bottom);
    } else {
      unpack<8>(words[0], words[1], zero_top, top), unpack<8>(words[2], words[3], zero_bottom, bottom);
    }
  }
};

/* kRows: 8 or 16 rows of a. */
template <class Type, class Out, class Activation, int kWarps, int kRows, int kBits, int kBlocks, bool kZeros,
          Ending kEnding, bool kNormed>
__device__ inline void blocks_product(const BlocksParams &p, float *memory) {
  constexpr int kParts = kRows / 8, kUnit = kUnitBits / kBits, kChunks = kUnit / 32;
  // Several blocks are of a chunk, of which a lane's elements are of one; else a block is of whole chunks.
  constexpr bool kInside = kBlocks > kChunks;
  constexpr int kScales = kInside ? kChunks : kBlocks;
  // Units of the data, which are near, under way.
  constexpr int kUnits = kBlockUnits, kAhead = kRows == 8 ? kUnits : 2;
  constexpr int kAll = kUnits * kWarps, kPartial = kWarps * kRows * 16;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int tiles = ((kEnding == Ending::kGated ? 2 * p.n : p.n) + 15) / 16;
  const uint4 zero = make_uint4(0, 0, 0, 0);
  const uint16_t *a = static_cast<const uint16_t *>(p.a), *all_gains = static_cast<const uint16_t *>(p.gains);

  BlockReader<kBits, kBlocks, kZeros> reader{p};
  uint4 w[kUnits], x[kAhead][kParts][kChunks], gains[kAhead][kChunks];
  uint32_t s[kUnits][kScales], z[kUnits];
  auto load_b = [&](int place, int unit) {
    w[place] = reader.load(unit);
    const bool inside = unit < p.units;
    const int at = reader.numbers(unit);
    if constexpr (kInside) {
      z[place] = 0;
#pragma unroll
      for (int c = 0; c < kChunks; c++) {
        const int own = at + (32 * c + 8 * t) / (kUnit / kBlocks);
        s[place][c] = inside ? reader.scales[own] : 0;
        if constexpr (kZeros) z[place] |= inside ? uint32_t(reader.zeros[own]) << 16 * c : 0;
      }
    } else {
      z[place] = reader.load_zeros(unit);
      if constexpr (kBlocks == 2) {
        const uint2 both = inside ? *reinterpret_cast<const uint2 *>(reader.scales + at) : make_uint2(0, 0);
        s[place][0] = both.x, s[place][1] = both.y;
      } else {
        s[place][0] = inside ? reader.scales[at] : 0;
      }
    }
  };
  auto load_a = [&](int place, int unit) {
#pragma unroll
    for (int i = 0; i < kParts; i++) {
      const int row = 8 * i + g;
#pragma unroll
      for (int c = 0; c < kChunks; c++) {
        const int at = unit * kUnit + 32 * c + 8 * t;
        x[place][i][c] = row < p.m && at < p.k ? *reinterpret_cast<const uint4 *>(a + row * p.lda + at) : zero;
      }
    }
  };
  auto load_gains = [&](int place, int unit) {
    if (!kNormed || p.gains == nullptr) return;
#pragma unroll
    for (int c = 0; c < kChunks; c++) {
      const int at = unit * kUnit + 32 * c + 8 * t;
      gains[place][c] = at < p.k ? *reinterpret_cast<const uint4 *>(all_gains + at) : zero;
    }
  };

  release_next();
  reader.begin_tile(blockIdx.x);
#pragma unroll
  for (int u = 0; u < kUnits; u++) load_b(u, u * kWarps + warp);
#pragma unroll
  for (int u = 0; u < kAhead; u++) load_gains(u, u * kWarps + warp);
  prefetch_biases<Out, 16>(p, tiles);
  wait_for_earlier();
#pragma unroll
  for (int u = 0; u < kAhead; u++) load_a(u, u * kWarps + warp);
  float *sums = memory + 2 * kPartial;
  if constexpr (kNormed) sum_squares<Type, kWarps, kRows>(p, sums);

  const bool stays = kAhead == kUnits && p.units <= kAll;  // the data, for all tiles
  for (int tile = blockIdx.x, turn = 0; tile < tiles; tile += gridDim.x, turn = kPartial - turn) {
    const Addends early = load_early<Out, kEnding, kNormed, 16>(p, tile);
    float acc[1][kParts][4] = {};
#pragma unroll 1
    for (int begin = 0; begin < p.units; begin += kAll) {
      const bool ends = begin + kAll >= p.units, more = !ends || tile + gridDim.x < tiles;
      const int next = ends ? 0 : begin + kAll;
      if (ends && more) reader.begin_tile(tile + gridDim.x);
#pragma unroll
      for (int u = 0; u < kUnits; u++) {
        const int place = u % kAhead;
        if constexpr (kNormed) {
          if (p.gains && (!stays || tile == blockIdx.x)) {
#pragma unroll
            for (int i = 0; i < kParts; i++) {
#pragma unroll
              for (int c = 0; c < kChunks; c++) x[place][i][c] = times<Type>(x[place][i][c], gains[place][c]);
            }
          }
        }
#pragma unroll
        for (int block = 0; block < kScales; block++) {
          float part[kParts][4] = {};
#pragma unroll
          for (int c = block * kChunks / kScales; c < (block + 1) * kChunks / kScales; c++) {
            uint32_t top[4], bottom[4];
            reader.unpack_chunk(w[u], c, z[u], block, top, bottom);
            if constexpr (kInside) {
              convert<Type>(top, s[u][block], false), convert<Type>(bottom, s[u][block], true);
            } else {
              convert<Type>(top), convert<Type>(bottom);
            }
#pragma unroll
            for (int j = 0; j < kParts; j++) {
              const uint4 &right = x[place][j][c];
              float(&sum)[4] = kInside ? acc[0][j] : part[j];
              mma<Type>(sum, top[0], bottom[0], top[1], bottom[1], right.x, right.y);
              mma<Type>(sum, top[2], bottom[2], top[3], bottom[3], right.z, right.w);
            }
          }
          if constexpr (!kInside) {
            const float scale[2] = {low_of<F16>(s[u][block]), high_of<F16>(s[u][block])};
#pragma unroll
            for (int j = 0; j < kParts; j++) {
#pragma unroll
              for (int n = 0; n < 4; n++) acc[0][j][n] += scale[n / 2] * part[j][n];
            }
          }
        }
        // As soon as the registers are free: loads are always under way.
        if (more) load_b(u, next + u * kWarps + warp);
        const bool comes = u + kAhead < kUnits;
        const int unit = (comes ? begin + (u + kAhead) * kWarps : next + (u + kAhead - kUnits) * kWarps) + warp;
        if (comes || (more && !stays)) load_a(place, unit), load_gains(place, unit);
      }
    }
    finish_rows<Out, Activation, kWarps, kRows, kEnding, kNormed>(p, acc, tile, early, sums, memory + turn);
  }
}
#endif

#ifdef PK_HOST
/* What a kernel is made for, beside its rows. */
struct BlocksForm {
  int bits, blocks_of_unit;
  bool zeros;
};

inline int32_t blocks_fill(const pk_cuda_device_t *device, const pk_block_gemm_t &problem, const RowsForm &rows,
                           const BlocksForm &form, const void *gains, float epsilon, void *arguments,
                           pk_cuda_launch_t *launch) {
  pk_gemm_t gemm = problem.gemm;
  gemm.ldb = gemm.k;  // packed weights have no leading dimension
  *launch = {};
  BlockLayout layout;
  if (!block_layout(gemm.k, problem.block, form.bits, form.blocks_of_unit, &layout)) return -1;
  if (!problem.scales || reinterpret_cast<uintptr_t>(problem.scales) % 8 != 0) return -1;
  if (form.zeros && (!problem.zeros || reinterpret_cast<uintptr_t>(problem.zeros) % 4 != 0)) return -1;
  BlocksParams &p = *static_cast<BlocksParams *>(arguments);
  if (reinterpret_cast<uintptr_t>(gains) % 16 != 0) return -1;
  if (const int32_t status = rows_fill(device, gemm, rows, epsilon, &p, launch)) return status;
  p.gains = gains, p.scales = problem.scales, p.zeros = form.zeros ? problem.zeros : nullptr;
  p.units = layout.units, p.blocks = layout.blocks, p.shift = layout.shift;
  return 0;
}
#endif

}  // namespace pk
