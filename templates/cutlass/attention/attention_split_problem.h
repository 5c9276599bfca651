/* What the blocks of an attention of few rows know of it. */
#pragma once

#include "problems.h"
//
#include <math.h>

#include "warp.h"

namespace pk {

constexpr int kSplitRows = 16;
/* Steps whose keys and values are under way, and the shared memory that they are in: of two blocks of 128 threads on a
 * multiprocessor of sm_90, of one where there are 100 KB. */
constexpr int kSplitStages = 3;
constexpr uint32_t kSplitShared = 96 << 10;
/* Partial results of one problem that the workspace has room for. */
constexpr int64_t kSplitBlocks = 768;

constexpr int split_warps(int depth) { return depth <= 128 ? 4 : 2; }
constexpr int split_step(int depth) { return depth <= 64 ? 32 : 16; }

struct SplitParams {
  const void *q, *k, *v, *bias;
  void *o;
  const int32_t *lengths;
  float *partial;     // [tile, part, quad, 6]: four sums of values, the greatest score, the sum of exponentials
  uint32_t *arrived;  // [tile, block of a cluster]
  int64_t q_strides[3], k_strides[3], v_strides[3], o_strides[3], bias_strides[3];
  int32_t keys, depth, value_depth, group, rows, row_tiles;
  float scale, softcap;
  int32_t causal, pairs;
};

#if !defined(PK_HOST) || defined(PK_SIMT)

/* What a thread knows of one of its two rows. */
struct SplitRow {
  int64_t q, o, bias;  // offsets in elements
  int query;
  bool exists;
};

__device__ inline SplitRow split_row_of(const SplitParams &p, int row, int shared_head, int batch) {
  SplitRow result{};
  result.exists = row < p.rows;
  if (!result.exists) return result;
  const int query = row / p.group, head = shared_head * p.group + row % p.group;
  result.query = query;
  result.q = batch * p.q_strides[0] + query * p.q_strides[1] + head * p.q_strides[2];
  result.o = batch * p.o_strides[0] + query * p.o_strides[1] + head * p.o_strides[2];
  result.bias = batch * p.bias_strides[0] + head * p.bias_strides[1] + query * p.bias_strides[2];
  return result;
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

template <class Type>
__device__ inline bool is_masked(uint32_t pair) {
  const uint32_t none = Type::kIsHalf ? 0xfc00fc00 : 0xff80ff80;
  return pair == none;
}
#endif

}  // namespace pk
