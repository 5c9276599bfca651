/* Convolution for GPUs from sm_80 on: the implicit GEMM of CUTLASS 2, with an epilogue of its own. Accumulators go
 * through shared memory to where rows of y are written whole, and get bias, residual and activation on the way.
 *
 * On sm_90 the blocks of a cluster may share a tile, each with a part of the channels. Each then adds up a part of the
 * rows, out of the shared memory of all: sums do not depend on which block is first, and need no memory but that. */
#pragma once

#include "problems.h"
//
#include "cute/tensor.hpp"
//
#include "cute/arch/cluster_sm90.hpp"
#include "cutlass/arch/grid_dependency_control.h"
#include "cutlass/conv/kernel/default_conv2d_fprop.h"
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/thread/activation.h"
#include "cutlass/epilogue/thread/linear_combination.h"
#include "cutlass/numeric_conversion.h"
#include "cutlass/numeric_types.h"
//
#include "activations.h"
#include "conv.h"

namespace pk {

#ifndef PK_HOST
/* Four floats of the shared memory of another block of the cluster. */
CUTLASS_DEVICE cutlass::Array<float, 4> load_of_block(const float *shared, uint32_t block) {
  cutlass::Array<float, 4> x;
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const uint32_t address = cute::set_block_rank(cutlass::arch::cutlass_get_smem_pointer(shared), block);
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(x[0]), "=f"(x[1]), "=f"(x[2]), "=f"(x[3])
               : "r"(address));
#endif
  return x;
}
#endif

/* `kWide` elements of x and w are accessed at a time, `kWideD` of bias, residual and y. */
template <class Element_, int kWide_, int kWideD_, class Tile_, class Warp, class Instruction, int kStages,
          int kSlices_, class Math, cutlass::conv::IteratorAlgorithm kAlgorithm, template <class> class Activation_,
          bool kResidual_>
struct Sm80Conv {
  using Element = Element_;
  using Tile = Tile_;
  template <class T>
  using Activation = Activation_<T>;
  static constexpr int kWide = kWide_, kWideD = kWideD_, kSlices = kSlices_;
  static constexpr bool kResidual = kResidual_;

  using Layout = cutlass::layout::TensorNHWC;
  using Swizzle = cutlass::gemm::threadblock::GemmIdentityThreadblockSwizzle<8>;
  /* CUTLASS names an epilogue too, which is not used. */
  using Output = cutlass::epilogue::thread::LinearCombination<Element, 16 / sizeof(Element), float, float>;
  using Mma = typename cutlass::conv::kernel::DefaultConv2dFprop<
      Element, Layout, Element, Layout, Element, Layout, float, cutlass::arch::OpClassTensorOp, cutlass::arch::Sm80,
      Tile, Warp, Instruction, Output, Swizzle, kStages, Math, kAlgorithm, cutlass::conv::StrideSupport::kStrided,
      kWide, kWide>::Kernel::Mma;
  static constexpr int kThreads = 32 * Mma::WarpCount::kCount;
  static_assert(Mma::WarpCount::kK == 1 && Instruction::kM == 16 && Instruction::kN == 8, "as accumulators are stored");
  static_assert(Tile::kM % kSlices == 0 && (kSlices == 1 || kAlgorithm == cutlass::conv::IteratorAlgorithm::kOptimized),
                "slices are of channels");

  struct Params {
    cutlass::conv::Conv2dProblemSize problem;
    cutlass::gemm::GemmCoord tiles;
    int swizzle, iterations, iterations_per_channel, rows;
    typename Mma::IteratorA::Params iterator_x;
    typename Mma::IteratorB::Params iterator_w;
    const Element *x, *w, *bias, *residual;
    Element *y;
  };

  /* Eight more than a row has: neighboring rows start in other banks. */
  static constexpr int kRowFloats = Tile::kN + 8;
  union SharedStorage {
    typename Mma::SharedStorage main_loop;
    alignas(16) float tile[Tile::kM * kRowFloats];
  };

#ifndef PK_HOST
  CUTLASS_DEVICE static void store(typename Mma::FragmentC const &accumulators, float *tile) {
    const int warp = cutlass::canonical_warp_idx_sync(), lane = threadIdx.x % 32;
    const int row = (warp % Mma::WarpCount::kM) * Warp::kM + lane / 4;
    const int column = (warp / Mma::WarpCount::kM) * Warp::kN + lane % 4 * 2;
    CUTLASS_PRAGMA_UNROLL
    for (int n = 0; n < Warp::kN / 8; ++n) {
      CUTLASS_PRAGMA_UNROLL
      for (int m = 0; m < Warp::kM / 8; ++m) {
        const int i = (n * (Warp::kM / 8) + m) * 2;
        *reinterpret_cast<float2 *>(tile + (row + m * 8) * kRowFloats + column + n * 8) =
            make_float2(accumulators[i], accumulators[i + 1]);
      }
    }
  }

  CUTLASS_DEVICE static cutlass::Array<float, kWideD> sum(const float *place) {
    cutlass::Array<float, kWideD> y;
    if constexpr (kSlices == 1) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kWideD; ++i) y[i] = place[i];
    } else {
      static_assert(kWideD % 4 == 0, "slices are read four floats at a time");
      y.clear();
      CUTLASS_PRAGMA_UNROLL
      for (int slice = 0; slice < kSlices; ++slice) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kWideD; i += 4) {
          const auto part = load_of_block(place + i, slice);
          CUTLASS_PRAGMA_UNROLL
          for (int j = 0; j < 4; ++j) y[i + j] += part[j];
        }
      }
    }
    return y;
  }

  CUTLASS_DEVICE static void run(Params const &params, SharedStorage &shared) {
    using Vector = cutlass::AlignedArray<Element, kWideD>;
    using Floats = cutlass::Array<float, kWideD>;
    cutlass::arch::launch_dependent_grids();
    cutlass::arch::wait_on_dependent_grids();
    const auto at = Swizzle{}.get_tile_offset(params.swizzle);
    if (at.m() >= params.tiles.m() || at.n() >= params.tiles.n()) return;

    const int thread = threadIdx.x;
    typename Mma::IteratorA iterator_x(params.iterator_x, params.problem, params.x, thread,
                                       {at.m() * Tile::kM, at.k() * Tile::kK});
    typename Mma::IteratorB iterator_w(params.iterator_w, params.problem, params.w, thread,
                                       {at.k() * Tile::kK, at.n() * Tile::kN});
    Mma mma(shared.main_loop, thread, cutlass::canonical_warp_idx_sync(), thread % 32);
    typename Mma::FragmentC accumulators;
    accumulators.clear();
    mma(params.iterations, accumulators, iterator_x, iterator_w, accumulators, params.iterations_per_channel);
    __syncthreads();
    store(accumulators, shared.tile);

    /* A thread stays in its columns. */
    constexpr int kAcross = Tile::kN / kWideD, kStep = kThreads / kAcross, kRows = Tile::kM / kSlices;
    static_assert(kThreads % kAcross == 0, "whole rows at a time");
    constexpr int kTimes = (kRows + kStep - 1) / kStep, kAtOnce = kTimes < 8 ? kTimes : 8;
    const int first = at.k() * kRows, column = thread % kAcross * kWideD, n = at.n() * Tile::kN + column;
    const bool inside = n < params.problem.K;
    Floats bias;
    bias.clear();
    if (inside && params.bias != nullptr) {
      bias =
          cutlass::NumericArrayConverter<float, Element, kWideD>{}(*reinterpret_cast<const Vector *>(params.bias + n));
    }
    if constexpr (kSlices == 1) {
      __syncthreads();
    } else {
      cute::cluster_arrive();
      cute::cluster_wait();
    }
    for (int start = thread / kAcross; start < kRows; start += kStep * kAtOnce) {
      Vector residual[kAtOnce];
      if constexpr (kResidual) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kAtOnce; ++i) {
          const int row = first + start + i * kStep, m = at.m() * Tile::kM + row;
          if (inside && start + i * kStep < kRows && m < params.rows) {
            residual[i] = *reinterpret_cast<const Vector *>(params.residual + int64_t(m) * params.problem.K + n);
          }
        }
      }
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < kAtOnce; ++i) {
        const int row = first + start + i * kStep, m = at.m() * Tile::kM + row;
        if (inside && start + i * kStep < kRows && m < params.rows) {
          Floats y = sum(shared.tile + row * kRowFloats + column);
          y = cutlass::plus<Floats>{}(y, bias);
          if constexpr (kResidual) {
            y = cutlass::plus<Floats>{}(y, cutlass::NumericArrayConverter<float, Element, kWideD>{}(residual[i]));
          }
          y = Activation<Floats>{}(y);
          const cutlass::Array<Element, kWideD> rounded = cutlass::NumericArrayConverter<Element, float, kWideD>{}(y);
          *reinterpret_cast<Vector *>(params.y + int64_t(m) * params.problem.K + n) =
              *reinterpret_cast<const Vector *>(&rounded);
        }
      }
    }
    if constexpr (kSlices > 1) {
      cute::cluster_arrive();
      cute::cluster_wait();
    }
  }
#else
  static int32_t fill(const pk_conv_t &conv, void *arguments, pk_cuda_launch_t *launch) {
    if (!takes(conv, sizeof(Element), kWide, kWideD, kResidual)) return -1;
    const int batch = conv.batch, height = conv.height, width = conv.width, channels = conv.channels;
    const int filters = conv.filters, out_height = conv.out_height, out_width = conv.out_width;
    const int window[2] = {int(conv.window[0]), int(conv.window[1])};
    const cutlass::conv::Conv2dProblemSize problem(batch, height, width, channels, filters, window[0], window[1],
                                                   out_height, out_width, conv.padding[0], conv.padding[1],
                                                   conv.stride[0], conv.stride[1], conv.dilation[0], conv.dilation[1],
                                                   cutlass::conv::Mode::kCrossCorrelation, kSlices, 1);
    if (Mma::IteratorA::can_implement(problem) != cutlass::Status::kSuccess) return -1;
    if (Mma::IteratorB::can_implement(problem) != cutlass::Status::kSuccess) return -1;
    const auto layout_x = Layout::packed({batch, height, width, channels});
    const auto layout_w = Layout::packed({filters, window[0], window[1], channels});
    constexpr auto kOperator = cutlass::conv::Operator::kFprop;
    const auto size = cutlass::conv::implicit_gemm_problem_size(kOperator, problem);
    const auto tiles = Swizzle::get_tiled_shape(size, {Tile::kM, Tile::kN, Tile::kK}, kSlices);
    const Params params{
        problem,
        tiles,
        Swizzle::get_log_tile(tiles),
        cutlass::conv::implicit_gemm_k_iterations(kOperator, Tile::kK, problem, kAlgorithm),
        cutlass::conv::implicit_gemm_k_iterations_per_channel(kOperator, problem, kAlgorithm),
        size.m(),
        Mma::IteratorA::getParams(problem, layout_x),
        typename Mma::IteratorB::Params(problem, layout_w),
        static_cast<const Element *>(conv.x),
        static_cast<const Element *>(conv.w),
        static_cast<const Element *>(conv.bias),
        static_cast<const Element *>(conv.residual),
        static_cast<Element *>(conv.y),
    };
    const dim3 grid = Swizzle::get_grid_shape(tiles);
    if (grid.y > UINT16_MAX || grid.z > UINT16_MAX) return -1;
    memcpy(arguments, &params, sizeof params);
    *launch = {{grid.x, grid.y, grid.z}, {kThreads, 1, 1}, sizeof(SharedStorage), PK_CUDA_PROGRAMMATIC};
    return 0;
  }
#endif
};

}  // namespace pk
