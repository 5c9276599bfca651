/* d = act(alpha * a b + bias + beta * c) of few rows, where b has 4 or 8 bits an element, quantized in blocks along k.
 *
 * b's elements q are whole numbers: as halves q - zero is exact, and so are products with a in float32. The sum over a
 * block, or over what a lane takes of it, is scaled in float32. Of blocks of 16, which are less than a matrix
 * instruction takes, the elements are scaled, and rounded, as where they are dequantized at build time. A tile has 16
 * columns; a unit is 512 bytes of it, 16 of each lane: `pack_weights` of packager/backends/cutlass/gemm/block_weights.py
 * is their order. */
#pragma once

#include "gemm_rows.h"

namespace pk {

struct BlocksParams : RowsParams {
  const void *gains;     /* of normed rows, or NULL */
  const void *scales;    /* [tiles, blocks / kBlocks, 8, kBlocks, 2] halves: of columns g and g + 8 */
  const void *zeros;     /* likewise, bytes */
  int32_t units, blocks; /* of a column */
  int32_t shift;         /* a block of several units has 1 << shift */
};

/* Of a column in a unit. */
constexpr int kUnitBits = 256;

#if !defined(PK_HOST) || defined(PK_SIMT)
/* Minus what is to be subtracted of 1024 + q, or of 64 + q, as a pair of halves. */
__device__ inline uint32_t less_1024(uint32_t zero) { return 0xe400e400u + zero * 0x00010001u; }
__device__ inline uint32_t less_64(uint32_t zero) { return 0xd400d400u + zero * 0x00100010u; }
constexpr uint32_t kOne = 0x3c003c00u, kSixteenth = 0x2c002c00u;

/* Elements 0 to 7 of k as pairs of halves, less the zero point: of four bits in the low word alone, whose nibbles are
 * those of 0 2 4 6 1 3 5 7. The bits of 1024 + q are 0x6400 | q. */
template <int kBits>
__device__ inline void unpack(uint32_t low, uint32_t high, uint32_t zero, uint32_t (&pairs)[4]) {
  const uint32_t less = less_1024(zero);
  if constexpr (kBits == 4) {
    const uint32_t less_sixteenth = less_64(zero);
    pairs[0] = fma_pairs((low & 0x000f000fu) | 0x64006400u, kOne, less);
    pairs[1] = fma_pairs((low & 0x00f000f0u) | 0x64006400u, kSixteenth, less_sixteenth);
    pairs[2] = fma_pairs((low >> 8 & 0x000f000fu) | 0x64006400u, kOne, less);
    pairs[3] = fma_pairs((low >> 8 & 0x00f000f0u) | 0x64006400u, kSixteenth, less_sixteenth);
  } else {
    pairs[0] = fma_pairs(low_bytes(low, 0x64u), kOne, less);
    pairs[1] = fma_pairs(high_bytes(low, 0x64u), kOne, less);
    pairs[2] = fma_pairs(low_bytes(high, 0x64u), kOne, less);
    pairs[3] = fma_pairs(high_bytes(high, 0x64u), kOne, less);
  }
}

constexpr uint32_t kMinusZeros = 0x80008000u;

/* Pairs of whole halves as those of a type, which is exact. */
template <class Type>
__device__ inline void convert(uint32_t (&pairs)[4]) {
  if constexpr (!Type::kIsHalf) {
#pragma unroll
    for (int i = 0; i < 4; i++) pairs[i] = pack<Type>(low_of<F16>(pairs[i]), high_of<F16>(pairs[i]));
  }
}
/* Pairs of whole halves times a scale, the low half of `scales` or the high one, rounded once to a type. */
template <class Type>
__device__ inline void convert(uint32_t (&pairs)[4], uint32_t scales, bool high) {
  const float scale = high ? high_of<F16>(scales) : low_of<F16>(scales);
#pragma unroll
  for (int i = 0; i < 4; i++) {
    if constexpr (Type::kIsHalf) {
      pairs[i] = fma_pairs(pairs[i], high ? high_halves(scales, scales) : low_halves(scales, scales), kMinusZeros);
    } else {
      pairs[i] = pack<Type>(low_of<F16>(pairs[i]) * scale, high_of<F16>(pairs[i]) * scale);
    }
  }
}

/* Eight elements times eight others, rounded to their type. */
template <class Type>
__device__ inline uint4 times(const uint4 &x, const uint4 &y) {
  auto pairs = [](uint32_t left, uint32_t right) {
    if constexpr (Type::kIsHalf) {
      return fma_pairs(left, right, 0x80008000u);
    } else {
      return pack<Type>(low_of<Type>(left) * low_of<Type>(right), high_of<Type>(left) * high_of<Type>(right));
    }
  };
  return make_uint4(pairs(x.x, y.x), pairs(x.y, y.y), pairs(x.z, y.z), pairs(x.w, y.w));
}

/* kRows: 8 or 16 rows of a. kBlocks: blocks of a unit, 1 where a block is a unit or more. */
template <class Type, class Out, class Activation, int kWarps, int kRows, int kBits, int kBlocks, bool kZeros,
          bool kGated, bool kNormed>
__device__ inline void blocks_product(const BlocksParams &p, float *memory) {
  constexpr int kParts = kRows / 8, kUnit = kUnitBits / kBits, kChunks = kUnit / 32;
  // Several blocks are of a chunk, of which a lane's elements are of one; else a block is of whole chunks.
  constexpr bool kInside = kBlocks > kChunks;
  constexpr int kScales = kInside ? kChunks : kBlocks;
  // Of weights, and of the data, which are near: what is under way.
  constexpr int kUnits = 4, kAhead = kRows == 8 ? 4 : 2;
  constexpr int kAll = kUnits * kWarps, kPartial = kWarps * kRows * 16;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int tiles = ((kGated ? 2 * p.n : p.n) + 15) / 16;
  const uint4 zero = make_uint4(0, 0, 0, 0);
  const uint16_t *a = static_cast<const uint16_t *>(p.a), *all_gains = static_cast<const uint16_t *>(p.gains);
  const uint4 *b = static_cast<const uint4 *>(p.b) + lane;
  const uint32_t *all_scales = static_cast<const uint32_t *>(p.scales);
  const uint16_t *all_zeros = static_cast<const uint16_t *>(p.zeros);

  uint4 w[kUnits], x[kAhead][kParts][kChunks];
  uint32_t s[kUnits][kScales], z[kUnits];
  auto load_b = [&](int place, int tile, int unit) {
    const bool inside = unit < p.units;
    const int64_t at = (int64_t(unit >> p.shift) * 8 + g) * kBlocks, pairs = int64_t(tile) * p.blocks * 8;
    const uint32_t *scales = all_scales + pairs;
    const uint16_t *zeros = all_zeros + pairs;
    w[place] = inside ? load_once(b + (int64_t(tile) * p.units + unit) * 32) : zero;
    if constexpr (kInside) {
      z[place] = 0;
#pragma unroll
      for (int c = 0; c < kChunks; c++) {
        const int64_t own = at + (32 * c + 8 * t) / (kUnit / kBlocks);
        s[place][c] = inside ? scales[own] : 0;
        if constexpr (kZeros) z[place] |= inside ? uint32_t(zeros[own]) << 16 * c : 0;
      }
    } else if constexpr (kBlocks == 2) {
      const uint2 both = inside ? *reinterpret_cast<const uint2 *>(scales + at) : make_uint2(0, 0);
      s[place][0] = both.x, s[place][1] = both.y;
      if constexpr (kZeros) z[place] = inside ? *reinterpret_cast<const uint32_t *>(zeros + at) : 0;
    } else {
      s[place][0] = inside ? scales[at] : 0;
      if constexpr (kZeros) z[place] = inside ? zeros[at] : 0;
    }
  };
  auto load_a = [&](int place, int unit) {
#pragma unroll
    for (int i = 0; i < kParts; i++) {
      const int row = 8 * i + g;
#pragma unroll
      for (int c = 0; c < kChunks; c++) {
        const int64_t at = int64_t(unit) * kUnit + 32 * c + 8 * t;
        x[place][i][c] = row < p.m && at < p.k ? *reinterpret_cast<const uint4 *>(a + row * p.lda + at) : zero;
      }
    }
  };

  auto gain = [&](int place, int unit) {
#pragma unroll
    for (int c = 0; c < kChunks; c++) {
      const int64_t at = int64_t(unit) * kUnit + 32 * c + 8 * t;
      const uint4 gains = at < p.k ? *reinterpret_cast<const uint4 *>(all_gains + at) : zero;
#pragma unroll
      for (int i = 0; i < kParts; i++) x[place][i][c] = times<Type>(x[place][i][c], gains);
    }
  };

  release_next();
#pragma unroll
  for (int u = 0; u < kUnits; u++) load_b(u, blockIdx.x, u * kWarps + warp);
  wait_for_earlier();
#pragma unroll
  for (int u = 0; u < kAhead; u++) load_a(u, u * kWarps + warp);
  float *sums = memory + 2 * kPartial;
  if constexpr (kNormed) sum_squares<Type, kWarps, kRows>(p, sums);

  const bool stays = kAhead == kUnits && p.units <= kAll;  // the data, for all tiles
  for (int tile = blockIdx.x, turn = 0; tile < tiles; tile += gridDim.x, turn = kPartial - turn) {
    float acc[1][kParts][4] = {};
#pragma unroll 1
    for (int begin = 0; begin < p.units; begin += kAll) {
      const bool ends = begin + kAll >= p.units;
      const int next_tile = ends ? tile + gridDim.x : tile, next = ends ? 0 : begin + kAll;
#pragma unroll
      for (int u = 0; u < kUnits; u++) {
        const uint32_t words[4] = {w[u].x, w[u].y, w[u].z, w[u].w};
        if constexpr (kNormed) {
          if (p.gains && (!stays || tile == blockIdx.x)) gain(u % kAhead, begin + u * kWarps + warp);
        }
#pragma unroll
        for (int block = 0; block < kScales; block++) {
          float part[kParts][4] = {};
          const uint32_t of_block = kZeros ? z[u] >> 16 * block : 0;
          const uint32_t zero_top = kZeros ? of_block & 0xff : 1u << (kBits - 1),
                         zero_bottom = kZeros ? of_block >> 8 & 0xff : 1u << (kBits - 1);
#pragma unroll
          for (int c = block * kChunks / kScales; c < (block + 1) * kChunks / kScales; c++) {
            uint32_t top[4], bottom[4];
            if constexpr (kBits == 4) {
              unpack<4>(words[2 * c], 0, zero_top, top), unpack<4>(words[2 * c + 1], 0, zero_bottom, bottom);
            } else {
              unpack<8>(words[0], words[1], zero_top, top), unpack<8>(words[2], words[3], zero_bottom, bottom);
            }
            if constexpr (kInside) {
              convert<Type>(top, s[u][block], false), convert<Type>(bottom, s[u][block], true);
            } else {
              convert<Type>(top), convert<Type>(bottom);
            }
#pragma unroll
            for (int j = 0; j < kParts; j++) {
              const uint4 &right = x[u % kAhead][j][c];
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
        if (next_tile < tiles) load_b(u, next_tile, next + u * kWarps + warp);
        if (const int ahead = u + kAhead; ahead < kUnits) {
          load_a(u % kAhead, begin + ahead * kWarps + warp);
        } else if (next_tile < tiles && !stays) {
          load_a(u % kAhead, next + (ahead - kUnits) * kWarps + warp);
        }
      }
    }
    finish_rows<Out, Activation, kWarps, kGated, kNormed>(p, acc, tile, sums, memory + turn);
  }
}
#endif

#ifdef PK_HOST
/* How weights [n, k] lie in memory, of which the kernels know `blocks_of_unit`. */
struct BlockLayout {
  int32_t units, blocks, shift; /* as in BlocksParams */
};

/* Returns whether there is such a layout. */
inline bool block_layout(int64_t k, int64_t block, int bits, int blocks_of_unit, BlockLayout *layout) {
  const int unit = kUnitBits / bits;
  if (blocks_of_unit == 1 ? block < unit || block % unit != 0 : block * blocks_of_unit != unit) return false;
  const int64_t units_of_block = std::max<int64_t>(1, block / unit);
  if ((units_of_block & (units_of_block - 1)) != 0 || units_of_block > 1 << 20) return false;
  layout->units = int32_t((k + unit - 1) / unit);
  layout->shift = 0;
  while (1 << layout->shift < units_of_block) layout->shift++;
  layout->blocks = blocks_of_unit == 1 ? int32_t((layout->units + units_of_block - 1) / units_of_block)
                                       : layout->units * blocks_of_unit;
  return true;
}

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
