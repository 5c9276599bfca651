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
template <int kRows, int kBits, int kBlocks, bool kZeros>
void run(const pk::BlocksParams &params, const pk_cuda_launch_t &launch, bool wide) {
  simt::launch(launch.grid, int(launch.block[0]), pk::kRowsWarps * kRows * 16 * sizeof(float), 1, [&](char *memory) {
    float *floats = reinterpret_cast<float *>(memory);
    wide ? pk::blocks_product<pk::F32, Relu, kRows, kBits, kBlocks, kZeros>(params, floats)
         : pk::blocks_product<pk::F16, pk::Unchanged, kRows, kBits, kBlocks, kZeros>(params, floats);
  });
}
template <int kRows, int kBits, int kBlocks>
void run(const pk::BlocksParams &params, const pk_cuda_launch_t &launch, bool zeros, bool wide) {
  zeros ? run<kRows, kBits, kBlocks, true>(params, launch, wide)
        : run<kRows, kBits, kBlocks, false>(params, launch, wide);
}
template <int kRows>
void run(const pk::BlocksParams &params, const pk_cuda_launch_t &launch, int bits, int blocks, bool zeros, bool wide) {
  if (bits == 8) return run<kRows, 8, 1>(params, launch, zeros, wide);
  blocks == 2 ? run<kRows, 4, 2>(params, launch, zeros, wide) : run<kRows, 4, 1>(params, launch, zeros, wide);
}
}  // namespace

/* `wide` results are float32, and the activation is ReLU. */
extern "C" int32_t multiply(const pk_block_gemm_t *problem, int32_t rows, int32_t bits, int32_t blocks, int32_t zeros,
                            int32_t wide) {
  pk::BlocksParams params;
  memset(static_cast<void *>(&params), 0, sizeof params);
  pk_cuda_launch_t launch;
  const bool residual = problem->gemm.c != nullptr;
  const int32_t result = pk::blocks_fill(*problem, rows, bits, blocks, zeros, residual, &params, &launch);
  if (result) return result;
  rows == 8 ? run<8>(params, launch, bits, blocks, zeros, wide) : run<16>(params, launch, bits, blocks, zeros, wide);
  return 0;
}
