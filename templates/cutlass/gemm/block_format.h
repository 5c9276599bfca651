/* Weights of 4 or 8 bits in blocks along k, as kernels read them.
 *
 * Elements q are whole numbers: as halves q - zero is exact. A tile has 16 columns; a unit is 512 bytes of it, 16 of each
 * lane: `pack_weights` of packager/backends/cutlass/gemm/block_weights.py is their order. */
#pragma once

#include <algorithm>

#include "warp.h"

namespace pk {

/* Of a column in a unit. */
constexpr int kUnitBits = 256;

#if !defined(PK_HOST) || defined(PK_SIMT)
/* Minus what is to be subtracted of 1024 + q, or of 64 + q, as a pair of halves. */
__device__ inline uint32_t less_1024(uint32_t zero) { return 0xe400e400u + zero * 0x00010001u; }
__device__ inline uint32_t less_64(uint32_t zero) { return 0xd400d400u + zero * 0x00100010u; }
constexpr uint32_t kOne = 0x3c003c00u;

/* Elements 0 to 7 of k as pairs of halves, less the zero point: of four bits in the low word alone, whose nibbles are
 * those of 0 2 4 6 1 3 5 7. The bits of 1024 + q are 0x6400 | q, those of 64 + q are 0x5400 | q << 4. */
template <int kBits>
__device__ inline void unpack(uint32_t low, uint32_t high, uint32_t zero, uint32_t (&pairs)[4]) {
  const uint32_t less = less_1024(zero);
  if constexpr (kBits == 4) {
    const uint32_t less_sixteen = less_64(zero), above = low >> 8;
    pairs[0] = fma_pairs(select_bits(low, 0x000f000fu, 0x64006400u), kOne, less);
    pairs[1] = fma_pairs(select_bits(low, 0x00f000f0u, 0x54005400u), kOne, less_sixteen);
    pairs[2] = fma_pairs(select_bits(above, 0x000f000fu, 0x64006400u), kOne, less);
    pairs[3] = fma_pairs(select_bits(above, 0x00f000f0u, 0x54005400u), kOne, less_sixteen);
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
#endif

}  // namespace pk
