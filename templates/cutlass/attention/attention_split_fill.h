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

/* Parts of the keys for each tile of `numbers` results, by the steps that the last warp to end takes: of waves, a part of
 * the keys and the merges, which take about as long as four, and an eighth of one for 1024 numbers of a part that are
 * merged through memory. A part is that of a block, or of a cluster where there is one. */
inline int64_t split_parts(int64_t tiles, int64_t keys, int64_t numbers, int depth, bool tiled, int cluster,
                           int num_sms, int64_t most) {
  // Of clusters of eight, two fit the sixteen multiprocessors that a processor cluster has, of which one has fewer.
  const int64_t clusters = num_sms < 32 ? 1 : 2 * (num_sms / 16 - 1);
  const int64_t at_once = cluster ? clusters : tiled ? num_sms : 2 * num_sms, blocks = cluster ? cluster : 1;
  const int64_t steps = (keys + split_step(depth) - 1) / split_step(depth);
  int64_t best = 1, least = INT64_MAX;
  for (int64_t parts = 1; parts <= most; parts++) {
    const int64_t workers = parts * blocks * split_warps(depth, tiled), waves = (tiles * parts + at_once - 1) / at_once;
    const int64_t cost = 8 * waves * ((steps + workers - 1) / workers + 4) + parts * (numbers + 256) / blocks / 1024;
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
  p.lengths = problem.lengths, p.sinks = problem.sinks;
  uint64_t places = reinterpret_cast<uintptr_t>(problem.bias) / 2;
  for (int i = 0; i < 3; i++) {
    p.q_strides[i] = problem.q_strides[i], p.k_strides[i] = problem.k_strides[i], p.v_strides[i] = problem.v_strides[i];
    p.o_strides[i] = problem.o_strides[i];
    places |= uint64_t(p.bias_strides[i] = problem.bias_strides[i]);
  }
  p.pairs = places % 2 == 0;
  p.keys = int32_t(problem.keys), p.depth = int32_t(problem.depth), p.value_depth = int32_t(problem.value_depth);
  const int64_t rows = problem.group * problem.queries;
  if (rows > UINT16_MAX) return false;
  p.rows = int32_t(rows), p.group = divisor_of(problem.group);
  p.row_tiles = divisor_of((rows + kSplitRows - 1) / kSplitRows), p.row_quads = divisor_of(problem.value_depth / 4);
  p.scale = problem.scale, p.softcap = problem.softcap, p.causal = causal;
  return true;
}

/* Makes the map of keys or values; false where the driver makes none. */
inline bool split_map(TensorMap *map, const void *tensor, const int64_t (&strides)[3], const pk_attention_t &problem,
                      int64_t dims, int depth, bool half) {
  constexpr int32_t kFloat16 = 6, kBfloat16 = 9, kSwizzle128 = 3, kPromote128 = 2;  // of the driver's enumerations
  const int64_t extents[4] = {dims, problem.keys, problem.heads / problem.group, problem.batch};
  const int64_t elements[3] = {strides[1], strides[2], strides[0]};
  uint64_t sizes[4], steps[3];
  for (int i = 0; i < 4; i++) sizes[i] = uint64_t(extents[i]);
  for (int i = 0; i < 3; i++) steps[i] = extents[1 + i] == 1 ? 16 : 2 * uint64_t(elements[i]);  // no other is one of none
  const uint32_t box[4] = {kTileColumns, uint32_t(split_step(depth)), 1, 1}, ones[4] = {1, 1, 1, 1};
  return pk_tensor_map_encode(map, half ? kFloat16 : kBfloat16, 4, const_cast<void *>(tensor), sizes, steps, box, ones, 0,
                              kSwizzle128, kPromote128, 0) == 0;
}

/* What a kernel is made for. `cluster` is the number of blocks of one, or 0. */
struct SplitForm {
  bool half, causal, tiled;
  int depth, cluster;
};

/* `arguments` are TiledSplitParams where the form is tiled, else SplitParams. */
inline int32_t split_fill(const pk_cuda_device_t *device, const pk_attention_t &problem, const SplitForm &form,
                          void *arguments, pk_cuda_launch_t *launch) {
  *launch = {};
  if (problem.batch == 0 || problem.heads == 0 || problem.queries == 0) return 0;
  const int depth = form.depth;
  SplitParams &p = form.tiled ? *static_cast<TiledSplitParams *>(arguments) : *static_cast<SplitParams *>(arguments);
  if (!fill_rows(problem, form.causal, depth, p)) return -1;
  if (form.tiled) {
    TiledSplitParams &tiled = static_cast<TiledSplitParams &>(p);
    if (!split_map(&tiled.k_map, problem.k, problem.k_strides, problem, problem.depth, depth, form.half)) return -1;
    if (!split_map(&tiled.v_map, problem.v, problem.v_strides, problem, problem.value_depth, depth, form.half)) return -1;
  }

  const int64_t tiles = problem.heads / problem.group * p.row_tiles.divisor, all = tiles * problem.batch;
  const int64_t blocks = form.cluster ? form.cluster : 1;
  if (tiles > 65535 || problem.batch > 65535) return -1;
  const bool merges = problem.workspace != nullptr && problem.counters != nullptr && all <= kSplitBlocks &&
                      all * blocks * int64_t(sizeof(uint32_t)) <= PK_CUDA_COUNTER_BYTES;
  const int64_t room = merges ? kSplitBlocks / all : 1, most = room < kMostSplitParts ? room : kMostSplitParts;
  const int64_t numbers = problem.value_depth * (p.rows < kSplitRows ? p.rows : kSplitRows);
  const int64_t parts =
      split_parts(all, problem.keys, numbers, depth, form.tiled, form.cluster, device->num_sms, most);
  p.arrived = static_cast<uint32_t *>(problem.counters);
  p.partial = static_cast<float *>(problem.workspace);
  *launch = {{uint32_t(parts * blocks), uint32_t(tiles), uint32_t(problem.batch)},
             {uint32_t(32 * split_warps(depth, form.tiled)), 1, 1},
             uint32_t(split_shared(depth, form.tiled, form.cluster)),
             PK_CUDA_PROGRAMMATIC};
  return 0;
}
}  // namespace pk
