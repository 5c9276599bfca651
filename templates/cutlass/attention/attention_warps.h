/* Attention of short sequences: the pixels of a patch, the frames of a place, the columns of a table. There are
 * thousands of heads, whose time is that of reading them once; tiles of 64 rows would be empty for the most part.
 *
 * A warp has 16 rows, which are the queries of all heads that share a head of keys, and all keys. It reads what its
 * lanes need 16 bytes at a time, in the order of dims that attention_split.h has, and keeps it in registers; nothing is
 * shared with another warp but the cache. */
#pragma once

#include "attention_warps_problem.h"

#if !defined(PK_HOST) || defined(PK_SIMT)
namespace pk {

/* kDepth is a bound of both head dims, kKeys that of the keys. */
template <class Type, int kDepth, int kKeys>
__device__ inline void warp_attention(const WarpsParams &params) {
  constexpr int kTiles = kKeys / 8, kChunks = kDepth / 32, kSpans = (kDepth + 63) / 64;
  using Storage = typename Type::Storage;
  const SplitParams &p = params.rows;
  release_next();
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int64_t index = int64_t(blockIdx.x) * kWarpsOfBlock + threadIdx.x / 32;
  const bool is_there = index < params.tiles;
  // Neighbors have tiles of one head, then the next head of the same rows.
  const int64_t row_tiles = p.row_tiles.divisor;
  const int row_tile = int(index % row_tiles), head = int(index / row_tiles % params.shared_heads);
  const int batch = int(index / row_tiles / params.shared_heads);
  wait_for_earlier();
  if (!is_there) return;
  const int keys = split_keys(p, batch);

  const SplitRow mine[2] = {split_row_of(p, row_tile * kSplitRows + g, head, batch),
                            split_row_of(p, row_tile * kSplitRows + g + 8, head, batch)};
  const Storage *const q = static_cast<const Storage *>(p.q);
  const Storage *const k = static_cast<const Storage *>(p.k) + batch * p.k_strides[0] + head * p.k_strides[2];
  const Storage *const v = static_cast<const Storage *>(p.v) + batch * p.v_strides[0] + head * p.v_strides[2];
  auto load = [](const Storage *from, bool exists) {
    return exists ? *reinterpret_cast<const uint4 *>(from) : make_uint4(0, 0, 0, 0);
  };

  float scores[kTiles][4] = {};
#pragma unroll
  for (int c = 0; c < kChunks; c++) {
    const int dim = 32 * c + 8 * t;
    uint4 x[2];
#pragma unroll
    for (int i = 0; i < 2; i++) x[i] = load(q + mine[i].q + dim, mine[i].exists && dim < p.depth);
#pragma unroll
    for (int j = 0; j < kTiles; j++) {
      const int key = 8 * j + g;
      const uint4 y = load(k + key * p.k_strides[1] + dim, key < keys && dim < p.depth);
      mma<Type>(scores[j], x[0].x, x[1].x, x[0].y, x[1].y, y.x, y.y);
      mma<Type>(scores[j], x[0].z, x[1].z, x[0].w, x[1].w, y.z, y.w);
    }
  }

  split_scale(p, scores);
  uint32_t bias[kTiles][2] = {};
#pragma unroll
  for (int j = 0; j < kTiles; j++) {
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (p.bias != nullptr) bias[j][i] = split_bias<Type>(p, mine[i], 8 * j + 2 * t, keys);
    }
  }
  split_mask<Type>(p, mine, scores, bias, 2 * t, keys, kKeys <= keys);
  float most[2] = {split_sink(p, mine[0]), split_sink(p, mine[1])}, total[2] = {};
#pragma unroll
  for (int j = 0; j < kTiles; j++) {
#pragma unroll
    for (int n = 0; n < 4; n++) most[n / 2] = fmaxf(most[n / 2], scores[j][n]);
  }
#pragma unroll
  for (int i = 0; i < 2; i++) {
    most[i] = fmaxf(most[i], shuffle_xor(most[i], 1));
    most[i] = fmaxf(most[i], shuffle_xor(most[i], 2));
    if (most[i] == -INFINITY) most[i] = 0.0f;
  }
  uint32_t a[kTiles][2];
#pragma unroll
  for (int j = 0; j < kTiles; j++) {
#pragma unroll
    for (int n = 0; n < 4; n++) {
      scores[j][n] = exp2_of((scores[j][n] - most[n / 2]) * kLog2OfE);
      total[n / 2] += scores[j][n];
    }
    a[j][0] = pack<Type>(scores[j][0], scores[j][1]), a[j][1] = pack<Type>(scores[j][2], scores[j][3]);
  }
  float factor[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    total[i] += shuffle_xor(total[i], 1);
    total[i] += shuffle_xor(total[i], 2);
    total[i] += exp2_of((split_sink(p, mine[i]) - most[i]) * kLog2OfE);
    factor[i] = total[i] > 0.0f ? 1.0f / total[i] : 0.0f;
  }

#pragma unroll
  for (int c = 0; c < kSpans; c++) {
    float acc[8][4] = {};
#pragma unroll
    for (int i = 0; i < kKeys / 16; i++) {
      uint4 x[4];
#pragma unroll
      for (int n = 0; n < 4; n++) {
        const int key = 16 * i + 2 * t + n % 2 + n / 2 * 8, dim = 64 * c + 8 * g;
        x[n] = load(v + key * p.v_strides[1] + dim, key < keys && dim < p.value_depth);
      }
      split_add_values<Type>(acc, a[2 * i], a[2 * i + 1], x);
    }
#pragma unroll
    for (int n = 0; n < 4; n++) {
      const int i = n / 2, dim = 64 * c + 16 * t + 8 * (n % 2);
      if (!mine[i].exists || dim >= p.value_depth) continue;
      uint4 x;
      x.x = pack<Type>(acc[0][n] * factor[i], acc[1][n] * factor[i]);
      x.y = pack<Type>(acc[2][n] * factor[i], acc[3][n] * factor[i]);
      x.z = pack<Type>(acc[4][n] * factor[i], acc[5][n] * factor[i]);
      x.w = pack<Type>(acc[6][n] * factor[i], acc[7][n] * factor[i]);
      *reinterpret_cast<uint4 *>(static_cast<Storage *>(p.o) + mine[i].o + dim) = x;
    }
  }
}

}  // namespace pk
#endif
