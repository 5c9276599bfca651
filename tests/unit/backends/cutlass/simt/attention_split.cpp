/* Attention that is split over keys, run on the host. */
#include "simt.h"
extern "C" {
#include "packager_cuda.h"
}
#include "attention_split.h"
#include "attention_split_fill.h"

namespace {
template <class Type, int kDepth>
void run(const pk::SplitParams &params, const pk_cuda_launch_t &launch, int cluster) {
  simt::launch(launch.grid, int(launch.block[0]), launch.shared_bytes, cluster ? cluster : 1, [&](char *memory) {
    cluster ? pk::split_attention<Type, kDepth, 8>(params, memory)
            : pk::split_attention<Type, kDepth, 0>(params, memory);
  });
}
template <class Type>
void run(const pk::SplitParams &params, const pk_cuda_launch_t &launch, int depth, int cluster) {
  if (depth == 64) run<Type, 64>(params, launch, cluster);
  if (depth == 128) run<Type, 128>(params, launch, cluster);
  if (depth == 256) run<Type, 256>(params, launch, cluster);
}
}  // namespace

/* Returns the number of splits, or what split_fill returns where it refuses. */
extern "C" int32_t attend(const pk_attention_t *problem, int32_t half, int32_t causal, int32_t depth, int32_t cluster,
                          int32_t num_sms) {
  pk::SplitParams params;
  memset(&params, 0, sizeof params);
  pk_cuda_launch_t launch;
  const pk_cuda_device_t device = {90, num_sms};
  const int32_t result = pk::split_fill(&device, *problem, causal, depth, cluster, &params, &launch);
  if (result) return result;
  simt::readable.clear();
  auto reads = [&](const void *tensor, const int64_t (&strides)[3], int64_t rows, int64_t heads, int64_t dims) {
    const uintptr_t begin = reinterpret_cast<uintptr_t>(tensor);
    const int64_t last = (problem->batch - 1) * strides[0] + (rows - 1) * strides[1] + (heads - 1) * strides[2];
    simt::readable.emplace_back(begin, begin + 2 * (last + dims));
  };
  reads(problem->q, problem->q_strides, problem->queries, problem->heads, problem->depth);
  reads(problem->k, problem->k_strides, problem->keys, problem->heads / problem->group, problem->depth);
  reads(problem->v, problem->v_strides, problem->keys, problem->heads / problem->group, problem->value_depth);
  half ? run<pk::F16>(params, launch, depth, cluster) : run<pk::Bf16>(params, launch, depth, cluster);
  return int32_t(launch.grid[0]);
}
