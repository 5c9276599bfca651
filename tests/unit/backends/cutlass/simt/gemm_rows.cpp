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
/* What a kernel does beside multiplying. */
struct Form {
  int warps, rows;
  bool relu, gated, normed, residual;
};
template <class Type, class Out, class Activation, int kWarps, int kRows, pk::Ending kEnding, bool kNormed>
void run(const pk::RowsParams &params, const pk_cuda_launch_t &launch) {
  constexpr int kTiles = kRows / 8;
  const uint32_t shared = pk::rows_memory(kWarps, kRows, kTiles, kNormed) * sizeof(float);
  simt::launch(launch.grid, int(launch.block[0]), shared, 1, [&](char *memory) {
    float *floats = reinterpret_cast<float *>(memory);
    pk::rows_product<Type, Out, Activation, kWarps, kRows, kTiles, kEnding, kNormed>(params, floats);
  });
}
template <class Type, class Out, class Activation, int kWarps, int kRows>
void run_form(const pk::RowsParams &params, const pk_cuda_launch_t &launch, const Form &form) {
  using pk::Ending;
  if (form.gated)
    form.normed ? run<Type, Out, Activation, kWarps, kRows, Ending::kGated, true>(params, launch)
                : run<Type, Out, Activation, kWarps, kRows, Ending::kGated, false>(params, launch);
  else if (form.residual)
    form.normed ? run<Type, Out, Activation, kWarps, kRows, Ending::kResidual, true>(params, launch)
                : run<Type, Out, Activation, kWarps, kRows, Ending::kResidual, false>(params, launch);
  else
    form.normed ? run<Type, Out, Activation, kWarps, kRows, Ending::kPlain, true>(params, launch)
                : run<Type, Out, Activation, kWarps, kRows, Ending::kPlain, false>(params, launch);
}
template <class Type, class Out, class Activation>
void run_rows(const pk::RowsParams &params, const pk_cuda_launch_t &launch, const Form &form) {
  if (form.rows == 8)
    form.warps == 8 ? run_form<Type, Out, Activation, 8, 8>(params, launch, form)
                    : run_form<Type, Out, Activation, 16, 8>(params, launch, form);
  if (form.rows == 16)
    form.warps == 8 ? run_form<Type, Out, Activation, 8, 16>(params, launch, form)
                    : run_form<Type, Out, Activation, 16, 16>(params, launch, form);
}
template <class Type, class Out>
void run_types(const pk::RowsParams &params, const pk_cuda_launch_t &launch, const Form &form) {
  form.relu ? run_rows<Type, Out, Relu>(params, launch, form)
            : run_rows<Type, Out, pk::Unchanged>(params, launch, form);
}
}  // namespace

/* types: 0 fp16 to fp16, 1 bf16 to bf16, 2 fp16 to float32. */
extern "C" int32_t multiply(const pk_normed_gemm_t *problem, int32_t types, int32_t warps, int32_t rows, int32_t relu,
                            int32_t gated, int32_t normed, int32_t num_sms) {
  pk::RowsParams params;
  memset(&params, 0, sizeof params);
  pk_cuda_device_t device = {};
  device.num_sms = num_sms;
  pk_cuda_launch_t launch;
  const pk::RowsForm made = {16 / warps, warps, rows, rows / 8, problem->gemm.c != nullptr, gated != 0};
  const int32_t result = pk::rows_fill(&device, problem->gemm, made, problem->epsilon, &params, &launch);
  if (result) return result;
  const Form form{warps, rows, relu != 0, gated != 0, normed != 0, params.c != nullptr};
  if (types == 0) run_types<pk::F16, pk::F16>(params, launch, form);
  if (types == 1) run_types<pk::Bf16, pk::Bf16>(params, launch, form);
  if (types == 2) run_types<pk::F16, pk::F32>(params, launch, form);
  return 0;
}
