/* Convolution for sm_90a: CUTLASS's collective that loads windows by TMA (im2col), run by the kernels of its GEMMs.
 * CUTLASS itself lets it run in blocks of one tile each only; as a collective of GEMMs it gets the persistent kernels,
 * which load and multiply one tile while they write another, and their epilogues: y is a matrix of rows. */
#pragma once

#include "problems.h"
//
#ifdef PK_HOST
#include <string.h>
/* Where the driver refuses a window, CUTLASS goes on with what was on the stack. `encoded` finds zeros. */
template <class... Arguments>
inline CUresult pk_encode_window(CUtensorMap *map, Arguments... arguments) {
  const CUresult result = pk_encode_im2col(map, arguments...);
  if (result != CUDA_SUCCESS) memset(map, 0, sizeof *map);
  return result;
}
#undef cuTensorMapEncodeIm2col
#define cuTensorMapEncodeIm2col pk_encode_window
#endif
#include "cute/tensor.hpp"
//
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/epilogue/fusion/operations.hpp"
#include "cutlass/epilogue/thread/activation.h"
#include "cutlass/gemm/collective/collective_builder.hpp"
#include "cutlass/gemm/dispatch_policy.hpp"
#include "cutlass/gemm/kernel/gemm_universal.hpp"
#include "cutlass/numeric_types.h"
// These include too little themselves.
#include "cutlass/conv/collective/collective_builder.hpp"
#include "cutlass/conv/convnd_problem_shape.hpp"
#include "cutlass/conv/dispatch_policy.hpp"
//
#include "activations.h"
#include "conv.h"

namespace pk {
using namespace cute;

using ConvShape = cutlass::conv::ConvProblemShape<cutlass::conv::Operator::kFprop, 2>;
/* Rows of y, filters, (channels, window's width, window's height), one matrix. */
using MatrixShape = Shape<int, int, Shape<int, int, int>, int>;

/* The collective as CUTLASS builds it, but for the schedule. `Tile` is (M, N, (K)): a step takes K channels of one
 * place in the window. */
template <class Element, class Weight, class Accumulator, class Tile, class Cluster, class Stages, class Schedule>
struct Im2col {
  using Tensor = cutlass::layout::TensorNHWC;
  static constexpr auto kOperator = cutlass::conv::Operator::kFprop;
  static constexpr int kWide = 16 / sizeof(Element);
  using Built = typename cutlass::conv::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, kOperator, Element, Tensor, kWide, Weight, Tensor, kWide,
      Accumulator, Tile, Cluster, Stages, cutlass::conv::KernelImplicitTmaWarpSpecializedSm90>::CollectiveOp;
  /* Two warp groups of a cooperative kernel have a half of the tile's rows each. */
  static constexpr bool kHalves = is_base_of_v<cutlass::gemm::KernelTmaWarpSpecializedCooperative, Schedule>;
  using Groups = cute::Layout<Shape<conditional_t<kHalves, _2, _1>, _1, _1>>;
  using TiledMma = decltype(make_tiled_mma(typename Built::TiledMma::Atom{}, Groups{}));
  using Collective =
      cutlass::conv::collective::CollectiveConv<cutlass::conv::MainloopSm90TmaGmmaWarpSpecializedImplicitGemm<
                                                    kOperator, Built::DispatchPolicy::Stages, 2, Cluster, Schedule>,
                                                Tile, Element, Weight, TiledMma,
                                                cutlass::conv::collective::detail::Sm90ImplicitGemmTileTraits<
                                                    typename Built::GmemTiledCopyA, typename Built::SmemLayoutA>,
                                                cutlass::conv::collective::detail::Sm90ImplicitGemmTileTraits<
                                                    typename Built::GmemTiledCopyB, typename Built::SmemLayoutB>>;
};

/* The same with the interface of a GEMM's collective. */
template <class Element, class Weight, class Accumulator, class Tile, class Cluster, class Stages, class Schedule>
struct Windows : Im2col<Element, Weight, Accumulator, Tile, Cluster, Stages, Schedule>::Collective {
  using Base = typename Im2col<Element, Weight, Accumulator, Tile, Cluster, Stages, Schedule>::Collective;
  using typename Base::Params;
  /* GEMM kernels look at their rank only. */
  using StrideA = cute::Stride<int64_t, _1, int64_t>;
  using StrideB = cute::Stride<int64_t, _1, int64_t>;
  static constexpr uint32_t NumProducerThreadEvents = 1;

  struct Arguments {
    ConvShape shape;
    const Element *x;
    const Weight *w;
  };

  static Params to_underlying_arguments(MatrixShape const &, Arguments const &arguments, void *workspace) {
    return Base::to_underlying_arguments(arguments.shape, {arguments.x, arguments.w}, workspace);
  }

  static bool can_implement(MatrixShape const &, Arguments const &arguments) {
    return Base::can_implement(arguments.shape, {arguments.x, arguments.w});
  }

  /* Kernels ask the second tensor for the number of matrices. The third is the one that is loaded from. */
  CUTLASS_DEVICE auto load_init(MatrixShape const &shape, Params const &params) {
    auto [x, w] = Base::load_init(shape, params);
    return cute::make_tuple(x, make_tensor(w.data(), append<5>(w.layout(), cute::Layout<_1, _0>{})), w);
  }

  template <class X, class OneW, class W, class Steps, class Coord>
  CUTLASS_DEVICE void load(Params const &params, typename Base::MainloopPipeline pipeline,
                           typename Base::PipelineState state, cute::tuple<X, OneW, W> const &inputs,
                           Coord const &coord, Steps steps, int count, int thread, uint32_t block,
                           typename Base::TensorStorage &shared) {
    Base::load(params, pipeline, state, cute::make_tuple(get<0>(inputs), get<2>(inputs)), coord, steps, count, thread,
               block, shared);
  }
};

/* The same for groups: a tile of filters reads the part of the channels that theirs have. */
template <class Element, class Weight, class Accumulator, class Tile, class Cluster, class Stages, class Schedule>
struct GroupedWindows : Windows<Element, Weight, Accumulator, Tile, Cluster, Stages, Schedule> {
  static_assert(size<1>(Cluster{}) == 1, "tiles of other filters read other channels");
  using Ungrouped = Windows<Element, Weight, Accumulator, Tile, Cluster, Stages, Schedule>;
  struct Params : Ungrouped::Params {
    int channels, filters;  // of a group
  };
  struct Arguments : Ungrouped::Arguments {
    int channels, filters;
  };

  static Params to_underlying_arguments(MatrixShape const &shape, Arguments const &arguments, void *workspace) {
    return {Ungrouped::to_underlying_arguments(shape, arguments, workspace), arguments.channels, arguments.filters};
  }

  /* The first tensor says how many steps there are: TMA's own is of all channels. */
  CUTLASS_DEVICE auto load_init(MatrixShape const &problem, Params const &params) {
    auto [x, one_w, w] = Ungrouped::load_init(problem, params);
    const int steps = ceil_div(get<0>(get<2>(problem)), int(size<2>(Tile{})));
    auto tiles = x.layout().layout_b();  // of rows, of channels and places in the window
    auto extents = replace<3>(tiles.shape(), replace<0>(shape<3>(tiles), steps));
    auto part = make_composed_layout(x.layout().layout_a(), x.layout().offset(), make_layout(extents, tiles.stride()));
    return cute::make_tuple(make_tensor(x.data(), part), one_w, w);
  }

  template <class X, class OneW, class W, class Steps, class Coord>
  CUTLASS_DEVICE void load(Params const &params, typename Ungrouped::MainloopPipeline pipeline,
                           typename Ungrouped::PipelineState state, cute::tuple<X, OneW, W> const &inputs,
                           Coord const &coord, Steps steps, int count, int thread, uint32_t block,
                           typename Ungrouped::TensorStorage &shared) {
    const int group = int(get<1>(coord)) * int(size<1>(Tile{})) / params.filters;
    const auto place = get<0>(inputs).data().coord_;  // channel, (column, row), image, ...
    auto moved = as_arithmetic_tuple(replace<0>(place, get<0>(place) + group * params.channels));
    auto x = make_tensor(ArithmeticTupleIterator(moved), get<0>(inputs).layout());
    Ungrouped::load(params, pipeline, state, cute::make_tuple(x, get<1>(inputs), get<2>(inputs)), coord, steps, count,
                    thread, block, shared);
  }
};

#ifdef PK_HOST
/* Whether a problem can be solved by rows of its window, and makes it so: what lies in one row of the window, all its
 * columns' channels, is contiguous. It becomes the channels of a pixel, and neighboring pixels overlap. That needs
 * columns without padding, and pixels and rows that start at multiples of 16 bytes. */
inline bool make_rows(pk_conv_t &conv, int64_t size) {
  if (conv.padding[1] != 0 || conv.dilation[1] != 1 || covered(conv, 1) > conv.width) return false;
  if (conv.stride[1] * conv.channels * size % 16 || conv.width * conv.channels * size % 16) return false;
  conv.channels *= conv.window[1];
  conv.width = conv.out_width;
  conv.window[1] = conv.stride[1] = 1;
  return true;
}

/* `thread` is what the epilogue computes with. */
template <class Kernel, class Element, class Weight, class ElementD, bool kResidual, bool kRows, bool kGroups, class Thread>
int32_t fill(const pk_cuda_device_t &device, const pk_conv_t &problem, const Thread &thread, void *arguments,
             pk_cuda_launch_t *launch) {
  constexpr int kWide = 16 / sizeof(Element);
  pk_conv_t conv = problem;
  if (kGroups != (conv.groups != 0)) return -1;
  if (!takes(conv, sizeof(Element), kRows ? 1 : kWide, kWide, kResidual)) return -1;
  if (kRows && (!make_rows(conv, sizeof(Element)) || !takes(conv, sizeof(Element), kWide, kWide, kResidual))) return -1;
  const int batch = conv.batch, height = conv.height, width = conv.width, channels = conv.channels;
  const int filters = conv.filters, rows = conv.batch * conv.out_height * conv.out_width;
  const int part = kGroups ? conv.part : channels;
  const int window[2] = {int(conv.window[0]), int(conv.window[1])};
  using Extents = ConvShape::TensorExtent;
  using Pair = ConvShape::SpatialExtent;
  using Strides = ConvShape::TensorStride;
  const Extents extents_w{filters, window[0], window[1], part};
  const int64_t pixel = problem.channels * (kRows ? problem.stride[1] : 1), row = problem.width * problem.channels;
  const ConvShape shape(
      cutlass::conv::Mode::kCrossCorrelation, Extents{batch, height, width, channels},
      Strides{height * row, row, pixel, 1}, extents_w, ConvShape::packed_stride_right_major(extents_w),
      Pair{int(conv.padding[0]), int(conv.padding[1])}, Pair{int(end_padding(conv, 0)), int(end_padding(conv, 1))},
      Pair{int(conv.stride[0]), int(conv.stride[1])}, Pair{int(conv.dilation[0]), int(conv.dilation[1])}, 1);
  /* The padding says where TMA ends. Fewer places than fit would not be where it thinks they are. */
  if (shape.shape_C[1] != conv.out_height || shape.shape_C[2] != conv.out_width) return -1;
  typename Kernel::Arguments args{};
  args.mode = cutlass::gemm::GemmUniversalMode::kGemm;
  args.problem_shape = {rows, filters, {part, window[1], window[0]}, 1};
  args.mainloop.shape = shape;
  args.mainloop.x = static_cast<const Element *>(conv.x), args.mainloop.w = static_cast<const Weight *>(conv.w);
  if constexpr (kGroups) {
    args.mainloop.channels = int(conv.channels / conv.groups), args.mainloop.filters = int(filters / conv.groups);
  }
  if constexpr (kResidual) {
    args.epilogue.ptr_C = static_cast<const ElementD *>(conv.residual);
    args.epilogue.dC = {filters, {}, 0};
  }
  args.epilogue.ptr_D = static_cast<ElementD *>(conv.y);
  args.epilogue.dD = {filters, {}, 0};
  args.epilogue.thread = thread;
  args.hw_info.sm_count = device.num_sms;
  if (!Kernel::can_implement(args)) return -1;
  const typename Kernel::Params params = Kernel::to_underlying_arguments(args, nullptr);
  if (!encoded(params.mainloop.tma_load_a.get_tma_descriptor())) return -1;
  if (!encoded(params.mainloop.tma_load_b.get_tma_descriptor())) return -1;
  if constexpr (kResidual) {
    if (!encoded(params.epilogue.tma_load_c.get_tma_descriptor())) return -1;
  }
  if (!encoded(params.epilogue.tma_store_d.get_tma_descriptor())) return -1;
  memcpy(arguments, &params, sizeof params);
  const dim3 grid = Kernel::get_grid_shape(params), block = Kernel::get_block_shape();
  *launch = {{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, Kernel::SharedStorageSize, PK_CUDA_PROGRAMMATIC};
  return 0;
}
#endif

}  // namespace pk
