/* Attention of few rows of queries, split over the keys ("flash-decoding", Dao et al. 2023): a decoder's step, whose
 * time is that of reading keys and values once.
 *
 * A block has 16 rows, which are the queries of all heads that share a head of keys, and some of the keys; each of its
 * warps takes steps of 16 or 32 of them, whose tiles are copied some steps ahead to memory of its own, and waits for no
 * other before the end. Matrix instructions sum over a dimension in any order, as long as it is the same for both, and
 * columns of the result may have any order. So the dims of a head are permuted such that what a lane needs are 16 bytes
 * at a time.
 * Then the warps' results are merged, those of the blocks of a cluster, and, by who is last, those of all that have a
 * tile. A step of a decoder is a chain of latencies, most of what a launch takes: so what needs no data of kernels
 * before is computed before the wait for these, and keys and values are asked for first. */
#pragma once

#include "attention_split_merge.h"

#if !defined(PK_HOST) || defined(PK_SIMT)
namespace pk {

/* Begins to copy the tiles of `rows` keys or values, or of as many as a step has: by all lanes. */
template <int kDepth, class Storage>
__device__ inline void split_copy(char *to, const Storage *from, int64_t stride, int rows, int depth) {
  constexpr int kPieces = kDepth / 8;
#pragma unroll 4
  for (int i = threadIdx.x % 32; i < split_step(kDepth) * kPieces; i += 32) {
    const int row = i / kPieces, piece = i % kPieces;
    const bool exists = row < rows && 8 * piece < depth;
    char *const place = to + piece / 8 * split_tile(kDepth) + piece_of_tile(row, piece % 8);
    copy_async(reinterpret_cast<uint4 *>(place), exists ? from + row * stride + 8 * piece : from, exists);
  }
}

/* kDepth is a bound of both head dims. kCluster: blocks of a cluster along x, or 0. */
template <class Type, int kDepth, int kCluster, class Params>
__device__ inline void split_attention(const Params &p, char *memory) {
  constexpr bool kTiled = Params::kTiled;
  constexpr int kWarps = split_warps(kDepth, kTiled), kStep = split_step(kDepth), kTiles = kStep / 8;
  constexpr int kChunks = kDepth / 32, kSpans = kDepth / kTileColumns, kStages = kSplitStages;
  constexpr int kTile = split_tile(kDepth), kStage = split_stage(kDepth), kValues = kSpans * kTile;
  constexpr int kRing = kWarps * kStages * kStage;
  constexpr bool kKeepsQ = kDepth <= 128;
  static_assert(kWarps * kSplitRows * (kDepth + 2) * 4 <= kRing, "partial sums fit");
  static_assert(16 + (kMostSplitParts + 1) * kSplitRows * 8 + kMostSplitParts * 16 <= kRing, "a quad of each part too");
  using Storage = typename Type::Storage;
  release_next();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
  const int splits = gridDim.x, split = blockIdx.x, batch = blockIdx.z;
  const int shared_head = quotient(blockIdx.y, p.row_tiles), row_tile = remainder(blockIdx.y, p.row_tiles);
  const Storage *k = static_cast<const Storage *>(p.k) + batch * p.k_strides[0] + shared_head * p.k_strides[2];
  const Storage *v = static_cast<const Storage *>(p.v) + batch * p.v_strides[0] + shared_head * p.v_strides[2];
  // A cache is as good as written: its rows are on their way to the L2 cache, which sees what is still written.
  if constexpr (kTiled) {
    if (const int key = (split * kWarps + warp) * kStep; lane == 0 && key < p.keys) {
#pragma unroll
      for (int i = 0; i < kSpans; i++) {
        prefetch_tile(&p.k_map, i * kTileColumns, key, shared_head, batch);
        prefetch_tile(&p.v_map, i * kTileColumns, key, shared_head, batch);
      }
    }
  }
  char *const ring = memory + warp * kStages * kStage;
  uint64_t *const barriers = reinterpret_cast<uint64_t *>(memory + kRing) + warp * kStages;
  if (lane < kStages) init_barrier(barriers + lane, kTiled ? 1 : 32);
  sync_warp();
  const int rows = p.rows - row_tile * kSplitRows < kSplitRows ? p.rows - row_tile * kSplitRows : kSplitRows;
  const bool both = rows > 8;  // whether a lane has a second row
  const SplitRow mine[2] = {split_row_of(p, row_tile * kSplitRows + g, shared_head, batch),
                            split_row_of(p, row_tile * kSplitRows + g + 8, shared_head, batch)};
  const SplitShare<Type, kCluster ? kCluster : 1> share(p, rows, row_tile, shared_head, batch);
  const SplitInbox<kDepth, kCluster ? kCluster : 1> inbox(memory + split_ring(kDepth, kTiled));
  if constexpr (kCluster != 0) {
    if (threadIdx.x == 0) inbox.expect(share.count);
    arrive_at_cluster();
  }
  wait_for_earlier();
  const int keys = split_keys(p, batch);

  const int steps = (keys + kStep - 1) / kStep, workers = splits * kWarps, first = split * kWarps + warp;
  auto load_bias = [&](uint32_t (&to)[kTiles][2], int step) {
    if (p.bias == nullptr || step >= steps) return;
    const int key = step * kStep + 2 * t;
    const bool is_whole = p.pairs && (step + 1) * kStep <= keys;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (i == 1 && !both) continue;
      if (is_whole) {
        const uint16_t *from = static_cast<const uint16_t *>(p.bias) + mine[i].bias + key;
#pragma unroll
        for (int j = 0; j < kTiles; j++) to[j][i] = *reinterpret_cast<const uint32_t *>(from + 8 * j);
      } else {
#pragma unroll
        for (int j = 0; j < kTiles; j++) to[j][i] = split_bias<Type>(p, mine[i], key + 8 * j, keys);
      }
    }
  };
  // Whether a step is there, and its bias leaves one of its keys: else nothing of it is read. The first one is not asked,
  // and is on its way to the L2 cache already.
  auto is_live = [&](const uint32_t (&of)[kTiles][2], int step) {
    if (p.bias == nullptr || step >= steps) return step < steps;
    bool any = false;
#pragma unroll
    for (int j = 0; j < kTiles; j++) any |= !is_masked<Type>(of[j][0]) || (both && !is_masked<Type>(of[j][1]));
    return any_lane(any);
  };
  auto copy = [&](char *to, uint64_t *barrier, int step) {
    const int begin = step * kStep;
    sync_warp();  // all have read what was there
    if constexpr (kTiled) {
      if (lane != 0) return;
      expect_tiles(barrier, kStage);
#pragma unroll
      for (int i = 0; i < kSpans; i++) {
        copy_tile(to + i * kTile, &p.k_map, i * kTileColumns, begin, shared_head, batch, barrier);
        copy_tile(to + kValues + i * kTile, &p.v_map, i * kTileColumns, begin, shared_head, batch, barrier);
      }
    } else {
      split_copy<kDepth>(to, k + begin * p.k_strides[1], p.k_strides[1], keys - begin, p.depth);
      split_copy<kDepth>(to + kValues, v + begin * p.v_strides[1], p.v_strides[1], keys - begin, p.value_depth);
      end_pieces(barrier);
    }
  };
  // Values of no key, which count for nothing, and may be no numbers where a batch has fewer keys than others.
  auto clear_values = [&](char *values, int from) {
#pragma unroll 1
    for (int i = from * (kDepth / 8) + lane; i < kStep * (kDepth / 8); i += 32) {
      char *const place = values + i % kSpans * kTile + i / kSpans * 16;
      *reinterpret_cast<uint4 *>(place) = make_uint4(0, 0, 0, 0);
    }
    sync_warp();
  };

  uint32_t ahead[kTiles][2] = {}, bias[kTiles][2] = {};
  const bool begins = first < steps;
  if (begins) copy(ring, barriers, first);
  load_bias(ahead, first + workers);

  // Of rows that do not exist, those of the last one; of dims, zeros: keys may have no numbers there.
  auto query = [&](int i, int chunk) {
    const int dim = 32 * chunk + 8 * t;
    if (dim >= p.depth || (i == 1 && !both)) return make_uint4(0, 0, 0, 0);
    return *reinterpret_cast<const uint4 *>(static_cast<const Storage *>(p.q) + mine[i].q + dim);
  };
  uint4 q[kKeepsQ ? kChunks : 1][2];
  if constexpr (kKeepsQ) {
#pragma unroll
    for (int c = 0; c < kChunks; c++) q[c][0] = query(0, c), q[c][1] = query(1, c);
  }

  // One turn reads a step, and begins to copy the one that is kStages later into its place. The bias of a step is read
  // twice: ahead of its keys, for whether to copy them, and for its scores.
  float acc[kSpans][8][4] = {}, most[2] = {-INFINITY, -INFINITY}, total[2] = {};
  if (split == 0 && warp == 0) {  // one of all who share the keys has the sink, and one lane of its row
#pragma unroll
    for (int i = 0; i < 2; i++) most[i] = split_sink(p, mine[i]), total[i] = t == 0 && p.sinks != nullptr;
  }
  int copied = first + workers, stage = 1 % kStages, live = begins << (kStages - 1), phases = 0;
#pragma unroll 1
  for (int step = first - (kStages - 1) * workers; step < steps; step += workers) {
    char *const own = ring + stage * kStage;
    uint64_t *const barrier = barriers + stage;
    if (live & 1) {
      load_bias(bias, step);
      float scores[kTiles][4] = {};
      wait_for_tiles(barrier, phases >> stage & 1);
      phases ^= 1 << stage;
      if (p.lengths != nullptr && (step + 1) * kStep > keys) clear_values(own + kValues, keys - step * kStep);
      const char *const own_keys = own + g * kTileRowBytes, *const own_values = own + kValues + t * 2 * kTileRowBytes;
#pragma unroll
      for (int c = 0; c < kChunks; c++) {
        const uint4 q0 = kKeepsQ ? q[kKeepsQ ? c : 0][0] : query(0, c),
                    q1 = kKeepsQ ? q[kKeepsQ ? c : 0][1] : query(1, c);
#pragma unroll
        for (int j = 0; j < kTiles; j++) {
          const int piece = ((t + c % 2 * 4) ^ g) * 16, at = c / 2 * kTile + j * 8 * kTileRowBytes + piece;
          const uint4 x = *reinterpret_cast<const uint4 *>(own_keys + at);
          mma<Type>(scores[j], q0.x, q1.x, q0.y, q1.y, x.x, x.y);
          mma<Type>(scores[j], q0.z, q1.z, q0.w, q1.w, x.z, x.w);
        }
      }
      split_scale(p, scores);
      split_mask<Type>(p, mine, scores, bias, step * kStep + 2 * t, keys, (step + 1) * kStep <= keys);
      uint32_t a[kTiles][2] = {};
#pragma unroll
      for (int i = 0; i < 2; i++) {
        if (i == 1 && !both) continue;
        float top = most[i];
#pragma unroll
        for (int j = 0; j < kTiles; j++) top = fmaxf(top, fmaxf(scores[j][2 * i], scores[j][2 * i + 1]));
        top = fmaxf(top, shuffle_xor(top, 1));
        top = fmaxf(top, shuffle_xor(top, 2));
        const float base = top == -INFINITY ? 0.0f : top, factor = exp2_of((most[i] - base) * kLog2OfE);
        most[i] = top, total[i] *= factor;
#pragma unroll
        for (int j = 0; j < kTiles; j++) {
          const float left = exp2_of((scores[j][2 * i] - base) * kLog2OfE);
          const float right = exp2_of((scores[j][2 * i + 1] - base) * kLog2OfE);
          total[i] += left + right, a[j][i] = pack<Type>(left, right);
        }
        if (step == first) continue;  // there are no sums yet
#pragma unroll
        for (int c = 0; c < kSpans; c++) {
#pragma unroll
          for (int j = 0; j < 8; j++) acc[c][j][2 * i] *= factor, acc[c][j][2 * i + 1] *= factor;
        }
      }
#pragma unroll
      for (int i = 0; i < kStep / 16; i++) {
#pragma unroll
        for (int c = 0; c < kSpans; c++) {
          uint4 x[4];
#pragma unroll
          for (int n = 0; n < 4; n++) {
            const int row = 16 * i + n / 2 * 8 + n % 2, piece = (g ^ (2 * t + n % 2)) * 16;
            x[n] = *reinterpret_cast<const uint4 *>(own_values + c * kTile + row * kTileRowBytes + piece);
          }
          split_add_values<Type>(acc[c], a[2 * i], a[2 * i + 1], x);
        }
      }
    }
    const bool is = is_live(ahead, copied);
    live = live >> 1 | is << (kStages - 1);
    if (is) copy(own, barrier, copied);
    stage = stage + 1 < kStages ? stage + 1 : 0;
    copied += workers;
    load_bias(ahead, copied);
  }
  __syncthreads();  // the ring becomes room for partial sums

  const int row_quads = int(p.row_quads.divisor);
  const SplitWarps<kWarps> warps(memory, rows, rows * row_quads);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int row = g + 8 * i;
    if (i == 1 && !both) continue;
    total[i] += shuffle_xor(total[i], 1);
    total[i] += shuffle_xor(total[i], 2);
    if (row >= rows) continue;
    float4 *const to = warps.sums + warp * warps.quads + row * row_quads;
#pragma unroll
    for (int c = 0; c < kSpans; c++) {
#pragma unroll
      for (int n = 0; n < 2; n++) {
        const int dim = 64 * c + 16 * t + 8 * n;  // of eight
        if (dim >= p.value_depth) continue;
#pragma unroll
        for (int j = 0; j < 8; j += 4) {
          to[(dim + j) / 4] = make_float4(acc[c][j][2 * i + n], acc[c][j + 1][2 * i + n], acc[c][j + 2][2 * i + n],
                                          acc[c][j + 3][2 * i + n]);
        }
      }
    }
    if (t == 0) warps.stats[warp * rows + row] = make_float2(most[i], total[i]);
  }
  __syncthreads();

  auto sum_of_warps = [&](int quad) { return warps.sum(quad, quotient(quad, p.row_quads)); };
  if constexpr (kCluster != 0) {
    wait_for_cluster();  // all blocks are there, and expect what is sent
#pragma unroll 1
    for (int quad = threadIdx.x; quad < warps.quads; quad += 32 * kWarps) inbox.send(quad, sum_of_warps(quad));
    wait_for_sent(inbox.barrier);
    split_finish<32 * kWarps, kRing>(share, memory, [&](int place) { return inbox.sum(place); });
  } else {
    split_finish<32 * kWarps, kRing>(share, memory, sum_of_warps);
  }
}

}  // namespace pk
#endif
