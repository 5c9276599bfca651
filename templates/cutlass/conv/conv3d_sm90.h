/* 3-D convolution for sm_90a: conv_sm90.h with one more axis of the image and of the window. */
#pragma once

#include "conv3d_problem.h"
#include "conv_sm90.h"

namespace pk {

using VolumeShape = cutlass::conv::ConvProblemShape<cutlass::conv::Operator::kFprop, 3>;
/* Rows of y, filters, (channels, window's width, height, depth), one matrix. */
using VolumeMatrixShape = Shape<int, int, Shape<int, int, int, int>, int>;

/* As Im2col of 2-D convolutions. */
template <class Element, class Tile, class Cluster, class Stages, class Schedule>
struct VolumeIm2col {
  using Tensor = cutlass::layout::TensorNDHWC;
  static constexpr auto kOperator = cutlass::conv::Operator::kFprop;
  static constexpr int kWide = 16 / sizeof(Element);
  using Built = typename cutlass::conv::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, kOperator, Element, Tensor, kWide, Element, Tensor, kWide,
      float, Tile, Cluster, Stages, cutlass::conv::KernelImplicitTmaWarpSpecializedSm90>::CollectiveOp;
  static constexpr bool kHalves = is_base_of_v<cutlass::gemm::KernelTmaWarpSpecializedCooperative, Schedule>;
  using Groups = cute::Layout<Shape<conditional_t<kHalves, _2, _1>, _1, _1>>;
  using TiledMma = decltype(make_tiled_mma(typename Built::TiledMma::Atom{}, Groups{}));
  using Collective =
      cutlass::conv::collective::CollectiveConv<cutlass::conv::MainloopSm90TmaGmmaWarpSpecializedImplicitGemm<
                                                    kOperator, Built::DispatchPolicy::Stages, 3, Cluster, Schedule>,
                                                Tile, Element, Element, TiledMma,
                                                cutlass::conv::collective::detail::Sm90ImplicitGemmTileTraits<
                                                    typename Built::GmemTiledCopyA, typename Built::SmemLayoutA>,
                                                cutlass::conv::collective::detail::Sm90ImplicitGemmTileTraits<
                                                    typename Built::GmemTiledCopyB, typename Built::SmemLayoutB>>;
};

/* The same with the interface of a GEMM's collective, as Windows. */
template <class Element, class Tile, class Cluster, class Stages, class Schedule>
struct VolumeWindows : VolumeIm2col<Element, Tile, Cluster, Stages, Schedule>::Collective {
  using Base = typename VolumeIm2col<Element, Tile, Cluster, Stages, Schedule>::Collective;
  using typename Base::Params;
  using StrideA = cute::Stride<int64_t, _1, int64_t>;
  using StrideB = cute::Stride<int64_t, _1, int64_t>;
  static constexpr uint32_t NumProducerThreadEvents = 1;

  struct Arguments {
    VolumeShape shape;
    const Element *x, *w;
  };

  static Params to_underlying_arguments(VolumeMatrixShape const &, Arguments const &arguments, void *workspace) {
    return Base::to_underlying_arguments(arguments.shape, {arguments.x, arguments.w}, workspace);
  }

  static bool can_implement(VolumeMatrixShape const &, Arguments const &arguments) {
    return Base::can_implement(arguments.shape, {arguments.x, arguments.w});
  }

  CUTLASS_DEVICE auto load_init(VolumeMatrixShape const &shape, Params const &params) {
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

#ifdef PK_HOST
/* How far a window reaches along an axis of the padded image, over all its places. */
inline int64_t covered(const pk_conv3d_t &conv, int axis) {
  return (conv.result[axis] - 1) * conv.stride[axis] + (conv.window[axis] - 1) * conv.dilation[axis] + 1;
}

/* Whether a kernel that accesses `wide` elements at a time may take the problem. */
inline bool takes(const pk_conv3d_t &conv, int64_t size, int64_t wide, bool residual) {
  double x = double(conv.batch) * conv.channels, w = double(conv.filters) * conv.channels;
  double y = double(conv.batch) * conv.filters;
  if (conv.batch < 1 || conv.channels < 1 || conv.filters < 1) return false;
  if (conv.channels % wide || conv.filters % wide) return false;
  for (int axis = 0; axis < 3; ++axis) {
    for (const int64_t extent :
         {conv.image[axis], conv.result[axis], conv.window[axis], conv.stride[axis], conv.dilation[axis]}) {
      if (extent < 1 || extent > INT32_MAX) return false;
    }
    if (conv.padding[axis] < 0 || conv.padding[axis] > INT16_MAX || conv.stride[axis] > 8) return false;
    if (conv.dilation[axis] > INT16_MAX || conv.window[axis] > INT16_MAX) return false;
    if (covered(conv, axis) > INT32_MAX) return false;
    x *= conv.image[axis], w *= conv.window[axis], y *= conv.result[axis];
  }
  if (std::max({x, w, y}) > INT32_MAX) return false;
  if (!conv.x || !conv.w || !conv.y || residual != (conv.residual != nullptr)) return false;
  for (const void *pointer : {conv.x, conv.w, conv.bias, conv.residual, static_cast<const void *>(conv.y)}) {
    if (reinterpret_cast<uintptr_t>(pointer) % (size * wide)) return false;
  }
  return true;
}

inline VolumeShape volume_shape(const pk_conv3d_t &conv) {
  VolumeShape::TensorExtent x{int(conv.batch)}, w{int(conv.filters)};
  VolumeShape::SpatialExtent padding{}, end{}, stride{}, dilation{};
  for (int axis = 0; axis < 3; ++axis) {
    x[1 + axis] = int(conv.image[axis]), w[1 + axis] = int(conv.window[axis]);
    padding[axis] = int(conv.padding[axis]), stride[axis] = int(conv.stride[axis]);
    dilation[axis] = int(conv.dilation[axis]);
    end[axis] = int(std::max<int64_t>(0, covered(conv, axis) - conv.image[axis] - conv.padding[axis]));
  }
  x[4] = w[4] = int(conv.channels);
  return VolumeShape(cutlass::conv::Mode::kCrossCorrelation, x, VolumeShape::packed_stride_right_major(x), w,
                     VolumeShape::packed_stride_right_major(w), padding, end, stride, dilation, 1);
}

/* `thread` is what the epilogue computes with. */
template <class Kernel, class Element, bool kResidual, class Thread>
int32_t fill_volume(const pk_cuda_device_t &device, const pk_conv3d_t &conv, const Thread &thread, void *arguments,
                    pk_cuda_launch_t *launch) {
  if (!takes(conv, sizeof(Element), 16 / sizeof(Element), kResidual)) return -1;
  const VolumeShape shape = volume_shape(conv);
  /* The padding says where TMA ends. Fewer places than fit would not be where it thinks they are. */
  for (int axis = 0; axis < 3; ++axis) {
    if (shape.shape_C[1 + axis] != conv.result[axis]) return -1;
  }
  const int filters = int(conv.filters), rows = int(conv.batch * conv.result[0] * conv.result[1] * conv.result[2]);
  typename Kernel::Arguments args{};
  args.mode = cutlass::gemm::GemmUniversalMode::kGemm;
  args.problem_shape = {
      rows, filters, {int(conv.channels), int(conv.window[2]), int(conv.window[1]), int(conv.window[0])}, 1};
  args.mainloop.shape = shape;
  args.mainloop.x = static_cast<const Element *>(conv.x), args.mainloop.w = static_cast<const Element *>(conv.w);
  if constexpr (kResidual) {
    args.epilogue.ptr_C = static_cast<const Element *>(conv.residual);
    args.epilogue.dC = {filters, {}, 0};
  }
  args.epilogue.ptr_D = static_cast<Element *>(conv.y);
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
