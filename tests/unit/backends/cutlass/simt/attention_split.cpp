/* Attention that is split over keys, run on the host. */
#include "simt.h"
extern "C" {
#include "packager_cuda.h"
}
#include "attention_split.h"
#include "attention_split_fill.h"

extern "C" int32_t pk_tensor_map_encode(void *map, int32_t type, uint32_t rank, void *address, const uint64_t *extents,
                                        const uint64_t *strides, const uint32_t *box, const uint32_t *steps,
                                        int32_t interleave, int32_t swizzle, int32_t promotion, int32_t fill) {
  pk::HostMap of = {uint64_t(address)};
  memcpy(of.extents, extents, sizeof of.extents), memcpy(of.strides, strides, sizeof of.strides);
  memcpy(of.box, box, sizeof of.box), memcpy(map, &of, sizeof of);
  return rank != 4 || swizzle != 3;
}

namespace {
template <class Type, int kDepth>
void run(const pk::TiledSplitParams &params, const pk_cuda_launch_t &launch, const pk::SplitForm &form) {
  simt::launch(launch.grid, int(launch.block[0]), launch.shared_bytes, form.cluster ? form.cluster : 1,
               [&](char *memory) {
                 if (!form.tiled)
                   return pk::split_attention<Type, kDepth, 0>(static_cast<const pk::SplitParams &>(params), memory);
                 form.cluster ? pk::split_attention<Type, kDepth, 8>(params, memory)
                              : pk::split_attention<Type, kDepth, 0>(params, memory);
               });
}
template <class Type>
void run(const pk::TiledSplitParams &params, const pk_cuda_launch_t &launch, const pk::SplitForm &form) {
  if (form.depth == 64) run<Type, 64>(params, launch, form);
  if (form.depth == 128) run<Type, 128>(params, launch, form);
  if (form.depth == 256) run<Type, 256>(params, launch, form);
}
}  // namespace

/* Returns the number of splits, or what split_fill returns where it refuses. */
extern "C" int32_t attend(const pk_attention_t *problem, int32_t half, int32_t causal, int32_t depth, int32_t tiled,
                          int32_t cluster, int32_t num_sms) {
  const pk::SplitForm form = {half != 0, causal != 0, tiled != 0, depth, cluster};
  pk::TiledSplitParams params;
  memset(static_cast<void *>(&params), 0, sizeof params);
  pk_cuda_launch_t launch;
  const pk_cuda_device_t device = {90, num_sms};
  const int32_t result = pk::split_fill(&device, *problem, form, &params, &launch);
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
  const uintptr_t workspace = reinterpret_cast<uintptr_t>(problem->workspace);
  simt::readable.emplace_back(workspace, workspace + 4 * pk::kSplitBlocks * pk::kSplitRows * (depth + 4));
  half ? run<pk::F16>(params, launch, form) : run<pk::Bf16>(params, launch, form);
  return int32_t(launch.grid[0]);
}
