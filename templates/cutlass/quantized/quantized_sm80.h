/* Products and convolutions of int8 or uint8 data with int8 weights, for GPUs from sm_80 on: the main loops of CUTLASS
 * 2, with an epilogue of their own. Sums go through shared memory to where rows of the result are written whole, and
 * become on the way what quantized.h says. */
#pragma once

#include "quantized.h"
//
#include "cute/tensor.hpp"
//
#include "cutlass/arch/grid_dependency_control.h"
#include "cutlass/conv/kernel/default_conv2d_fprop.h"
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/thread/activation.h"
#include "cutlass/epilogue/thread/linear_combination.h"
#include "cutlass/gemm/threadblock/default_mma.h"
#include "cutlass/gemm/threadblock/threadblock_swizzle.h"
#include "cutlass/numeric_conversion.h"
#include "cutlass/numeric_types.h"
//
#include "activations.h"
#include "conv.h"
#include "gemm.h"
#include "rounding.h"

namespace pk {

using Swizzle = cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>;
using Math = cutlass::arch::OpMultiplyAddSaturate;

/* What becomes of a block's sums. `kWideD` elements of residual and result are accessed at a time. */
template <class Tile, class Warp, class WarpCount, class ElementD, int kWideD, template <class> class Activation,
          bool kResidual>
struct Rows {
  static constexpr int kThreads = 32 * WarpCount::kCount;
  static constexpr bool kIsSum = cutlass::platform::is_same<ElementD, int32_t>::value;
  /* How many of the vectors' elements are accessed at a time. */
  static constexpr int kWideV = kWideD < 4 ? kWideD : 4;
  /* Eight more than a row has: neighboring rows start in other banks. */
  static constexpr int kRowSums = Tile::kN + 8;
  struct Shared {
    alignas(16) int32_t tile[Tile::kM * kRowSums];
  };
  struct Params {
    pk_scales_t scales;
    const ElementD *residual;
    ElementD *result;
    int64_t residual_row, result_row;
    int rows, columns;
  };

#ifndef PK_HOST
  template <class Fragment>
  CUTLASS_DEVICE static void store(Fragment const &sums, int32_t *tile) {
    static_assert(WarpCount::kK == 1, "as sums are stored");
    const int warp = cutlass::canonical_warp_idx_sync(), lane = threadIdx.x % 32;
    const int row = (warp % WarpCount::kM) * Warp::kM + lane / 4;
    const int column = (warp / WarpCount::kM) * Warp::kN + lane % 4 * 2;
    CUTLASS_PRAGMA_UNROLL
    for (int n = 0; n < Warp::kN / 8; ++n) {
      CUTLASS_PRAGMA_UNROLL
      for (int m = 0; m < Warp::kM / 8; ++m) {
        const int i = (n * (Warp::kM / 8) + m) * 2;
        *reinterpret_cast<int2 *>(tile + (row + m * 8) * kRowSums + column + n * 8) = make_int2(sums[i], sums[i + 1]);
      }
    }
  }

  template <class T>
  CUTLASS_DEVICE static cutlass::Array<T, kWideD> load(const T *place, T otherwise) {
    cutlass::Array<T, kWideD> y;
    y.fill(otherwise);
    if (place == nullptr) return y;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kWideD; i += kWideV) {
      const auto part = *reinterpret_cast<const cutlass::AlignedArray<T, kWideV> *>(place + i);
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < kWideV; ++j) y[i + j] = part[j];
    }
    return y;
  }

  template <class T>
  CUTLASS_DEVICE static const T *at(const T *vector, int column) {
    return vector == nullptr ? vector : vector + column;
  }

  template <class Fragment>
  CUTLASS_DEVICE static void write(Params const &params, Fragment const &sums, Shared &shared, int first_row,
                                   int first_column) {
    using Vector = cutlass::AlignedArray<ElementD, kWideD>;
    using Floats = cutlass::Array<float, kWideD>;
    store(sums, shared.tile);
    /* A thread stays in its columns. */
    constexpr int kAcross = Tile::kN / kWideD, kStep = kThreads / kAcross;
    static_assert(kThreads % kAcross == 0 && Tile::kM % kStep == 0, "whole rows at a time");
    const int column = threadIdx.x % kAcross * kWideD, n = first_column + column;
    const bool inside = n < params.columns;
    const pk_scales_t &scales = params.scales;
    [[maybe_unused]] const Rounding to = rounding(scales);
    const auto offset = load(inside ? at(scales.offset, n) : nullptr, scales.offset_of_all);
    const Floats scale = load(inside ? at(scales.scale, n) : nullptr, scales.scale_of_all);
    const Floats bias = load(inside ? at(scales.bias, n) : nullptr, scales.bias_of_all);
    __syncthreads();
    for (int row = threadIdx.x / kAcross; row < Tile::kM; row += kStep) {
      const int m = first_row + row;
      if (!inside || m >= params.rows) continue;
      auto sum = load<int32_t>(shared.tile + row * kRowSums + column, 0);
      sum = cutlass::plus<cutlass::Array<int32_t, kWideD>>{}(sum, offset);
      cutlass::Array<ElementD, kWideD> result;
      if constexpr (kIsSum) {
        result = sum;
      } else {
        Floats y = cutlass::NumericArrayConverter<float, int32_t, kWideD>{}(sum);
        y = cutlass::multiply_add<Floats>{}(y, scale, bias);
        if constexpr (kResidual) {
          const Vector read = *reinterpret_cast<const Vector *>(params.residual + m * params.residual_row + n);
          const Floats c = cutlass::NumericArrayConverter<float, ElementD, kWideD>{}(read);
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < kWideD; ++i) y[i] += scales.beta * c[i];
        }
        y = Activation<Floats>{}(y);
        if constexpr (kIsRounded<ElementD>) {
          CUTLASS_PRAGMA_UNROLL
          for (int i = 0; i < kWideD; ++i) y[i] = ScalarToInteger::apply(y[i], to);
        }
        result = cutlass::NumericArrayConverter<ElementD, float, kWideD>{}(y);
      }
      *reinterpret_cast<Vector *>(params.result + m * params.result_row + n) =
          *reinterpret_cast<const Vector *>(&result);
    }
  }
#endif
};

/* The grid of tiles; false where it has too many. */
inline bool set_launch(pk_cuda_launch_t *launch, dim3 grid, int threads, size_t shared_bytes) {
  *launch = {{grid.x, grid.y, grid.z}, {unsigned(threads), 1, 1}, uint32_t(shared_bytes), PK_CUDA_PROGRAMMATIC};
  return grid.y <= UINT16_MAX && grid.z <= UINT16_MAX;
}

/* `kWide` elements of a and b are accessed at a time. */
template <class Element, int kWide, int kWideD, class ElementD, class Tile, class Warp, class Instruction, int kStages,
          template <class> class Activation, bool kResidual>
struct Sm80QuantizedGemm {
  using Mma = typename cutlass::gemm::threadblock::DefaultMma<
      Element, cutlass::layout::RowMajor, kWide, int8_t, cutlass::layout::ColumnMajor, kWide, int32_t,
      cutlass::layout::RowMajor, cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80, Tile, Warp, Instruction, kStages,
      Math>::ThreadblockMma;
  using Epilogue = Rows<Tile, Warp, typename Mma::WarpCount, ElementD, kWideD, Activation, kResidual>;
  static constexpr int kThreads = Epilogue::kThreads;
  struct Params {
    cutlass::gemm::GemmCoord problem, tiles;
    int swizzle, iterations;
    typename Mma::IteratorA::Params iterator_a;
    typename Mma::IteratorB::Params iterator_b;
    Element *a;
    int8_t *b;
    typename Epilogue::Params rows;
  };
  union SharedStorage {
    typename Mma::SharedStorage main_loop;
    typename Epilogue::Shared rows;
  };

#ifndef PK_HOST
  CUTLASS_DEVICE static void run(Params const &params, SharedStorage &shared) {
    cutlass::arch::launch_dependent_grids();
    cutlass::arch::wait_on_dependent_grids();
    const auto at = Swizzle{}.get_tile_offset(params.swizzle);
    if (at.m() >= params.tiles.m() || at.n() >= params.tiles.n()) return;
    const int thread = threadIdx.x;
    typename Mma::IteratorA iterator_a(params.iterator_a, params.a, {params.problem.m(), params.problem.k()}, thread,
                                       {at.m() * Tile::kM, 0});
    typename Mma::IteratorB iterator_b(params.iterator_b, params.b, {params.problem.k(), params.problem.n()}, thread,
                                       {0, at.n() * Tile::kN});
    Mma mma(shared.main_loop, thread, cutlass::canonical_warp_idx_sync(), thread % 32);
    typename Mma::FragmentC sums;
    sums.clear();
    mma(params.iterations, sums, iterator_a, iterator_b, sums);
    __syncthreads();
    Epilogue::write(params.rows, sums, shared.rows, at.m() * Tile::kM, at.n() * Tile::kN);
  }
#else
  static int32_t fill(const pk_quantized_gemm_t &problem, void *arguments, pk_cuda_launch_t *launch) {
    const pk_gemm_t &gemm = problem.gemm;
    if (!takes(gemm, 1, kWide, sizeof(ElementD), kWideD, kResidual, false) || gemm.batch != 1) return -1;
    if (!aligned(problem.scales, 4 * Epilogue::kWideV)) return -1;
    if (gemm.lda > INT32_MAX || gemm.ldb > INT32_MAX) return -1;
    const cutlass::gemm::GemmCoord size(gemm.m, gemm.n, gemm.k);
    const auto tiles = Swizzle::get_tiled_shape(size, {Tile::kM, Tile::kN, Tile::kK}, 1);
    const Params params{
        size,
        tiles,
        Swizzle::get_log_tile(tiles),
        (size.k() + Tile::kK - 1) / Tile::kK,
        typename Mma::IteratorA::Params(cutlass::layout::RowMajor(gemm.lda)),
        typename Mma::IteratorB::Params(cutlass::layout::ColumnMajor(gemm.ldb)),
        static_cast<Element *>(const_cast<void *>(gemm.a)),
        static_cast<int8_t *>(const_cast<void *>(gemm.b)),
        {problem.scales, static_cast<const ElementD *>(gemm.c), static_cast<ElementD *>(gemm.d), gemm.ldc, gemm.ldd,
         size.m(), size.n()},
    };
    memcpy(arguments, &params, sizeof params);
    return set_launch(launch, Swizzle::get_grid_shape(tiles), kThreads, sizeof(SharedStorage)) ? 0 : -1;
  }
#endif
};

/* `kWide` elements of x and w are accessed at a time. */
template <class Element, int kWide, int kWideD, class ElementD, class Tile, class Warp, class Instruction, int kStages,
          cutlass::conv::IteratorAlgorithm kAlgorithm, template <class> class Activation, bool kResidual>
struct Sm80QuantizedConv {
  using Layout = cutlass::layout::TensorNHWC;
  /* CUTLASS names an epilogue too, which is not used. */
  using Output = cutlass::epilogue::thread::LinearCombination<int32_t, 4, int32_t, float>;
  using Mma = typename cutlass::conv::kernel::DefaultConv2dFprop<
      Element, Layout, int8_t, Layout, int32_t, Layout, int32_t, cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80,
      Tile, Warp, Instruction, Output, Swizzle, kStages, Math, kAlgorithm, cutlass::conv::StrideSupport::kStrided,
      kWide, kWide>::Kernel::Mma;
  using Epilogue = Rows<Tile, Warp, typename Mma::WarpCount, ElementD, kWideD, Activation, kResidual>;
  static constexpr int kThreads = Epilogue::kThreads;
  struct Params {
    cutlass::conv::Conv2dProblemSize problem;
    cutlass::gemm::GemmCoord tiles;
    int swizzle, iterations, iterations_per_channel;
    typename Mma::IteratorA::Params iterator_x;
    typename Mma::IteratorB::Params iterator_w;
    const Element *x;
    const int8_t *w;
    typename Epilogue::Params rows;
  };
  union SharedStorage {
    typename Mma::SharedStorage main_loop;
    typename Epilogue::Shared rows;
  };

#ifndef PK_HOST
  CUTLASS_DEVICE static void run(Params const &params, SharedStorage &shared) {
    cutlass::arch::launch_dependent_grids();
    cutlass::arch::wait_on_dependent_grids();
    const auto at = Swizzle{}.get_tile_offset(params.swizzle);
    if (at.m() >= params.tiles.m() || at.n() >= params.tiles.n()) return;
    const int thread = threadIdx.x;
    typename Mma::IteratorA iterator_x(params.iterator_x, params.problem, params.x, thread, {at.m() * Tile::kM, 0});
    typename Mma::IteratorB iterator_w(params.iterator_w, params.problem, params.w, thread, {0, at.n() * Tile::kN});
    Mma mma(shared.main_loop, thread, cutlass::canonical_warp_idx_sync(), thread % 32);
    typename Mma::FragmentC sums;
    sums.clear();
    mma(params.iterations, sums, iterator_x, iterator_w, sums, params.iterations_per_channel);
    __syncthreads();
    Epilogue::write(params.rows, sums, shared.rows, at.m() * Tile::kM, at.n() * Tile::kN);
  }
#else
  static int32_t fill(const pk_quantized_conv_t &quantized, void *arguments, pk_cuda_launch_t *launch) {
    const pk_conv_t &conv = quantized.conv;
    if (!takes(conv, 1, kWide, 1, kResidual) || conv.filters % kWideD) return -1;
    if (!aligned(quantized.scales, 4 * Epilogue::kWideV)) return -1;
    for (const void *pointer : {conv.residual, static_cast<const void *>(conv.y)}) {
      if (reinterpret_cast<uintptr_t>(pointer) % (kWideD * sizeof(ElementD))) return -1;
    }
    const int batch = conv.batch, height = conv.height, width = conv.width, channels = conv.channels;
    const int filters = conv.filters, out_height = conv.out_height, out_width = conv.out_width;
    const int window[2] = {int(conv.window[0]), int(conv.window[1])};
    const cutlass::conv::Conv2dProblemSize problem(batch, height, width, channels, filters, window[0], window[1],
                                                   out_height, out_width, conv.padding[0], conv.padding[1],
                                                   conv.stride[0], conv.stride[1], conv.dilation[0], conv.dilation[1],
                                                   cutlass::conv::Mode::kCrossCorrelation, 1, 1);
    if (Mma::IteratorA::can_implement(problem) != cutlass::Status::kSuccess) return -1;
    if (Mma::IteratorB::can_implement(problem) != cutlass::Status::kSuccess) return -1;
    constexpr auto kOperator = cutlass::conv::Operator::kFprop;
    const auto size = cutlass::conv::implicit_gemm_problem_size(kOperator, problem);
    const auto tiles = Swizzle::get_tiled_shape(size, {Tile::kM, Tile::kN, Tile::kK}, 1);
    const Params params{
        problem,
        tiles,
        Swizzle::get_log_tile(tiles),
        cutlass::conv::implicit_gemm_k_iterations(kOperator, Tile::kK, problem, kAlgorithm),
        cutlass::conv::implicit_gemm_k_iterations_per_channel(kOperator, problem, kAlgorithm),
        Mma::IteratorA::getParams(problem, Layout::packed({batch, height, width, channels})),
        typename Mma::IteratorB::Params(problem, Layout::packed({filters, window[0], window[1], channels})),
        static_cast<const Element *>(conv.x),
        static_cast<const int8_t *>(conv.w),
        {quantized.scales, static_cast<const ElementD *>(conv.residual), static_cast<ElementD *>(conv.y), filters,
         filters, size.m(), filters},
    };
    memcpy(arguments, &params, sizeof params);
    return set_launch(launch, Swizzle::get_grid_shape(tiles), kThreads, sizeof(SharedStorage)) ? 0 : -1;
  }
#endif
};

}  // namespace pk
