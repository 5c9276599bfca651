/* Recurrent layers, run on the host. */
#include "simt.h"
extern "C" {
#include "packager_cuda.h"
}
#include "recurrent.h"

namespace {
template <class Type, bool kGru, int kUnits, int kDepth, int kBlocks>
int32_t run(const pk_recurrent_t &layer) {
  pk::RecurrentParams params;
  memset(&params, 0, sizeof params);
  pk_cuda_launch_t launch;
  const int32_t result = pk::recurrent_fill(layer, kGru, kUnits, kDepth, kBlocks, &params, &launch);
  if (result) return result;
  simt::launch(launch.grid, int(launch.block[0]), launch.shared_bytes, kBlocks,
               [&](char *memory) { pk::recurrent_layer<Type, kGru, kUnits, kDepth, kBlocks>(params, memory); });
  return 0;
}
template <class Type, bool kGru>
int32_t run(const pk_recurrent_t &layer, int units, int depth, int blocks) {
  if (units == 16 && depth == 16 && blocks == 1) return run<Type, kGru, 16, 16, 1>(layer);
  if (units == 48 && depth == 48 && blocks == 1) return run<Type, kGru, 48, 48, 1>(layer);
  if (units == 64 && depth == 144 && blocks == 3) return run<Type, kGru, 64, 144, 3>(layer);
  return -2;
}
}  // namespace

extern "C" int32_t layer(const pk_recurrent_t *problem, int32_t bf16, int32_t gru, int32_t units, int32_t depth,
                         int32_t blocks) {
  if (bf16)
    return gru ? run<pk::Bf16, true>(*problem, units, depth, blocks)
               : run<pk::Bf16, false>(*problem, units, depth, blocks);
  return gru ? run<pk::F16, true>(*problem, units, depth, blocks) : run<pk::F16, false>(*problem, units, depth, blocks);
}
