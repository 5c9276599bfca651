/* What the blocks of an attention of few rows know of it. */
#pragma once

#include "problems.h"
//
#include <math.h>

#include "tiles.h"

namespace pk {

constexpr int kSplitRows = 16;
/* Steps whose keys and values are under way. */
constexpr int kSplitStages = 2;
/* Partial results of one problem that the workspace has room for, and of a tile. */
constexpr int64_t kSplitBlocks = 768, kMostSplitParts = 256;

/* Keys of a step of a warp, and its tiles in shared memory: those of keys, then those of values. */
constexpr int split_step(int depth) { return depth <= 64 ? 32 : 16; }
constexpr int split_tile(int depth) { return split_step(depth) * kTileRowBytes; }
constexpr int split_stage(int depth) { return depth / kTileColumns * 2 * split_tile(depth); }
/* Warps of a block: one that the copy engine serves has a multiprocessor of its own, of others two have one. */
constexpr int split_warps(int depth, bool tiled) { return (depth <= 128 ? 4 : 2) * (tiled ? 2 : 1); }
/* What a block has of shared memory: the steps under way, their barriers, and, in a cluster, what it is sent. */
constexpr int split_ring(int depth, bool tiled) {
  return split_warps(depth, tiled) * kSplitStages * (split_stage(depth) + int(sizeof(uint64_t)));
}
/* The most quads of results that a block of a cluster merges. */
constexpr int split_share(int depth, int blocks) { return kSplitRows * depth / 4 / blocks; }
constexpr int split_inbox(int depth, int blocks) { return 16 + blocks * split_share(depth, blocks) * (16 + 8); }
constexpr int split_shared(int depth, bool tiled, int cluster) {
  return split_ring(depth, tiled) + (cluster ? split_inbox(depth, cluster) : 0);
}

/* Divides numbers below 2^16, by one of those, with a multiplication. */
struct Divisor {
  uint32_t divisor, factor;
};
inline Divisor divisor_of(int64_t divisor) {
  return {uint32_t(divisor), uint32_t(((uint64_t(1) << 32) + divisor - 1) / divisor)};
}

struct SplitParams {
  static constexpr bool kTiled = false;
  const void *q, *k, *v, *bias;
  void *o;
  const int32_t *lengths;
  const float *sinks;
  // [tile, part]: sums of values [row, dim], then [row, 2]: the greatest score, the sum of exponentials.
  float *partial;
  uint32_t *arrived;  // [tile, block of a cluster]
  int64_t q_strides[3], k_strides[3], v_strides[3], o_strides[3], bias_strides[3];
  int32_t keys, depth, value_depth, rows;
  Divisor group, row_tiles, row_quads;  // heads of queries, tiles of rows, quads of a row of results
  float scale, softcap;
  int32_t causal, pairs;
};
/* Those of blocks whose tiles the copy engine fills, by maps of [batch, head, row, dim]. */
struct TiledSplitParams : SplitParams {
  static constexpr bool kTiled = true;
  TensorMap k_map, v_map;
};

#if !defined(PK_HOST) || defined(PK_SIMT)

__device__ inline int quotient(int x, const Divisor &of) {
  return of.divisor == 1 ? x : int(uint64_t(uint32_t(x)) * of.factor >> 32);
}
__device__ inline int remainder(int x, const Divisor &of) { return x - quotient(x, of) * int(of.divisor); }

/* What a thread knows of one of its two rows; the last row in place of one that does not exist. */
struct SplitRow {
  int64_t q, o, bias;  // offsets in elements
  int query, head;
  bool exists;
};

__device__ inline SplitRow split_row_of(const SplitParams &p, int row, int shared_head, int batch) {
  SplitRow result{};
  result.exists = row < p.rows;
  row = result.exists ? row : p.rows - 1;
  const int query = quotient(row, p.group), head = shared_head * int(p.group.divisor) + remainder(row, p.group);
  result.query = query, result.head = head;
  result.q = batch * p.q_strides[0] + query * p.q_strides[1] + head * p.q_strides[2];
  result.o = batch * p.o_strides[0] + query * p.o_strides[1] + head * p.o_strides[2];
  result.bias = batch * p.bias_strides[0] + head * p.bias_strides[1] + query * p.bias_strides[2];
  return result;
}

/* The sink of a row, the score of a key without a value; -inf where there is none. */
__device__ inline float split_sink(const SplitParams &p, const SplitRow &row) {
  return p.sinks == nullptr ? -INFINITY : p.sinks[row.head];
}

/* Two keys that a mask leaves out, in one register. */
template <class Type>
__device__ inline constexpr uint32_t split_no_bias() {
  return Type::kIsHalf ? 0xfc00fc00u : 0xff80ff80u;
}

/* Two neighbors of a bias in one register, -inf where there is no key or no row. */
template <class Type>
__device__ inline uint32_t split_bias(const SplitParams &p, const SplitRow &row, int key, int keys) {
  const uint16_t none = Type::kIsHalf ? 0xfc00 : 0xff80;
  const uint16_t *from = static_cast<const uint16_t *>(p.bias) + row.bias + key;
  if (!row.exists || key >= keys) return none | uint32_t(none) << 16;
  if (p.pairs && key + 1 < keys) return *reinterpret_cast<const uint32_t *>(from);
  return from[0] | uint32_t(key + 1 < keys ? from[1] : none) << 16;
}

/* The keys that a batch has. */
__device__ inline int split_keys(const SplitParams &p, int batch) {
  if (p.lengths == nullptr || p.lengths[batch] >= p.keys) return p.keys;
  return p.lengths[batch] < 0 ? 0 : p.lengths[batch];
}

/* Makes scores of products with keys: scaled, and then softcap * tanh(score / softcap). */
template <int kTiles>
__device__ inline void split_scale(const SplitParams &p, float (&scores)[kTiles][4]) {
#pragma unroll
  for (int j = 0; j < kTiles; j++) {
#pragma unroll
    for (int n = 0; n < 4; n++) scores[j][n] *= p.scale;
  }
  if (p.softcap <= 0.0f) return;
  const float twice = 2.0f * kLog2OfE / p.softcap;
#pragma unroll
  for (int j = 0; j < kTiles; j++) {
#pragma unroll
    for (int n = 0; n < 4; n++) {
      const float squared = exp2_of(twice * scores[j][n]);  // infinite at most, or 0
      scores[j][n] = p.softcap - 2.0f * p.softcap * reciprocal_of(squared + 1.0f);
    }
  }
}

/* Adds biases to scores of two rows with the keys key + 8 j and key + 8 j + 1, and leaves out keys that are not there or
 * come later. A `whole` step has keys only. */
template <class Type, int kTiles>
__device__ inline void split_mask(const SplitParams &p, const SplitRow (&rows)[2], float (&scores)[kTiles][4],
                                  const uint32_t (&bias)[kTiles][2], int key, int keys, bool whole) {
  if (p.bias != nullptr) {
#pragma unroll
    for (int j = 0; j < kTiles; j++) {
#pragma unroll
      for (int n = 0; n < 4; n++) {
        const uint32_t pair = bias[j][n / 2];
        scores[j][n] += n % 2 ? high_of<Type>(pair) : low_of<Type>(pair);
      }
    }
  }
  if (whole && !p.causal) return;
#pragma unroll
  for (int j = 0; j < kTiles; j++) {
#pragma unroll
    for (int n = 0; n < 4; n++) {
      const int at = key + 8 * j + n % 2;
      if (at >= keys || (p.causal && at > rows[n / 2].query)) scores[j][n] = -INFINITY;
    }
  }
}

/* Adds the values of 16 keys to 64 dims of a result, the tile of 8 dims j at acc[j]: `left` and `right` are weights of 8
 * keys each, `values` eight dims of the keys 2 t, 2 t + 1, 2 t + 8 and 2 t + 9. */
template <class Type>
__device__ inline void split_add_values(float (&acc)[8][4], const uint32_t (&left)[2], const uint32_t (&right)[2],
                                        const uint4 (&values)[4]) {
  auto add = [&](int j, uint32_t v0, uint32_t v1, uint32_t v2, uint32_t v3) {
    mma<Type>(acc[2 * j], left[0], left[1], right[0], right[1], low_halves(v0, v1), low_halves(v2, v3));
    mma<Type>(acc[2 * j + 1], left[0], left[1], right[0], right[1], high_halves(v0, v1), high_halves(v2, v3));
  };
  add(0, values[0].x, values[1].x, values[2].x, values[3].x);
  add(1, values[0].y, values[1].y, values[2].y, values[3].y);
  add(2, values[0].z, values[1].z, values[2].z, values[3].z);
  add(3, values[0].w, values[1].w, values[2].w, values[3].w);
}

template <class Type>
__device__ inline bool is_masked(uint32_t pair) {
  return pair == split_no_bias<Type>();
}
#endif

}  // namespace pk
