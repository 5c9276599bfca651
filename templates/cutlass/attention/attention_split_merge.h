/* How results of parts of the keys become those of all: of the warps of a block, of the blocks of a cluster, and, by who
 * is last, of all that have a tile. A thread has a quad of elements each time. Loops that run once or twice are not
 * unrolled: what takes longest here is to fetch code. */
#pragma once

#include "attention_split_problem.h"

#if !defined(PK_HOST) || defined(PK_SIMT)
namespace pk {

/* Sums of values, weighted by exponentials of scores relative to `most`, and the sum of these: online softmax (Milakov
 * and Gimelshein 2018). */
struct SplitSum {
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  float most = -INFINITY, total = 0.0f;

  __device__ inline void add(float4 other, float other_most, float other_total) {
    const float next = fmaxf(most, other_most), base = next == -INFINITY ? 0.0f : next;
    const float mine = exp2_of((most - base) * kLog2OfE), theirs = exp2_of((other_most - base) * kLog2OfE);
    sum.x = sum.x * mine + other.x * theirs, sum.y = sum.y * mine + other.y * theirs;
    sum.z = sum.z * mine + other.z * theirs, sum.w = sum.w * mine + other.w * theirs;
    total = total * mine + other_total * theirs, most = next;
  }
};

/* Where a block's warps have their results in shared memory, and it has its own. */
struct SplitMemory {
  int tile, rows;                        // floats of the sums of a tile, and its rows
  float *of_warps, *warp_stats;          // [warp, row, value], [warp, row, 2]: the greatest score, the sum of exponentials
  float *of_block, *block_stats;         // [row, value], [row, 2]

  __device__ inline SplitMemory(char *memory, int warps, int rows, int values) : tile(rows * values), rows(rows) {
    of_warps = reinterpret_cast<float *>(memory), of_block = of_warps + warps * tile;
    warp_stats = of_block + tile, block_stats = warp_stats + warps * 2 * rows;
  }
};

/* Merges a tile of `row_tile`'s rows, and stores it. */
template <class Type, int kWarps, int kCluster>
__device__ inline void split_merge(const SplitParams &p, const SplitMemory &memory, int row_tile, int shared_head,
                                   int batch) {
  using Storage = typename Type::Storage;
  constexpr int kThreads = 32 * kWarps;
  const int row_quads = p.value_depth / 4, quads = memory.rows * row_quads, splits = gridDim.x, split = blockIdx.x;
  auto finish = [&](int quad, const SplitSum &of) {
    const int row = quad / row_quads, dim = quad % row_quads * 4;
    const SplitRow place = split_row_of(p, row_tile * kSplitRows + row, shared_head, batch);
    const float factor = of.total == 0.0f ? 0.0f : reciprocal_of(of.total);
    uint2 packed;
    packed.x = pack<Type>(of.sum.x * factor, of.sum.y * factor);
    packed.y = pack<Type>(of.sum.z * factor, of.sum.w * factor);
    *reinterpret_cast<uint2 *>(static_cast<Storage *>(p.o) + place.o + dim) = packed;
  };
  auto sum_of_warps = [&](int quad) {
    SplitSum sum;
#pragma unroll
    for (int i = 0; i < kWarps; i++) {
      const float *stats = memory.warp_stats + 2 * (i * memory.rows + quad / row_quads);
      sum.add(*reinterpret_cast<const float4 *>(memory.of_warps + i * memory.tile + 4 * quad), stats[0], stats[1]);
    }
    return sum;
  };

  // What a block merges of its cluster: a share of the quads.
  constexpr int kShares = kCluster ? kCluster : 1;
  const int share = kCluster ? split % kShares : 0, size = (quads + kShares - 1) / kShares;
  const int begin = share * size, end = begin + size < quads ? begin + size : quads, parts = splits / kShares;
  if constexpr (kCluster != 0) {
#pragma unroll 1
    for (int quad = threadIdx.x; quad < quads; quad += kThreads) {
      const SplitSum sum = sum_of_warps(quad);
      *reinterpret_cast<float4 *>(memory.of_block + 4 * quad) = sum.sum;
      if (quad % row_quads == 0) {
        float *stats = memory.block_stats + 2 * (quad / row_quads);
        stats[0] = sum.most, stats[1] = sum.total;
      }
    }
    cluster_sync();
  }
  auto sum_of_cluster = [&](int quad) {
    if constexpr (kCluster == 0) return sum_of_warps(quad);
    SplitSum sum;
#pragma unroll
    for (int i = 0; i < kShares; i++) {
      const float *stats = memory.block_stats + 2 * (quad / row_quads);
      sum.add(quad_of_block(memory.of_block + 4 * quad, i), of_block(stats, i), of_block(stats + 1, i));
    }
    return sum;
  };
  const int tile = blockIdx.y + gridDim.y * batch;
  float *partial = p.partial + int64_t(tile) * parts * quads * 6;
  auto sum_of_parts = [&](int quad) {
    SplitSum sum;
#pragma unroll 4
    for (int i = 0; i < parts; i++) {
      const float2 *from = reinterpret_cast<const float2 *>(partial + (int64_t(i) * quads + quad) * 6);
      const float2 low = __ldcg(from), high = __ldcg(from + 1), stats = __ldcg(from + 2);
      sum.add(make_float4(low.x, low.y, high.x, high.y), stats.x, stats.y);
    }
    return sum;
  };
  volatile uint32_t *last = reinterpret_cast<uint32_t *>(memory.block_stats + 2 * memory.rows);
  // Once for the block's own part, and once for all.
#pragma unroll 1
  for (bool all = parts == 1;; all = true) {
    const bool own = !all || parts == 1;
#pragma unroll 1
    for (int quad = begin + threadIdx.x; quad < end; quad += kThreads) {
      const SplitSum sum = own ? sum_of_cluster(quad) : sum_of_parts(quad);
      if (all) {
        finish(quad, sum);
        continue;
      }
      float2 *to = reinterpret_cast<float2 *>(partial + (int64_t(split / kShares) * quads + quad) * 6);
      to[0] = make_float2(sum.sum.x, sum.sum.y), to[1] = make_float2(sum.sum.z, sum.sum.w);
      to[2] = make_float2(sum.most, sum.total);
    }
    if constexpr (kCluster != 0) {
      if (own) cluster_sync();  // no block ends while another reads its memory
    }
    if (all) break;
    uint32_t *arrived = p.arrived + tile * kShares + share;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
      *last = atomicAdd(arrived, 1u) == uint32_t(parts - 1);
      if (*last) *arrived = 0;
    }
    __syncthreads();
    if (*last == 0) break;
    __threadfence();
  }
}

}  // namespace pk
#endif
