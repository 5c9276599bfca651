/* How results of parts of the keys become those of all: of the warps of a block, of the blocks of a cluster, and, by who
 * is last, of all that have a tile. A thread has a quad of elements each time. Loops that run once or twice are not
 * unrolled: what takes longest here is to fetch code. */
#pragma once

#include "attention_split_problem.h"

#if !defined(PK_HOST) || defined(PK_SIMT)
namespace pk {

/* Sums of values, weighted by exponentials of scores relative to `most`, and the sum of these. */
struct SplitSum {
  float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  float most = -INFINITY, total = 0.0f;
};

__device__ inline float split_weight(float most, float of_all) {
  return exp2_of((most - (of_all == -INFINITY ? 0.0f : of_all)) * kLog2OfE);
}

__device__ inline void split_add(float4 &sum, float weight, float4 x) {
  sum.x += weight * x.x, sum.y += weight * x.y, sum.z += weight * x.z, sum.w += weight * x.w;
}

/* Merges kPieces, of which stats(i) are the greatest score and the sum of exponentials, and sums(i) those of values. */
template <int kPieces, class Stats, class Sums>
__device__ inline SplitSum split_sum(Stats stats, Sums sums) {
  SplitSum all;
  float2 of[kPieces];
#pragma unroll
  for (int i = 0; i < kPieces; i++) of[i] = stats(i), all.most = fmaxf(all.most, of[i].x);
#pragma unroll
  for (int i = 0; i < kPieces; i++) {
    const float weight = split_weight(of[i].x, all.most);
    all.total += weight * of[i].y;
    split_add(all.sum, weight, sums(i));
  }
  return all;
}

/* Makes weights of the greatest scores of so many parts, of one row, and the sum of all exponentials: by a warp. */
__device__ inline void split_weigh(float2 *stats, int parts, int stride, float2 *total) {
  const int lane = threadIdx.x % 32;
  float most = -INFINITY, sum = 0.0f;
  for (int i = lane; i < parts; i += 32) most = fmaxf(most, stats[i * stride].x);
#pragma unroll
  for (int n = 16; n > 0; n /= 2) most = fmaxf(most, shuffle_xor(most, n));
  for (int i = lane; i < parts; i += 32) {
    float2 &of_part = stats[i * stride];
    of_part.x = split_weight(of_part.x, most);
    sum += of_part.x * of_part.y;
  }
#pragma unroll
  for (int n = 16; n > 0; n /= 2) sum += shuffle_xor(sum, n);
  if (lane == 0) total->x = sum;
}

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

/* Merges a tile of `row_tile`'s rows, and stores it, by kBytes of shared memory. */
template <class Type, int kWarps, int kCluster, int kBytes>
__device__ inline void split_merge(const SplitParams &p, const SplitMemory &of, char *memory, int row_tile,
                                   int shared_head, int batch) {
  using Storage = typename Type::Storage;
  constexpr int kThreads = 32 * kWarps;
  const int rows = of.rows, row_quads = p.value_depth / 4, quads = rows * row_quads, splits = gridDim.x;
  const int split = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  auto finish = [&](int quad, float4 sum, float total) {
    const int row = quad / row_quads, dim = quad % row_quads * 4;
    const SplitRow place = split_row_of(p, row_tile * kSplitRows + row, shared_head, batch);
    const float factor = total == 0.0f ? 0.0f : reciprocal_of(total);
    uint2 packed;
    packed.x = pack<Type>(sum.x * factor, sum.y * factor);
    packed.y = pack<Type>(sum.z * factor, sum.w * factor);
    *reinterpret_cast<uint2 *>(static_cast<Storage *>(p.o) + place.o + dim) = packed;
  };
  auto sum_of_warps = [&](int quad) {
    const float *stats = of.warp_stats + quad / row_quads * 2, *sums = of.of_warps + 4 * quad;
    return split_sum<kWarps>([&](int i) { return *reinterpret_cast<const float2 *>(stats + i * 2 * rows); },
                             [&](int i) { return *reinterpret_cast<const float4 *>(sums + i * of.tile); });
  };

  // What a block merges of its cluster: a share of the quads.
  constexpr int kShares = kCluster ? kCluster : 1;
  const int share = kCluster ? split % kShares : 0, size = (quads + kShares - 1) / kShares;
  const int begin = share * size, end = begin + size < quads ? begin + size : quads, parts = splits / kShares;
  if constexpr (kCluster != 0) {
#pragma unroll 1
    for (int quad = threadIdx.x; quad < quads; quad += kThreads) {
      const SplitSum sum = sum_of_warps(quad);
      *reinterpret_cast<float4 *>(of.of_block + 4 * quad) = sum.sum;
      if (quad % row_quads == 0) {
        float *stats = of.block_stats + 2 * (quad / row_quads);
        stats[0] = sum.most, stats[1] = sum.total;
      }
    }
    cluster_sync();
  }
  auto sum_of_block = [&](int quad) {
    if constexpr (kCluster == 0) return sum_of_warps(quad);
    const float *stats = of.block_stats + 2 * (quad / row_quads);
    return split_sum<kShares>([&](int i) { return make_float2(of_block(stats, i), of_block(stats + 1, i)); },
                              [&](int i) { return quad_of_block(of.of_block + 4 * quad, i); });
  };
  const int tile = blockIdx.y + gridDim.y * batch, part_floats = 4 * quads + (rows + 1) / 2 * 4;
  float *const partial = p.partial + int64_t(tile) * parts * part_floats;
#pragma unroll 1
  for (int quad = begin + threadIdx.x; quad < end; quad += kThreads) {
    const SplitSum sum = sum_of_block(quad);
    if (parts == 1) {
      finish(quad, sum.sum, sum.total);
      continue;
    }
    float *const own = partial + split / kShares * part_floats;
    *reinterpret_cast<float4 *>(own + 4 * quad) = sum.sum;
    if (quad == begin || quad % row_quads == 0) {  // shares may begin within a row
      *reinterpret_cast<float2 *>(own + 4 * quads + 2 * (quad / row_quads)) = make_float2(sum.most, sum.total);
    }
  }
  if constexpr (kCluster != 0) cluster_sync();  // no block ends while another reads its memory
  if (parts == 1) return;

  int *const last = reinterpret_cast<int *>(memory);
  uint32_t *arrived = p.arrived + tile * kShares + share;
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) {
    *last = atomicAdd(arrived, 1u) == uint32_t(parts - 1);
    if (*last) *arrived = 0;
  }
  __syncthreads();
  if (*last == 0) return;
  __threadfence();

  // The last block has all at once on their way: [part, row, 2], and as many quads of each part as there is room for.
  float2 *const stats = reinterpret_cast<float2 *>(memory + 16), *const totals = stats + parts * rows;
  const int used = 16 + ((parts + 1) * rows * 8 + 15) / 16 * 16, room = (kBytes - used) / 16 / parts;
  float4 *const sums = reinterpret_cast<float4 *>(memory + used);
#pragma unroll 1
  for (int from = begin; from < end; from += room) {
    const int count = end - from < room ? end - from : room;
#pragma unroll 1
    for (int i = warp; i < parts; i += kWarps) {
      const float *part = partial + i * part_floats;
#pragma unroll 1
      for (int n = lane; n < count; n += 32) {
        copy_async(reinterpret_cast<uint4 *>(sums + i * count + n), part + 4 * (from + n), true);
      }
      if (from == begin && lane < rows) {
        stats[i * rows + lane] = __ldcg(reinterpret_cast<const float2 *>(part + 4 * quads) + lane);
      }
    }
    end_copies();
    if (from == begin) {
      __syncthreads();
#pragma unroll 1
      for (int row = warp; row < rows; row += kWarps) split_weigh(stats + row, parts, rows, totals + row);
    }
    wait_for_copies<0>();
    __syncthreads();
#pragma unroll 1
    for (int n = threadIdx.x; n < count; n += kThreads) {
      const int row = (from + n) / row_quads;
      float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
      for (int i = 0; i < parts; i++) split_add(sum, stats[i * rows + row].x, sums[i * count + n]);
      finish(from + n, sum, totals[row].x);
    }
    __syncthreads();
  }
}

}  // namespace pk
#endif
