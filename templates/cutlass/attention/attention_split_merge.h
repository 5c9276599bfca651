/* How results of parts of the keys become those of all: of the warps of a block, of the blocks of a cluster, and, by who
 * is last, of all blocks or clusters that have a tile. A thread has a quad of elements each time. */
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

/* Where the warps of a block have their results in shared memory. */
template <int kWarps>
struct SplitWarps {
  int rows, quads;
  float4 *sums;   // [warp, quad]
  float2 *stats;  // [warp, row]: the greatest score, the sum of exponentials

  __device__ inline SplitWarps(char *memory, int rows, int quads)
      : rows(rows), quads(quads), sums(reinterpret_cast<float4 *>(memory)),
        stats(reinterpret_cast<float2 *>(sums + kWarps * quads)) {}

  __device__ inline SplitSum sum(int quad, int row) const {
    return split_sum<kWarps>([&](int i) { return stats[i * rows + row]; }, [&](int i) { return sums[i * quads + quad]; });
  }
};

/* What a block of a cluster is sent by all: their sums of the quads of its share, [quad, block], and [quad, block] the
 * greatest score and the sum of exponentials. Quads are dealt out in turns. */
template <int kDepth, int kBlocks>
struct SplitInbox {
  uint64_t *barrier;
  float4 *sums;
  float2 *stats;

  __device__ inline explicit SplitInbox(char *memory)
      : barrier(reinterpret_cast<uint64_t *>(memory)), sums(reinterpret_cast<float4 *>(memory + 16)),
        stats(reinterpret_cast<float2 *>(sums + split_share(kDepth, kBlocks) * kBlocks)) {}

  /* By one thread, before any block sends. */
  __device__ inline void expect(int count) const {
    init_barrier(barrier, 1);
    expect_tiles(barrier, count * kBlocks * (sizeof(float4) + sizeof(float2)));
  }
  __device__ inline void send(int quad, const SplitSum &of) const {
    const int to = quad % kBlocks, place = quad / kBlocks * kBlocks + blockIdx.x % kBlocks;
    send_to_block(sums + place, of.sum, barrier, to);
    send_to_block(stats + place, make_float2(of.most, of.total), barrier, to);
  }
  __device__ inline SplitSum sum(int place) const {
    return split_sum<kBlocks>([&](int i) { return stats[place * kBlocks + i]; },
                              [&](int i) { return sums[place * kBlocks + i]; });
  }
};

/* What a block stores: the quads of its share, which are all where kShares is 1. */
template <class Type, int kShares>
struct SplitShare {
  using Storage = typename Type::Storage;
  const SplitParams &p;
  int rows, first, count, size;  // places of quads; those of the greatest share
  int row_tile, shared_head, batch;
  Storage *own;  // where the thread's first quad is stored

  __device__ inline SplitShare(const SplitParams &p, int rows, int row_tile, int shared_head, int batch)
      : p(p), rows(rows), first(blockIdx.x % kShares), row_tile(row_tile), shared_head(shared_head), batch(batch) {
    const int quads = rows * int(p.row_quads.divisor);
    count = (quads + kShares - 1 - first) / kShares, size = (quads + kShares - 1) / kShares;
    own = target(threadIdx.x);
  }
  __device__ inline int row(int place) const { return quotient(place * kShares + first, p.row_quads); }
  __device__ inline Storage *target(int place) const {
    const SplitRow of = split_row_of(p, row_tile * kSplitRows + row(place), shared_head, batch);
    return static_cast<Storage *>(p.o) + of.o + remainder(place * kShares + first, p.row_quads) * 4;
  }
  __device__ inline void store(int place, float4 sum, float total) const {
    const float factor = total == 0.0f ? 0.0f : reciprocal_of(total);
    uint2 packed;
    packed.x = pack<Type>(sum.x * factor, sum.y * factor);
    packed.y = pack<Type>(sum.z * factor, sum.w * factor);
    *reinterpret_cast<uint2 *>(place == threadIdx.x ? own : target(place)) = packed;
  }
};

/* Stores a share of the quads of a tile, of which sum_of(place) returns one, by kBytes of shared memory. */
template <int kThreads, int kBytes, class Type, int kShares, class SumOf>
__device__ inline void split_finish(const SplitShare<Type, kShares> &share, char *memory, SumOf sum_of) {
  constexpr int kWarps = kThreads / 32;
  const SplitParams &p = share.p;
  const int rows = share.rows, count = share.count, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int part = blockIdx.x / kShares, parts = gridDim.x / kShares;
  // Of a part: [share, quad of it], [row, 2].
  const int tile = blockIdx.y + gridDim.y * blockIdx.z, sums_floats = 4 * share.size * kShares;
  const int part_floats = sums_floats + (rows + 1) / 2 * 4, share_at = 4 * share.first * share.size;
  float *const partial = p.partial + int64_t(tile) * parts * part_floats;
#pragma unroll 1
  for (int place = threadIdx.x; place < count; place += kThreads) {
    const SplitSum sum = sum_of(place);
    if (parts == 1) {
      share.store(place, sum.sum, sum.total);
      continue;
    }
    float *const to = partial + part * part_floats;
    *reinterpret_cast<float4 *>(to + share_at + 4 * place) = sum.sum;
    *reinterpret_cast<float2 *>(to + sums_floats + 2 * share.row(place)) = make_float2(sum.most, sum.total);
  }
  if (parts == 1) return;

  int *const last = reinterpret_cast<int *>(memory);
  uint32_t *arrived = p.arrived + tile * kShares + share.first;
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
  for (int from = 0; from < count; from += room) {
    const int some = count - from < room ? count - from : room;
#pragma unroll 1
    for (int i = warp; i < parts; i += kWarps) {
      const float *of = partial + i * part_floats;
#pragma unroll 1
      for (int n = lane; n < some; n += 32) {
        copy_async(reinterpret_cast<uint4 *>(sums + i * some + n), of + share_at + 4 * (from + n), true);
      }
      if (from == 0 && lane < rows) {
        stats[i * rows + lane] = __ldcg(reinterpret_cast<const float2 *>(of + sums_floats) + lane);
      }
    }
    end_copies();
    if (from == 0) {
      __syncthreads();
#pragma unroll 1
      for (int row = warp; row < rows; row += kWarps) split_weigh(stats + row, parts, rows, totals + row);
    }
    wait_for_copies<0>();
    __syncthreads();
#pragma unroll 1
    for (int n = threadIdx.x; n < some; n += kThreads) {
      const int row = share.row(from + n);
      float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 4
      for (int i = 0; i < parts; i++) split_add(sum, stats[i * rows + row].x, sums[i * some + n]);
      share.store(from + n, sum, totals[row].x);
    }
    __syncthreads();
  }
}

}  // namespace pk
#endif
