/* What gemm_blocks.h multiplies, of one row.
 *
 * A block's sum is scaled by itself, so that a row needs a column of the matrix instructions for each block. The eight
 * columns are of the blocks of a step: a lane has data for its own column alone, zeros for the others, and a step of
 * many instructions has two scales of a lane. */
#pragma once

#include "gemm_blocks.h"

namespace pk {

#if !defined(PK_HOST) || defined(PK_SIMT)
/* kBlocks: 1 or 2 blocks of a unit; 1 of 8 bits. */
template <class Type, class Out, class Activation, int kWarps, int kBits, int kBlocks, bool kZeros, Ending kEnding,
          bool kNormed>
__device__ inline void row_product(const BlocksParams &p, float *memory) {
  constexpr int kUnit = kUnitBits / kBits, kUnits = kBlockUnits, kAll = kUnits * kWarps, kPartial = kWarps * 16;
  // Of a unit; those of one block are a lane's own.
  constexpr int kChunks = kUnit / 32, kOwn = kChunks / kBlocks;
  static_assert(kOwn > 0 && kUnits * kBlocks <= 8, "a column for each block of a step");
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int tiles = ((kEnding == Ending::kGated ? 2 * p.n : p.n) + 15) / 16;
  const uint4 zero = make_uint4(0, 0, 0, 0);
  const bool normed = kNormed && p.gains != nullptr;

  BlockReader<kBits, kBlocks, kZeros> reader{p};
  uint4 w[kUnits], x[kUnits][kChunks], own[kOwn], gains[kOwn];
  uint32_t s[2], z[kUnits];
  auto load_b = [&](int u, int begin) {
    const int unit = begin + u * kWarps + warp;
    w[u] = reader.load(unit), z[u] = reader.load_zeros(unit);
  };
  // Of columns 2 t and 2 t + 1 of the instructions.
  auto load_scales = [&](int begin) {
    auto exists = [&](int unit) { return unit < kUnits && begin + unit * kWarps + warp < p.units; };
    auto from = [&](int unit) { return reader.scales + reader.numbers(begin + unit * kWarps + warp); };
    if constexpr (kBlocks == 2) {
      const uint2 both = exists(t) ? *reinterpret_cast<const uint2 *>(from(t)) : make_uint2(0, 0);
      s[0] = both.x, s[1] = both.y;
    } else {
#pragma unroll
      for (int i = 0; i < 2; i++) s[i] = exists(2 * t + i) ? *from(2 * t + i) : 0;
    }
  };
  auto load_own = [&](uint4(&to)[kOwn], const void *from, int begin) {
    const int unit = begin + g / kBlocks * kWarps + warp;
#pragma unroll
    for (int i = 0; i < kOwn; i++) {
      const int at = unit * kUnit + 32 * (g % kBlocks * kOwn + i) + 8 * t;
      const uint4 *place = reinterpret_cast<const uint4 *>(static_cast<const uint16_t *>(from) + at);
      to[i] = g < kUnits * kBlocks && at < p.k ? *place : zero;
    }
  };

  release_next();
  reader.begin_tile(blockIdx.x);
#pragma unroll
  for (int u = 0; u < kUnits; u++) load_b(u, 0);
  load_scales(0);
  if (normed) load_own(gains, p.gains, 0);
  prefetch_biases<Out, 16>(p, tiles);
  wait_for_earlier();
  load_own(own, p.a, 0);

  float *sums = memory + 2 * kPartial, squares = 0.0f;
  const bool stays = p.units <= kAll;  // the data, for all tiles
  for (int tile = blockIdx.x, turn = 0; tile < tiles; tile += gridDim.x, turn = kPartial - turn) {
    const Addends early = load_early<Out, kEnding, kNormed, 16>(p, tile);
    const bool first = tile == blockIdx.x;
    float total[4] = {};
#pragma unroll 1
    for (int begin = 0; begin < p.units; begin += kAll) {
      const bool ends = begin + kAll >= p.units, more = !ends || tile + gridDim.x < tiles;
      const int next = ends ? 0 : begin + kAll;
      if (ends && more) reader.begin_tile(tile + gridDim.x);
      if (first || !stays) {
#pragma unroll
        for (int i = 0; i < kOwn; i++) {
          if (kNormed && first) squares += squares_of<Type>(own[i]);
          if (normed) own[i] = times<Type>(own[i], gains[i]);
        }
#pragma unroll
        for (int u = 0; u < kUnits; u++) {
#pragma unroll
          for (int c = 0; c < kChunks; c++) x[u][c] = g == u * kBlocks + c / kOwn ? own[c % kOwn] : zero;
        }
        if (more && !stays) load_own(own, p.a, next);
        if (more && !stays && normed) load_own(gains, p.gains, next);
      }
      // Two, so that fewer instructions wait for one before them.
      float acc[2][4] = {};
#pragma unroll
      for (int u = 0; u < kUnits; u++) {
#pragma unroll
        for (int c = 0; c < kChunks; c++) {
          uint32_t top[4], bottom[4];
          reader.unpack_chunk(w[u], c, z[u], c / kOwn, top, bottom);
          convert<Type>(top), convert<Type>(bottom);
          mma<Type>(acc[0], top[0], bottom[0], top[1], bottom[1], x[u][c].x, x[u][c].y);
          mma<Type>(acc[1], top[2], bottom[2], top[3], bottom[3], x[u][c].z, x[u][c].w);
        }
        // As soon as the registers are free: loads are always under way.
        if (more) load_b(u, next);
      }
#pragma unroll
      for (int n = 0; n < 4; n++) {
        const float scale = n / 2 ? high_of<F16>(s[n % 2]) : low_of<F16>(s[n % 2]);
        total[n] += scale * (acc[0][n] + acc[1][n]);
      }
      if (more) load_scales(next);
    }
    if (kNormed && first) {
#pragma unroll
      for (int lanes = 16; lanes > 0; lanes /= 2) squares += shuffle_xor(squares, lanes);
      if (lane == 0) sums[warp] = squares;
    }
    // All that a quad has is of one row.
    float acc[1][1][4] = {};
#pragma unroll
    for (int n = 0; n < 4; n += 2) {
      const float sum = total[n] + total[n + 1], pair = sum + shuffle_xor(sum, 1);
      acc[0][0][n] = pair + shuffle_xor(pair, 2);
    }
    finish_rows<Out, Activation, kWarps, 1, kEnding, kNormed>(p, acc, tile, early, sums, memory + turn);
  }
}
#endif

}  // namespace pk
