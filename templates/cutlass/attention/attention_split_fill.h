/* How an attention of few rows is launched. */
#pragma once

#include "attention_split_problem.h"

namespace pk {

/* Whether 16 bytes of any row can be read at a time. */
inline bool split_takes(const void *pointer, const int64_t (&strides)[3]) {
  bool takes = pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  for (const int64_t stride : strides) takes &= stride >= 0 && stride % 8 == 0;
  return takes;
}

/* Parts of the keys for each tile, by the steps that the last warp to end takes: of waves, a part of the keys and the
 * merges, which take about as long as four. A part is that of a block, or of a cluster where there is one. */
inline int64_t split_parts(int64_t tiles, int64_t keys, int depth, int cluster, int num_sms, int64_t most) {
  // Of clusters of eight, four fit the sixteen multiprocessors or more that a processor cluster has.
  const int64_t at_once = cluster ? (num_sms < 16 ? 1 : num_sms / 16 * 4) : 2 * num_sms, blocks = cluster ? cluster : 1;
  const int64_t steps = (keys + split_step(depth) - 1) / split_step(depth);
  int64_t best = 1, least = INT64_MAX;
  for (int64_t parts = 1; parts <= most; parts++) {
    const int64_t workers = parts * blocks * split_warps(depth), waves = (tiles * parts + at_once - 1) / at_once;
    const int64_t cost = 8 * waves * ((steps + workers - 1) / workers + 4) + parts / 2;
    if (cost < least) best = parts, least = cost;
    if (workers >= steps) break;
  }
  return best;
}

/* Fills in what rows know of a problem, all but what they share; false where it is not one of such rows. */
inline bool fill_rows(const pk_attention_t &problem, bool causal, int depth, SplitParams &p) {
  for (const int64_t extent : {problem.batch, problem.heads, problem.queries, problem.keys}) {
    if (extent < 1 || extent > INT32_MAX / 1024) return false;
  }
  if (problem.group < 1 || problem.heads % problem.group != 0) return false;
  for (const int64_t extent : {problem.depth, problem.value_depth}) {
    if (extent < 1 || extent > depth || extent % 8 != 0) return false;
  }
  if (!split_takes(problem.q, problem.q_strides) || !split_takes(problem.k, problem.k_strides)) return false;
  if (!split_takes(problem.v, problem.v_strides) || !split_takes(problem.o, problem.o_strides)) return false;

  p.q = problem.q, p.k = problem.k, p.v = problem.v, p.bias = problem.bias, p.o = problem.o;
  p.lengths = problem.lengths;
  uint64_t places = reinterpret_cast<uintptr_t>(problem.bias) / 2;
  for (int i = 0; i < 3; i++) {
    p.q_strides[i] = problem.q_strides[i], p.k_strides[i] = problem.k_strides[i], p.v_strides[i] = problem.v_strides[i];
    p.o_strides[i] = problem.o_strides[i];
    places |= uint64_t(p.bias_strides[i] = problem.bias_strides[i]);
  }
  p.pairs = places % 2 == 0;
  p.keys = int32_t(problem.keys), p.depth = int32_t(problem.depth), p.value_depth = int32_t(problem.value_depth);
  p.group = int32_t(problem.group), p.rows = int32_t(problem.group * problem.queries);
  p.row_tiles = (p.rows + kSplitRows - 1) / kSplitRows;
  p.scale = problem.scale, p.softcap = problem.softcap, p.causal = causal;
  return true;
}

/* cluster: the number of blocks of one, or 0. */
inline int32_t split_fill(const pk_cuda_device_t *device, const pk_attention_t &problem, bool causal, int depth,
                          int cluster, void *arguments, pk_cuda_launch_t *launch) {
  *launch = {};
  if (problem.batch == 0 || problem.heads == 0 || problem.queries == 0) return 0;
  SplitParams &p = *static_cast<SplitParams *>(arguments);
  if (!fill_rows(problem, causal, depth, p)) return -1;

  const int64_t tiles = problem.heads / problem.group * p.row_tiles, all = tiles * problem.batch;
  const int64_t blocks = cluster ? cluster : 1;
  if (tiles > 65535 || problem.batch > 65535) return -1;
  const bool merges = problem.workspace != nullptr && problem.counters != nullptr &&
                      all * blocks * int64_t(sizeof(uint32_t)) <= PK_CUDA_COUNTER_BYTES;
  const int64_t parts = split_parts(all, problem.keys, depth, cluster, device->num_sms, merges ? kSplitBlocks / all : 1);
  p.arrived = static_cast<uint32_t *>(problem.counters);
  p.partial = static_cast<float *>(problem.workspace);
  *launch = {{uint32_t(parts * blocks), uint32_t(tiles), uint32_t(problem.batch)},
             {uint32_t(32 * split_warps(depth)), 1, 1},
             kSplitShared,
             PK_CUDA_PROGRAMMATIC};
  return 0;
}
}  // namespace pk
