/* What a lane does with the keys of a step: scores, softmax and sums of values. */
#pragma once

#include "attention_split_merge.h"

#if !defined(PK_HOST) || defined(PK_SIMT)
namespace pk {

/* What a lane has of its two rows, of the keys so far. kDepth is a bound of both head dims; `both` is whether there is
 * a second row. */
template <class Type, int kDepth>
struct SplitState {
  static constexpr int kStep = split_step(kDepth), kTiles = kStep / 8, kChunks = kDepth / 32, kSpans = kDepth / 64;
  using Storage = typename Type::Storage;
  const SplitParams &p;
  const SplitRow (&mine)[2];
  bool both;
  float acc[kSpans][8][4] = {}, most[2] = {-INFINITY, -INFINITY}, total[2] = {};

  __device__ inline SplitState(const SplitParams &p, const SplitRow (&mine)[2], bool both)
      : p(p), mine(mine), both(both) {}

  /* Adds the step of keys from `begin` on. query(i, c) returns eight dims of a row, key(c, j) the same ones of the key
   * 8 j + g, value(i, c, n) the dims 64 c + 8 g and on of the key 16 i + 2 t + 8 (n / 2) + n % 2. */
  template <class Query, class Key, class Value>
  __device__ inline void add(int begin, int keys, const uint32_t (&bias)[kTiles][2], bool is_first, Query query,
                             Key key, Value value) {
    const int t = threadIdx.x % 4;
    float scores[kTiles][4] = {};
#pragma unroll
    for (int c = 0; c < kChunks; c++) {
      const uint4 q0 = query(0, c), q1 = query(1, c);
#pragma unroll
      for (int j = 0; j < kTiles; j++) {
        const uint4 x = key(c, j);
        mma<Type>(scores[j], q0.x, q1.x, q0.y, q1.y, x.x, x.y);
        mma<Type>(scores[j], q0.z, q1.z, q0.w, q1.w, x.z, x.w);
      }
    }
    split_scale(p, scores);
    split_mask<Type>(p, mine, scores, bias, begin + 2 * t, keys, begin + kStep <= keys);
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
      if (is_first) continue;  // there are no sums yet
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
        const uint4 x[4] = {value(i, c, 0), value(i, c, 1), value(i, c, 2), value(i, c, 3)};
        split_add_values<Type>(acc[c], a[2 * i], a[2 * i + 1], x);
      }
    }
  }

  /* Writes what the lanes of a warp have. */
  template <int kWarps>
  __device__ inline void store(const SplitWarps<kWarps> &to) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = lane / 4, t = lane % 4;
    const int row_quads = int(p.row_quads.divisor);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int row = g + 8 * i;
      if (i == 1 && !both) continue;
      total[i] += shuffle_xor(total[i], 1);
      total[i] += shuffle_xor(total[i], 2);
      if (row >= to.rows) continue;
      float4 *const sums = to.sums + warp * to.quads + row * row_quads;
#pragma unroll
      for (int c = 0; c < kSpans; c++) {
#pragma unroll
        for (int n = 0; n < 2; n++) {
          const int dim = 64 * c + 16 * t + 8 * n;  // of eight
          if (dim >= p.value_depth) continue;
#pragma unroll
          for (int j = 0; j < 8; j += 4) {
            sums[(dim + j) / 4] = make_float4(acc[c][j][2 * i + n], acc[c][j + 1][2 * i + n], acc[c][j + 2][2 * i + n],
                                              acc[c][j + 3][2 * i + n]);
          }
        }
      }
      if (t == 0) to.stats[warp * to.rows + row] = make_float2(most[i], total[i]);
    }
  }
};

}  // namespace pk
#endif
