/* Attention of few rows of queries, split over the keys ("flash-decoding", Dao et al. 2023): a decoder's step, whose
 * time is that of reading keys and values once.
 *
 * A block has 16 rows, which are the queries of all heads that share a head of keys, and some of the keys; each of its
 * warps takes steps of 16 or 32 of them. Matrix instructions sum over a dimension in any order, as long as it is the
 * same for both, and columns of the result may have any order. So the dims of a head are permuted such that what a lane
 * needs are 16 bytes at a time: it copies them to places of its own in shared memory, some steps ahead, and no thread
 * waits for another before the end.
 * Then the warps' results are merged, those of the blocks of a cluster, and, by who is last, those of all that have a
 * tile: a quad of elements by one thread each time. */
#pragma once

#include "attention_split_merge.h"

#if !defined(PK_HOST) || defined(PK_SIMT)
namespace pk {

/* kCluster: blocks of a cluster along x, or 0. kDepth is a bound of both head dims. */
template <class Type, int kDepth, int kCluster>
__device__ inline void split_attention(const SplitParams &p, char *memory) {
  constexpr int kWarps = split_warps(kDepth), kStep = split_step(kDepth), kTiles = kStep / 8;
  constexpr int kChunks = kDepth / 32, kSpans = kDepth / 64, kStages = kSplitStages;
  constexpr bool kKeepsQ = kDepth <= 128;
  // Places of 16 bytes of a lane: keys [stage, tile, chunk], then values [stage, 16 keys, span, 4].
  constexpr int kKeyPlaces = kTiles * kChunks, kPlaces = kKeyPlaces + kStep / 16 * kSpans * 4;
  static_assert(kWarps * kStages * kPlaces * 32 * 16 == kSplitShared, "what is declared");
  static_assert((kWarps + 1) * kSplitRows * (kDepth + 2) * 4 <= kSplitShared, "partial sums fit");
  using Storage = typename Type::Storage;
  release_next();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int splits = gridDim.x, split = blockIdx.x, batch = blockIdx.z;
  const int row_tile = blockIdx.y % p.row_tiles, shared_head = blockIdx.y / p.row_tiles;
  const Storage *k = static_cast<const Storage *>(p.k) + batch * p.k_strides[0] + shared_head * p.k_strides[2];
  const Storage *v = static_cast<const Storage *>(p.v) + batch * p.v_strides[0] + shared_head * p.v_strides[2];
  // A cache is as good as written: its rows are on their way to the L2 cache, which sees what is still written.
  if (const int key = (split * kWarps + warp) * kStep + lane; lane < kStep && key < p.keys) {
#pragma unroll 1
    for (int dim = 0; dim < p.depth; dim += 64) prefetch_line(k + key * p.k_strides[1] + dim);
#pragma unroll 1
    for (int dim = 0; dim < p.value_depth; dim += 64) prefetch_line(v + key * p.v_strides[1] + dim);
  }
  wait_for_earlier();
  const int rows = p.rows - row_tile * kSplitRows < kSplitRows ? p.rows - row_tile * kSplitRows : kSplitRows;
  const int keys = split_keys(p, batch);

  const SplitRow mine[2] = {split_row_of(p, row_tile * kSplitRows + g, shared_head, batch),
                            split_row_of(p, row_tile * kSplitRows + g + 8, shared_head, batch)};

  auto query = [&](int i, int chunk) {
    const int dim = 32 * chunk + 8 * t;
    if (!mine[i].exists || dim >= p.depth) return make_uint4(0, 0, 0, 0);
    return *reinterpret_cast<const uint4 *>(static_cast<const Storage *>(p.q) + mine[i].q + dim);
  };
  uint4 q[kKeepsQ ? kChunks : 1][2];
  if constexpr (kKeepsQ) {
#pragma unroll
    for (int c = 0; c < kChunks; c++) q[c][0] = query(0, c), q[c][1] = query(1, c);
  }

  const int steps = (keys + kStep - 1) / kStep, workers = splits * kWarps, first = split * kWarps + warp;
  auto load_bias = [&](uint32_t (&to)[kTiles][2], int step) {
    if (p.bias == nullptr || step >= steps) return;
    const int key = step * kStep + 2 * t;
    const bool is_whole = p.pairs && (step + 1) * kStep <= keys;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const uint16_t *from = static_cast<const uint16_t *>(p.bias) + mine[i].bias + key;
#pragma unroll
      for (int j = 0; j < kTiles; j++) {
        to[j][i] = split_no_bias<Type>();
        if (is_whole && mine[i].exists) to[j][i] = *reinterpret_cast<const uint32_t *>(from + 8 * j);
      }
    }
    if (is_whole) return;
#pragma unroll
    for (int j = 0; j < kTiles; j++) {
#pragma unroll
      for (int i = 0; i < 2; i++) to[j][i] = split_bias<Type>(p, mine[i], key + 8 * j, keys);
    }
  };
  // Whether a step is there, and its bias leaves one of its keys: else nothing of it is read. The first is not asked:
  // it is on its way to the L2 cache already.
  auto is_live = [&](const uint32_t (&of)[kTiles][2], int step) {
    if (p.bias == nullptr || step == first || step >= steps) return step < steps;
    bool any = false;
#pragma unroll
    for (int j = 0; j < kTiles; j++) any |= !is_masked<Type>(of[j][0]) || !is_masked<Type>(of[j][1]);
    return any_lane(any);
  };
  uint4 *const ring = reinterpret_cast<uint4 *>(memory) + warp * kStages * kPlaces * 32 + lane;
  auto copy_keys = [&](uint4 *to, int step) {
    const int begin = step * kStep + g;
    const Storage *from = k + begin * p.k_strides[1] + 8 * t;
#pragma unroll
    for (int j = 0; j < kTiles; j++, from += 8 * p.k_strides[1]) {
#pragma unroll
      for (int c = 0; c < kChunks; c++) {
        const bool exists = begin + 8 * j < keys && 32 * c + 8 * t < p.depth;
        copy_async(to + (j * kChunks + c) * 32, exists ? from + 32 * c : k, exists);
      }
    }
  };
  auto copy_values = [&](uint4 *to, int step) {
    const int begin = step * kStep + 2 * t;
    const Storage *from = v + begin * p.v_strides[1] + 8 * g;
#pragma unroll
    for (int i = 0; i < kStep / 8; i++, from += 8 * p.v_strides[1]) {
#pragma unroll
      for (int n = 0; n < 2; n++) {
#pragma unroll
        for (int c = 0; c < kSpans; c++) {
          const bool exists = begin + 8 * i + n < keys && 64 * c + 8 * g < p.value_depth;
          const Storage *at = from + n * p.v_strides[1] + 64 * c;
          copy_async(to + ((i / 2 * kSpans + c) * 4 + i % 2 * 2 + n) * 32, exists ? at : v, exists);
        }
      }
    }
  };

  // One turn reads a step, and begins to copy the one that is kStages later into its place: each is written once in the
  // code, of which a launch reads all and most of it only once. The bias of a step is read twice: ahead of its keys, for
  // whether to copy them, and for its scores.
  uint32_t ahead[kTiles][2], bias[kTiles][2];
  float acc[kSpans][8][4] = {}, most[2] = {-INFINITY, -INFINITY}, total[2] = {};
  int copied = first, stage = 0, live = 0;
#pragma unroll 1
  for (int step = first - kStages * workers; step < steps; step += workers) {
    uint4 *const own = ring + stage * kPlaces * 32;
    stage = stage + 1 < kStages ? stage + 1 : 0;
    if (live & 1) {
      load_bias(bias, step);
      float scores[kTiles][4] = {};
      wait_for_copies<2 * kStages - 1>();
#pragma unroll
      for (int c = 0; c < kChunks; c++) {
        const uint4 q0 = kKeepsQ ? q[kKeepsQ ? c : 0][0] : query(0, c),
                    q1 = kKeepsQ ? q[kKeepsQ ? c : 0][1] : query(1, c);
#pragma unroll
        for (int j = 0; j < kTiles; j++) {
          const uint4 x = own[(j * kChunks + c) * 32];
          mma<Type>(scores[j], q0.x, q1.x, q0.y, q1.y, x.x, x.y);
          mma<Type>(scores[j], q0.z, q1.z, q0.w, q1.w, x.z, x.w);
        }
      }
      split_scale(p, scores);
      float top[2] = {most[0], most[1]};
#pragma unroll
      for (int j = 0; j < kTiles; j++) {
#pragma unroll
        for (int n = 0; n < 4; n++) {
          const int key = step * kStep + 8 * j + 2 * t + n % 2, i = n / 2;
          scores[j][n] = split_score<Type>(p, mine[i], scores[j][n], bias[j][i], key, keys);
          top[i] = fmaxf(top[i], scores[j][n]);
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
      uint32_t a[kTiles][2];
#pragma unroll
      for (int j = 0; j < kTiles; j++) {
#pragma unroll
        for (int n = 0; n < 4; n++) {
          scores[j][n] = exp2_of((scores[j][n] - base[n / 2]) * kLog2OfE);
          total[n / 2] += scores[j][n];
        }
        a[j][0] = pack<Type>(scores[j][0], scores[j][1]), a[j][1] = pack<Type>(scores[j][2], scores[j][3]);
      }
#pragma unroll
      for (int c = 0; c < kSpans; c++) {
#pragma unroll
        for (int j = 0; j < 8; j++) {
#pragma unroll
          for (int n = 0; n < 4; n++) acc[c][j][n] *= factor[n / 2];
        }
      }
      wait_for_copies<2 * kStages - 2>();
#pragma unroll
      for (int i = 0; i < kStep / 16; i++) {
#pragma unroll
        for (int c = 0; c < kSpans; c++) {
          uint4 x[4];
#pragma unroll
          for (int n = 0; n < 4; n++) x[n] = own[kKeyPlaces * 32 + ((i * kSpans + c) * 4 + n) * 32];
          split_add_values<Type>(acc[c], a[2 * i], a[2 * i + 1], x);
        }
      }
    }
    const bool is = is_live(ahead, copied);
    live = live >> 1 | is << (kStages - 1);
    if (is) copy_keys(own, copied);
    end_copies();
    if (is) copy_values(own + kKeyPlaces * 32, copied);
    end_copies();
    copied += workers;
    load_bias(ahead, copied);
  }
  __syncthreads();  // the ring becomes room for partial sums

  const SplitMemory sums(memory, kWarps, rows, p.value_depth);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int row = g + 8 * i;
    total[i] += shuffle_xor(total[i], 1);
    total[i] += shuffle_xor(total[i], 2);
    if (row >= rows) continue;
    float *to = sums.of_warps + warp * sums.tile + row * p.value_depth;
#pragma unroll
    for (int c = 0; c < kSpans; c++) {
#pragma unroll
      for (int n = 0; n < 2; n++) {
        const int dim = 64 * c + 16 * t + 8 * n;  // of eight
        if (dim >= p.value_depth) continue;
#pragma unroll
        for (int j = 0; j < 8; j += 4) {
          *reinterpret_cast<float4 *>(to + dim + j) = make_float4(
              acc[c][j][2 * i + n], acc[c][j + 1][2 * i + n], acc[c][j + 2][2 * i + n], acc[c][j + 3][2 * i + n]);
        }
      }
    }
    float *stats = sums.warp_stats + 2 * (warp * rows + row);
    if (t == 0) stats[0] = most[i], stats[1] = total[i];
  }
  __syncthreads();
  split_merge<Type, kWarps, kCluster>(p, sums, row_tile, shared_head, batch);
}

}  // namespace pk
#endif
