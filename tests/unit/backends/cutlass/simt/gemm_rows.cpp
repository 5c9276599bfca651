/* Products of few rows, run on the host. */
#include "simt.h"
extern "C" {
#include "packager_cuda.h"
}
#include "gemm_rows.h"

namespace {
struct Relu {
  float operator()(float x) const { return x > 0.0f ? x : 0.0f; }
};
template <class Type, class Out, class Activation, int kRows, int kTiles>
void run(const pk::RowsParams &params, const pk_cuda_launch_t &launch) {
  const uint32_t shared = pk::kRowsWarps * kRows * 16 * kTiles * sizeof(float);
  simt::launch(launch.grid, int(launch.block[0]), shared, 1, [&](char *memory) {
    pk::rows_product<Type, Out, Activation, kRows, kTiles>(params, reinterpret_cast<float *>(memory));
  });
}
template <class Type, class Out>
void run(const pk::RowsParams &params, const pk_cuda_launch_t &launch, int rows, bool relu) {
  if (rows == 8)
    relu ? run<Type, Out, Relu, 8, 1>(params, launch) : run<Type, Out, pk::Unchanged, 8, 1>(params, launch);
  if (rows == 16)
    relu ? run<Type, Out, Relu, 16, 2>(params, launch) : run<Type, Out, pk::Unchanged, 16, 2>(params, launch);
}
}  // namespace

/* types: 0 fp16 to fp16, 1 bf16 to bf16, 2 fp16 to float32. */
extern "C" int32_t multiply(const pk_gemm_t *problem, int32_t types, int32_t rows, int32_t relu) {
  pk::RowsParams params;
  memset(&params, 0, sizeof params);
  pk_cuda_launch_t launch;
  const int32_t result = pk::rows_fill(*problem, rows, rows / 8, problem->c != nullptr, &params, &launch);
  if (result) return result;
  if (types == 0) run<pk::F16, pk::F16>(params, launch, rows, relu);
  if (types == 1) run<pk::Bf16, pk::Bf16>(params, launch, rows, relu);
  if (types == 2) run<pk::F16, pk::F32>(params, launch, rows, relu);
  return 0;
}
