/* Attention of short sequences, run on the host. */
#include "simt.h"
extern "C" {
#include "packager_cuda.h"
}
#include "attention_warps.h"
#include "attention_warps_fill.h"

namespace {
template <class Type, int kDepth>
void run(const pk::WarpsParams &params, int keys) {
  if (keys == 16) pk::warp_attention<Type, kDepth, 16>(params);
  if (keys == 32) pk::warp_attention<Type, kDepth, 32>(params);
  if (keys == 64) pk::warp_attention<Type, kDepth, 64>(params);
}
template <class Type>
void run(const pk::WarpsParams &params, int depth, int keys) {
  if (depth == 32) run<Type, 32>(params, keys);
  if (depth == 64) run<Type, 64>(params, keys);
  if (depth == 128) run<Type, 128>(params, keys);
}
}  // namespace

/* Returns the number of blocks, or what warps_fill returns where it refuses. */
extern "C" int32_t attend(const pk_attention_t *problem, int32_t half, int32_t causal, int32_t depth, int32_t keys) {
  pk::WarpsParams params;
  memset(&params, 0, sizeof params);
  pk_cuda_launch_t launch;
  const int32_t result = pk::warps_fill(*problem, causal, depth, keys, &params, &launch);
  if (result) return result;
  simt::launch(launch.grid, int(launch.block[0]), launch.shared_bytes, 1,
               [&](char *) { half ? run<pk::F16>(params, depth, keys) : run<pk::Bf16>(params, depth, keys); });
  return int32_t(launch.grid[0]);
}
