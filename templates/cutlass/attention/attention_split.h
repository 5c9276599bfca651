/* Attention of few rows of queries, split over the keys ("flash-decoding", Dao et al. 2023): a decoder's step, whose
 * time is that of reading keys and values once.
 *
 * A block has 16 rows, which are the queries of all heads that share a head of keys, and some of the keys; each of its
 * warps takes steps of 16 or 32 of them. A lane loads 16 bytes at a time straight into the operands of matrix
 * instructions: these sum over a dimension in any order, as long as it is the same for both, and columns of the result
 * may have any order. So the dims of a head are permuted, and nothing goes through shared memory.
 * Blocks add up what they have in shared memory of their cluster, or, where there are none, by the one that is last. */
#pragma once

#include "problems.h"
//
#include <math.h>

#include "warp.h"

namespace pk {

constexpr int kSplitWarps = 4, kSplitRows = 16, kSplitThreads = 32 * kSplitWarps;
/* Of values, a block has at most so many dims. */
constexpr int kSplitValues = 128;
/* Partial results of one problem that the workspace has room for, and the counters before them: they are zero before a
 * launch, and after it. Those of a row are at most so many. */
constexpr int64_t kSplitBlocks = 768, kSplitCounters = 1 << 14, kSplitMost = 128;

struct SplitParams {
  const void *q, *k, *v, *bias;
  void *o;
  const int32_t *lengths;
  float *partial;     // [tile, split, row, value dims + 2]
  uint32_t *arrived;  // [tile]
  int64_t q_strides[3], k_strides[3], v_strides[3], o_strides[3], bias_strides[3];
  int32_t keys, depth, value_depth, group, rows, row_tiles, value_tiles;
  float scale, softcap;
  int32_t causal, pairs;
};

/* Floats of a partial row: sums of values, then the greatest score and the sum of exponentials, relative to it. */
__host__ __device__ inline int split_row(int values) { return values + 2; }

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

/* Merges `count` partial results of rows: `load(i, place)` is a float of the i-th, `store(row, dim, sum)` takes a
 * merged one. A warp has a row for its factors, then all threads of `shares` blocks have elements. Of a row with no key
 * all factors are 0. */
template <class Load, class Store>
__device__ inline void split_merge(int count, int rows, int values, float *factors, float *stats, Load const &load,
                                   Store const &store, int share = 0, int shares = 1) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row_size = split_row(values);
  for (int row = warp; row < rows; row += kSplitWarps) {
    const int place = row * row_size + values;
    float most = -INFINITY, total = 0.0f;
    for (int i = lane; i < count; i += 32) most = fmaxf(most, load(i, place));
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) most = fmaxf(most, shuffle_xor(most, mask));
    for (int i = lane; i < count; i += 32) {
      const float mine = load(i, place), factor = mine == -INFINITY ? 0.0f : exp2_of((mine - most) * kLog2OfE);
      factors[i * rows + row] = factor;
      total += factor * load(i, place + 1);
    }
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) total += shuffle_xor(total, mask);
    if (lane == 0) stats[2 * row] = most, stats[2 * row + 1] = total;
  }
  __syncthreads();
  for (int at = threadIdx.x + share * kSplitThreads; at < rows * values; at += shares * kSplitThreads) {
    const int row = at / values, dim = at % values;
    float sum = 0.0f;
#pragma unroll 8
    for (int i = 0; i < count; i++) sum += factors[i * rows + row] * load(i, row * row_size + dim);
    store(row, dim, sum);
  }
}

/* kCluster: the blocks along x are a cluster. kDepth is a bound of both head dims. */
template <class Type, int kDepth, bool kCluster>
__device__ inline void split_attention(const SplitParams &p, char *memory) {
  constexpr int kChunks = kDepth / 32, kWide = (kDepth < kSplitValues ? kDepth : kSplitValues), kSpans = kWide / 64;
  constexpr int kStep = kDepth <= 64 ? 32 : 16, kTiles = kStep / 8;
  constexpr bool kKeepsQ = kDepth <= 128;
  using Storage = typename Type::Storage;
  wait_for_earlier();
  release_next();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int splits = gridDim.x, split = blockIdx.x, batch = blockIdx.z;
  int tile = blockIdx.y;
  const int value_tile = tile % p.value_tiles, row_tile = tile / p.value_tiles % p.row_tiles;
  const int shared_head = tile / p.value_tiles / p.row_tiles;
  tile += gridDim.y * batch;
  const int first_value = value_tile * kSplitValues;
  const int values = p.value_depth - first_value < kWide ? p.value_depth - first_value : kWide;
  const int rows = p.rows - row_tile * kSplitRows < kSplitRows ? p.rows - row_tile * kSplitRows : kSplitRows;
  int keys = p.keys;
  if (p.lengths != nullptr) keys = p.lengths[batch] < keys ? (p.lengths[batch] < 0 ? 0 : p.lengths[batch]) : keys;

  const SplitRow mine[2] = {split_row_of(p, row_tile * kSplitRows + g, shared_head, batch),
                            split_row_of(p, row_tile * kSplitRows + g + 8, shared_head, batch)};
  const Storage *k = static_cast<const Storage *>(p.k) + batch * p.k_strides[0] + shared_head * p.k_strides[2];
  const Storage *v =
      static_cast<const Storage *>(p.v) + batch * p.v_strides[0] + shared_head * p.v_strides[2] + first_value;
  const uint4 zero = make_uint4(0, 0, 0, 0);

  auto query = [&](int i, int chunk) {
    const int dim = 32 * chunk + 8 * t;
    if (!mine[i].exists || dim >= p.depth) return zero;
    return *reinterpret_cast<const uint4 *>(static_cast<const Storage *>(p.q) + mine[i].q + dim);
  };
  uint4 q[kKeepsQ ? kChunks : 1][2];
  if constexpr (kKeepsQ) {
#pragma unroll
    for (int c = 0; c < kChunks; c++) q[c][0] = query(0, c), q[c][1] = query(1, c);
  }

  float acc[kSpans][8][4] = {}, most[2] = {-INFINITY, -INFINITY}, total[2] = {};
  const int steps = (keys + kStep - 1) / kStep, workers = splits * kSplitWarps;
  uint32_t bias[kTiles][2], next_bias[kTiles][2];
  auto load_bias = [&](uint32_t (&to)[kTiles][2], int step) {
#pragma unroll
    for (int j = 0; j < kTiles; j++) {
      const int key = step * kStep + 8 * j + 2 * t;
#pragma unroll
      for (int i = 0; i < 2; i++) to[j][i] = split_bias<Type>(p, mine[i], key, keys);
    }
  };
  uint4 kk[kTiles][kChunks], vv[kStep / 16][kSpans][4];
  auto load_keys = [&](int step) {
#pragma unroll
    for (int j = 0; j < kTiles; j++) {
      const int key = step * kStep + 8 * j + g;
#pragma unroll
      for (int c = 0; c < kChunks; c++) {
        const int dim = 32 * c + 8 * t;
        kk[j][c] = key < keys && dim < p.depth ? load_once(k + key * p.k_strides[1] + dim) : zero;
      }
    }
  };
  auto load_values = [&](int step) {
#pragma unroll
    for (int i = 0; i < kStep / 16; i++) {
#pragma unroll
      for (int n = 0; n < 4; n++) {
        const int key = step * kStep + 16 * i + 2 * t + n % 2 + n / 2 * 8;
#pragma unroll
        for (int c = 0; c < kSpans; c++) {
          const int dim = 64 * c + 8 * g;
          vv[i][c][n] = key < keys && dim < values ? load_once(v + key * p.v_strides[1] + dim) : zero;
        }
      }
    }
  };
  int step = split * kSplitWarps + warp;
  bool live = true;  // known of all steps but the first: whether a bias leaves one of its keys
  if (step < steps) {
    if (p.bias != nullptr) load_bias(bias, step);
    load_keys(step), load_values(step);
  }
  // Keys and values of the next step are loaded as soon as the registers are free: loads are always under way.
  for (; step < steps; step += workers) {
    const int first = step * kStep, next = step + workers;
    if (p.bias != nullptr && next < steps) load_bias(next_bias, next);
    float scores[kTiles][4] = {};
    if (live) {
#pragma unroll
      for (int c = 0; c < kChunks; c++) {
        const uint4 q0 = kKeepsQ ? q[kKeepsQ ? c : 0][0] : query(0, c),
                    q1 = kKeepsQ ? q[kKeepsQ ? c : 0][1] : query(1, c);
#pragma unroll
        for (int j = 0; j < kTiles; j++) {
          mma<Type>(scores[j], q0.x, q1.x, q0.y, q1.y, kk[j][c].x, kk[j][c].y);
          mma<Type>(scores[j], q0.z, q1.z, q0.w, q1.w, kk[j][c].z, kk[j][c].w);
        }
      }
    }
    bool next_live = next < steps;
    if (p.bias != nullptr && next_live) {
      bool any = false;
#pragma unroll
      for (int j = 0; j < kTiles; j++) any |= !is_masked<Type>(next_bias[j][0]) || !is_masked<Type>(next_bias[j][1]);
      next_live = any_lane(any);
    }
    if (next_live) load_keys(next);
    if (live) {
      float top[2] = {most[0], most[1]};
#pragma unroll
      for (int j = 0; j < kTiles; j++) {
#pragma unroll
        for (int n = 0; n < 4; n++) {
          const int key = first + 8 * j + 2 * t + n % 2, i = n / 2;
          float score = scores[j][n] * p.scale;
          if (p.softcap > 0.0f) score = p.softcap * tanhf(score / p.softcap);
          if (p.bias != nullptr) score += n % 2 ? high_of<Type>(bias[j][i]) : low_of<Type>(bias[j][i]);
          if (key >= keys || (p.causal && key > mine[i].query)) score = -INFINITY;
          scores[j][n] = score;
          top[i] = fmaxf(top[i], score);
        }
      }
      float factor[2], base[2];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        top[i] = fmaxf(top[i], shuffle_xor(top[i], 1));
        top[i] = fmaxf(top[i], shuffle_xor(top[i], 2));
        base[i] = top[i] == -INFINITY ? 0.0f : top[i];
        factor[i] = exp2_of((most[i] - base[i]) * kLog2OfE);
        most[i] = top[i];
        total[i] *= factor[i];
      }
#pragma unroll
      for (int j = 0; j < kTiles; j++) {
#pragma unroll
        for (int n = 0; n < 4; n++) {
          scores[j][n] = exp2_of((scores[j][n] - base[n / 2]) * kLog2OfE);
          total[n / 2] += scores[j][n];
        }
      }
#pragma unroll
      for (int c = 0; c < kSpans; c++) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
#pragma unroll
          for (int n = 0; n < 4; n++) acc[c][j][n] *= factor[n / 2];
        }
      }
#pragma unroll
      for (int i = 0; i < kStep / 16; i++) {
        const float (&left)[4] = scores[2 * i], (&right)[4] = scores[2 * i + 1];
        const uint32_t a0 = pack<Type>(left[0], left[1]), a1 = pack<Type>(left[2], left[3]);
        const uint32_t a2 = pack<Type>(right[0], right[1]), a3 = pack<Type>(right[2], right[3]);
#pragma unroll
        for (int c = 0; c < kSpans; c++) {
          const uint4(&x)[4] = vv[i][c];
          auto add = [&](int j, uint32_t v0, uint32_t v1, uint32_t v2, uint32_t v3) {
            mma<Type>(acc[c][2 * j], a0, a1, a2, a3, low_halves(v0, v1), low_halves(v2, v3));
            mma<Type>(acc[c][2 * j + 1], a0, a1, a2, a3, high_halves(v0, v1), high_halves(v2, v3));
          };
          add(0, x[0].x, x[1].x, x[2].x, x[3].x);
          add(1, x[0].y, x[1].y, x[2].y, x[3].y);
          add(2, x[0].z, x[1].z, x[2].z, x[3].z);
          add(3, x[0].w, x[1].w, x[2].w, x[3].w);
        }
      }
    }
    if (next_live) load_values(next);
    live = next_live;
#pragma unroll
    for (int j = 0; j < kTiles; j++) bias[j][0] = next_bias[j][0], bias[j][1] = next_bias[j][1];
  }

  const int row_size = split_row(values), slot = rows * row_size;
  float *warps = reinterpret_cast<float *>(memory), *block = warps + kSplitWarps * slot;
  float *factors = block + slot, *stats = factors + kSplitMost * rows;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    total[i] += shuffle_xor(total[i], 1);
    total[i] += shuffle_xor(total[i], 2);
    if (g + 8 * i >= rows) continue;
    float *to = warps + warp * slot + (g + 8 * i) * row_size;
#pragma unroll
    for (int c = 0; c < kSpans; c++) {
#pragma unroll
      for (int n = 0; n < 2; n++) {
        const int dim = 64 * c + 16 * t + 8 * n;  // of eight
#pragma unroll
        for (int j = 0; j < 8; j++) {
          if (dim < values) to[dim + j] = acc[c][j][2 * i + n];
        }
      }
    }
    if (t == 0) to[values] = most[i], to[values + 1] = total[i];
  }
  __syncthreads();

  Storage *o = static_cast<Storage *>(p.o);
  auto store = [&](int row, int dim, float sum, float weights) {
    const SplitRow place = split_row_of(p, row_tile * kSplitRows + row, shared_head, batch);
    o[place.o + first_value + dim] = Type::narrow(weights == 0.0f ? 0.0f : sum / weights);
  };
  auto of_warp = [&](int i, int place) { return warps[i * slot + place]; };
  auto finish = [&](int row, int dim, float sum) { store(row, dim, sum, stats[2 * row + 1]); };
  if (splits == 1) {
    split_merge(kSplitWarps, rows, values, factors, stats, of_warp, finish);
    return;
  }
  float *partial = kCluster ? block : p.partial + (int64_t(tile) * splits + split) * slot;
  split_merge(kSplitWarps, rows, values, factors, stats, of_warp, [&](int row, int dim, float sum) {
    partial[row * row_size + dim] = sum;
    if (dim < 2) partial[row * row_size + values + dim] = stats[2 * row + dim];
  });
  if constexpr (kCluster) {
    cluster_sync();
    // Each block finishes every so many rows' elements; all compute the factors.
    split_merge(
        splits, rows, values, factors, stats, [&](int i, int place) { return of_block(block + place, i); }, finish,
        split, splits);
    cluster_sync();  // no block ends while another reads its memory
  } else {
    volatile uint32_t *last = reinterpret_cast<uint32_t *>(stats);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) *last = atomicAdd(p.arrived + tile, 1u) == uint32_t(splits - 1);
    __syncthreads();
    const bool is_last = *last != 0;
    __syncthreads();
    if (!is_last) return;
    __threadfence();
    if (threadIdx.x == 0) p.arrived[tile] = 0;
    const float *from = p.partial + int64_t(tile) * splits * slot;
    split_merge(
        splits, rows, values, factors, stats, [&](int i, int place) { return __ldcg(from + i * slot + place); },
        finish);
  }
}
#endif

#ifdef PK_HOST
/* Whether 16 bytes of any row can be read at a time. */
inline bool split_takes(const void *pointer, const int64_t (&strides)[3]) {
  bool takes = pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  for (const int64_t stride : strides) takes &= stride >= 0 && stride % 8 == 0;
  return takes;
}

/* The most shared memory that a launch asks for. */
constexpr uint32_t split_shared(int64_t rows, int64_t values) {
  return uint32_t(rows * ((kSplitWarps + 1) * (values + 2) + kSplitMost + 2) * sizeof(float));
}

/* cluster: the number of blocks of one, or 0. */
inline int32_t split_fill(const pk_cuda_device_t *device, const pk_attention_t &problem, bool causal, int depth,
                          int cluster, void *arguments, pk_cuda_launch_t *launch) {
  *launch = {};
  if (problem.batch == 0 || problem.heads == 0 || problem.queries == 0) return 0;
  for (const int64_t extent : {problem.batch, problem.heads, problem.queries, problem.keys}) {
    if (extent < 1 || extent > INT32_MAX / 1024) return -1;
  }
  if (problem.group < 1 || problem.heads % problem.group != 0) return -1;
  for (const int64_t extent : {problem.depth, problem.value_depth}) {
    if (extent < 1 || extent > depth || extent % 8 != 0) return -1;
  }
  if (!split_takes(problem.q, problem.q_strides) || !split_takes(problem.k, problem.k_strides)) return -1;
  if (!split_takes(problem.v, problem.v_strides) || problem.o == nullptr) return -1;

  SplitParams &p = *static_cast<SplitParams *>(arguments);
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
  p.value_tiles = (p.value_depth + kSplitValues - 1) / kSplitValues;
  p.scale = problem.scale, p.softcap = problem.softcap, p.causal = causal;

  const int64_t tiles = problem.heads / problem.group * p.row_tiles * p.value_tiles, all = tiles * problem.batch;
  if (tiles > 65535 || problem.batch > 65535) return -1;
  const int64_t rows = p.rows < kSplitRows ? p.rows : kSplitRows;
  const int64_t values = p.value_depth < kSplitValues ? p.value_depth : kSplitValues;
  int64_t splits = cluster;
  if (cluster == 0) {
    // Two blocks for each multiprocessor, and two steps for each warp.
    const int64_t step = 2 * kSplitWarps * (depth <= 64 ? 32 : 16), most = (problem.keys + step - 1) / step;
    splits = (2 * device->num_sms + all - 1) / all;
    for (const int64_t bound : {most, kSplitBlocks / all, kSplitMost}) splits = splits < bound ? splits : bound;
    if (splits < 1 || problem.workspace == nullptr || all * int64_t(sizeof(uint32_t)) > kSplitCounters) splits = 1;
    p.arrived = static_cast<uint32_t *>(problem.workspace);
    p.partial = reinterpret_cast<float *>(static_cast<char *>(problem.workspace) + kSplitCounters);
  }
  *launch = {{uint32_t(splits), uint32_t(tiles), uint32_t(problem.batch)},
             {kSplitThreads, 1, 1},
             split_shared(rows, values),
             PK_CUDA_PROGRAMMATIC};
  return 0;
}
#endif

}  // namespace pk
