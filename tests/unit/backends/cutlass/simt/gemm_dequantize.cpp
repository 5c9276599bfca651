/* Weights that are quantized in blocks, made floats on the host. */
#include "simt.h"
extern "C" {
#include "packager_cuda.h"
}
#include "gemm_dequantize.h"

namespace {
template <int kBits, int kBlocks, bool kZeros>
void run(const pk::DequantizeParams &params, const pk_cuda_launch_t &launch, bool half) {
  simt::launch(launch.grid, int(launch.block[0]), 0, 1, [&](char *) {
    half ? pk::dequantize<pk::F16, kBits, kBlocks, kZeros>(params)
         : pk::dequantize<pk::Bf16, kBits, kBlocks, kZeros>(params);
  });
}
template <int kBits, int kBlocks>
void run(const pk::DequantizeParams &params, const pk_cuda_launch_t &launch, bool zeros, bool half) {
  zeros ? run<kBits, kBlocks, true>(params, launch, half) : run<kBits, kBlocks, false>(params, launch, half);
}
}  // namespace

extern "C" int32_t dequantize(const pk_dequantize_t *problem, int32_t bits, int32_t blocks, int32_t zeros,
                              int32_t half) {
  pk::DequantizeParams params;
  memset(static_cast<void *>(&params), 0, sizeof params);
  pk_cuda_launch_t launch;
  const int32_t result = pk::dequantize_fill(*problem, bits, blocks, zeros, &params, &launch);
  if (result) return result;
  if (bits == 8) {
    blocks == 2 ? run<8, 2>(params, launch, zeros, half) : run<8, 1>(params, launch, zeros, half);
  } else {
    blocks == 4   ? run<4, 4>(params, launch, zeros, half)
    : blocks == 2 ? run<4, 2>(params, launch, zeros, half)
                  : run<4, 1>(params, launch, zeros, half);
  }
  return 0;
}
