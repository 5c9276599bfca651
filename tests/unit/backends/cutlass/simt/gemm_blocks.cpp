/* Products of few rows with weights that are quantized in blocks, run on the host. */
#include "simt.h"
extern "C" {
#include "packager_cuda.h"
}
#include "gemm_blocks.h"

namespace {
struct Relu {
  float operator()(float x) const { return x > 0.0f ? x : 0.0f; }
};
/* What a product is of; `wide` results are float32, and the activation is ReLU. */
struct Form {
  int bits, blocks;
  bool zeros, wide;
};
template <class Type, int kRows, int kBits, int kBlocks, bool kZeros>
void run(const pk::BlocksParams &params, const pk_cuda_launch_t &launch, bool wide) {
  simt::launch(launch.grid, int(launch.block[0]), pk::kRowsWarps * kRows * 16 * sizeof(float), 1, [&](char *memory) {
    float *floats = reinterpret_cast<float *>(memory);
    wide ? pk::blocks_product<Type, pk::F32, Relu, kRows, kBits, kBlocks, kZeros>(params, floats)
         : pk::blocks_product<Type, Type, pk::Unchanged, kRows, kBits, kBlocks, kZeros>(params, floats);
  });
}
template <class Type, int kRows, int kBits, int kBlocks>
void run(const pk::BlocksParams &params, const pk_cuda_launch_t &launch, const Form &form) {
  form.zeros ? run<Type, kRows, kBits, kBlocks, true>(params, launch, form.wide)
             : run<Type, kRows, kBits, kBlocks, false>(params, launch, form.wide);
}
template <class Type, int kRows>
void run(const pk::BlocksParams &params, const pk_cuda_launch_t &launch, const Form &form) {
  if (form.bits == 8) {
    return form.blocks == 2 ? run<Type, kRows, 8, 2>(params, launch, form)
                            : run<Type, kRows, 8, 1>(params, launch, form);
  }
  form.blocks == 4   ? run<Type, kRows, 4, 4>(params, launch, form)
  : form.blocks == 2 ? run<Type, kRows, 4, 2>(params, launch, form)
                     : run<Type, kRows, 4, 1>(params, launch, form);
}
template <class Type>
void run(const pk::BlocksParams &params, const pk_cuda_launch_t &launch, const Form &form, int rows) {
  rows == 8 ? run<Type, 8>(params, launch, form) : run<Type, 16>(params, launch, form);
}
}  // namespace

extern "C" int32_t multiply(const pk_block_gemm_t *problem, int32_t rows, int32_t bits, int32_t blocks, int32_t zeros,
                            int32_t wide, int32_t half) {
  pk::BlocksParams params;
  memset(static_cast<void *>(&params), 0, sizeof params);
  pk_cuda_launch_t launch;
  const bool residual = problem->gemm.c != nullptr;
  const int32_t result = pk::blocks_fill(*problem, rows, bits, blocks, zeros, residual, &params, &launch);
  if (result) return result;
  const Form form{bits, blocks, zeros != 0, wide != 0};
  half ? run<pk::F16>(params, launch, form, rows) : run<pk::Bf16>(params, launch, form, rows);
  return 0;
}
