/* d [n, k] = (q - zero) * scale: weights of 4 or 8 bits in blocks along k, as halves for kernels that multiply these.
 *
 * They are read as block_format.h lays them out: a warp takes a unit at a time, a lane 16 bytes of it. As halves q - zero
 * is exact, and its product with a scale is rounded once, as where weights are dequantized at build time. d is memory
 * that kernels before have read: what is constant is loaded before the kernel waits for them. */
#pragma once

#include "block_format.h"
#include "problems.h"

namespace pk {

struct DequantizeParams {
  const void *b, *scales, *zeros;
  void *d;
  int32_t n, k;
  int32_t units, blocks; /* of a column */
  int32_t shift;         /* a block of several units has 1 << shift */
};

/* Warps of a block, and units of a warp. */
constexpr int kDequantizeWarps = 8, kDequantizeUnits = 2;

#if !defined(PK_HOST) || defined(PK_SIMT)
/* kBlocks: blocks of a unit, 1 where a block is a unit or more. */
template <class Out, int kBits, int kBlocks, bool kZeros>
__device__ inline void dequantize(const DequantizeParams &p) {
  constexpr int kUnit = kUnitBits / kBits, kChunks = kUnit / 32;
  const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
  const int first = blockIdx.y * kDequantizeUnits * kDequantizeWarps + threadIdx.x / 32;
  const int64_t tile = blockIdx.x;
  const uint4 *b = static_cast<const uint4 *>(p.b) + tile * p.units * 32 + lane;
  const int64_t pairs_of_tile = tile * p.blocks * 8;
  const uint32_t *scales = static_cast<const uint32_t *>(p.scales) + pairs_of_tile;
  const uint16_t *zeros = static_cast<const uint16_t *>(p.zeros) + pairs_of_tile;

  uint4 w[kDequantizeUnits];
  uint32_t s[kDequantizeUnits][kChunks], z[kDequantizeUnits][kChunks];
  release_next();
#pragma unroll
  for (int u = 0; u < kDequantizeUnits; u++) {
    const int unit = first + u * kDequantizeWarps;
    if (unit >= p.units) continue;
    w[u] = load_once(b + int64_t(unit) * 32);
#pragma unroll
    for (int c = 0; c < kChunks; c++) {
      const int block = kBlocks == 1 ? 0 : (32 * c + 8 * t) / (kUnit / kBlocks);
      const int64_t at = (int64_t(unit >> p.shift) * 8 + g) * kBlocks + block;
      s[u][c] = scales[at];
      z[u][c] = kZeros ? zeros[at] : (1u << (kBits - 1)) * 0x0101u;
    }
  }
  wait_for_earlier();
#pragma unroll
  for (int u = 0; u < kDequantizeUnits; u++) {
    const int unit = first + u * kDequantizeWarps;
    if (unit >= p.units) continue;
    const uint32_t words[4] = {w[u].x, w[u].y, w[u].z, w[u].w};
#pragma unroll
    for (int c = 0; c < kChunks; c++) {
      const int at = unit * kUnit + 32 * c + 8 * t;
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const int column = int(tile) * 16 + 8 * r + g;
        uint32_t pairs[4];
        unpack<kBits>(kBits == 4 ? words[2 * c + r] : words[2 * r], words[2 * r + 1], z[u][c] >> 8 * r & 0xff, pairs);
        if (column >= p.n || at >= p.k) continue;
        convert<Out>(pairs, s[u][c], r == 1);
        uint4 *d = reinterpret_cast<uint4 *>(static_cast<uint16_t *>(p.d) + int64_t(column) * p.k + at);
        *d = make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
      }
    }
  }
}
#endif

#ifdef PK_HOST
inline int32_t dequantize_fill(const pk_dequantize_t &problem, int bits, int blocks_of_unit, bool zeros,
                               void *arguments, pk_cuda_launch_t *launch) {
  *launch = {};
  if (problem.n < 1 || problem.n > INT32_MAX - 64 || problem.k < 8 || problem.k > INT32_MAX / 2) return -1;
  if (problem.k % 8 != 0 || problem.first < 0 || problem.first % 16 != 0) return -1;
  BlockLayout layout;
  if (!block_layout(problem.k, problem.block, bits, blocks_of_unit, &layout)) return -1;
  for (const void *pointer : {problem.b, static_cast<const void *>(problem.d)}) {
    if (pointer == nullptr || reinterpret_cast<uintptr_t>(pointer) % 16 != 0) return -1;
  }
  if (!problem.scales || reinterpret_cast<uintptr_t>(problem.scales) % 4 != 0) return -1;
  if (zeros && (!problem.zeros || reinterpret_cast<uintptr_t>(problem.zeros) % 2 != 0)) return -1;
  DequantizeParams &p = *static_cast<DequantizeParams *>(arguments);
  const int64_t tile = problem.first / 16;
  p.b = static_cast<const char *>(problem.b) + tile * layout.units * 512;
  p.scales = static_cast<const char *>(problem.scales) + tile * layout.blocks * 32;
  p.zeros = zeros ? static_cast<const char *>(problem.zeros) + tile * layout.blocks * 16 : nullptr;
  p.d = problem.d, p.n = int32_t(problem.n), p.k = int32_t(problem.k);
  p.units = layout.units, p.blocks = layout.blocks, p.shift = layout.shift;
  const uint32_t parts = uint32_t(layout.units + kDequantizeUnits * kDequantizeWarps - 1) / (kDequantizeUnits * kDequantizeWarps);
  if (parts > 65535) return -1;
  *launch = {{uint32_t((problem.n + 15) / 16), parts, 1}, {32 * kDequantizeWarps, 1, 1}, 0, PK_CUDA_PROGRAMMATIC};
  return 0;
}
#endif

}  // namespace pk
