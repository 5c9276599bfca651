/* Products of few rows with weights that are quantized in blocks, run on the host. */
#include "simt.h"
extern "C" {
#include "packager_cuda.h"
}
#include "gemm_blocks_row.h"

namespace {
struct Relu {
  float operator()(float x) const { return x > 0.0f ? x : 0.0f; }
};
/* What a product is of. `wide` results are float32, and the activation is ReLU; others are gated and normed, or
 * neither. */
struct Form {
  int bits, blocks;
  bool zeros, wide, normed;
};
template <class Type, class Out, class Activation, int kWarps, int kRows, int kBits, int kBlocks, bool kZeros,
          pk::Ending kEnding, bool kNormed>
void multiply_rows(const pk::BlocksParams &params, float *memory) {
  if constexpr (kRows > 1) {
    pk::blocks_product<Type, Out, Activation, kWarps, kRows, kBits, kBlocks, kZeros, kEnding, kNormed>(params, memory);
  } else if constexpr (kBlocks * kBits <= 8) {
    pk::row_product<Type, Out, Activation, kWarps, kBits, kBlocks, kZeros, kEnding, kNormed>(params, memory);
  }
}
template <class Type, int kWarps, int kRows, int kBits, int kBlocks, bool kZeros>
void run(const pk::BlocksParams &params, const pk_cuda_launch_t &launch, const Form &form) {
  const uint32_t shared = pk::rows_memory(kWarps, kRows, 1, form.normed) * sizeof(float);
  simt::launch(launch.grid, int(launch.block[0]), shared, 1, [&](char *memory) {
    float *floats = reinterpret_cast<float *>(memory);
    using pk::Ending;
    if (form.normed)
      multiply_rows<Type, Type, Relu, kWarps, kRows, kBits, kBlocks, kZeros, Ending::kGated, true>(params, floats);
    else if (form.wide)
      multiply_rows<Type, pk::F32, Relu, kWarps, kRows, kBits, kBlocks, kZeros, Ending::kPlain, false>(params, floats);
    else if (params.c != nullptr)
      multiply_rows<Type, Type, pk::Unchanged, kWarps, kRows, kBits, kBlocks, kZeros, Ending::kResidual, false>(params,
                                                                                                                floats);
    else
      multiply_rows<Type, Type, pk::Unchanged, kWarps, kRows, kBits, kBlocks, kZeros, Ending::kPlain, false>(params,
                                                                                                             floats);
  });
}
template <class Type, int kWarps, int kRows, int kBits, int kBlocks>
void run_blocks(const pk::BlocksParams &params, const pk_cuda_launch_t &launch, const Form &form) {
  form.zeros ? run<Type, kWarps, kRows, kBits, kBlocks, true>(params, launch, form)
             : run<Type, kWarps, kRows, kBits, kBlocks, false>(params, launch, form);
}
template <class Type, int kWarps, int kRows>
void run_bits(const pk::BlocksParams &params, const pk_cuda_launch_t &launch, const Form &form) {
  if (form.bits == 8) {
    return form.blocks == 2 ? run_blocks<Type, kWarps, kRows, 8, 2>(params, launch, form)
                            : run_blocks<Type, kWarps, kRows, 8, 1>(params, launch, form);
  }
  form.blocks == 4   ? run_blocks<Type, kWarps, kRows, 4, 4>(params, launch, form)
  : form.blocks == 2 ? run_blocks<Type, kWarps, kRows, 4, 2>(params, launch, form)
                     : run_blocks<Type, kWarps, kRows, 4, 1>(params, launch, form);
}
template <class Type, int kWarps>
void run_rows(const pk::BlocksParams &params, const pk_cuda_launch_t &launch, const Form &form, int rows) {
  rows == 1   ? run_bits<Type, kWarps, 1>(params, launch, form)
  : rows == 8 ? run_bits<Type, kWarps, 8>(params, launch, form)
              : run_bits<Type, kWarps, 16>(params, launch, form);
}
template <class Type>
void run_warps(const pk::BlocksParams &params, const pk_cuda_launch_t &launch, const Form &form, int rows, int warps) {
  warps == 8 ? run_rows<Type, 8>(params, launch, form, rows) : run_rows<Type, 16>(params, launch, form, rows);
}
}  // namespace

extern "C" int32_t multiply(const pk_normed_block_gemm_t *problem, int32_t warps, int32_t rows, int32_t bits,
                            int32_t blocks, int32_t zeros, int32_t wide, int32_t half, int32_t normed,
                            int32_t num_sms) {
  pk::BlocksParams params;
  memset(static_cast<void *>(&params), 0, sizeof params);
  pk_cuda_device_t device = {};
  device.num_sms = num_sms;
  pk_cuda_launch_t launch;
  const pk::RowsForm made = {16 / warps, warps, rows, 1, problem->blocks.gemm.c != nullptr, normed != 0};
  const pk::BlocksForm weights = {bits, blocks, zeros != 0};
  const int32_t result =
      pk::blocks_fill(&device, problem->blocks, made, weights, problem->gains, problem->epsilon, &params, &launch);
  if (result) return result;
  const Form form{bits, blocks, zeros != 0, wide != 0, normed != 0};
  half ? run_warps<pk::F16>(params, launch, form, rows, warps) : run_warps<pk::Bf16>(params, launch, form, rows, warps);
  return 0;
}
