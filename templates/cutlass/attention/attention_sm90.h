/* Attention for sm_90a: the collectives of CUTLASS's example 88, given what its problems lack. The example knows one
 * number of keys, the scale 1 / sqrt(depth), and keys and values for each head. Here each batch may have fewer keys, a
 * group of heads has one of keys and values, scores are capped and take a bias, the scale is the problem's, sizes are no
 * multiples of tiles, and the kernel waits itself for the kernels before it. */
#pragma once

#include "problems.h"
//
#include "cute/tensor.hpp"
#include "cutlass/arch/grid_dependency_control.h"
#ifdef PK_HOST  // functions of the device that the example's templates name; never called
float max(float, float);
float __frcp_rn(float);
float __logf(float);
int __any_sync(unsigned, int);
unsigned __byte_perm(unsigned, unsigned, unsigned);
__half __hmax_nan(__half, __half);
#endif
#include "attention_loads.h"
#include "attention_scores.h"
#include "kernel/fmha_kernel_builder.hpp"
//
#include "gemm.h"

namespace pk {
using namespace cute;

// A collective that takes what ours take beside its own.
template <class Base, Bias kBias>
struct Attention : Base {
  using Element = typename Base::Element;

  struct Arguments : Base::Arguments {
    const int32_t *lengths;
    const float *sinks;
    const Element *bias;
    int64_t bias_strides[3];
    float scale, softcap;
    int group;
  };

  struct Params : Base::Params {
    const int32_t *lengths;
    const float *sinks;
    const Element *bias;
    int64_t bias_strides[3];
    float inverse_scale, softcap;
    bool pairs;
    int group;
  };

  template <class Size>
  static Params to_underlying_arguments(Size const &size, Arguments const &args, void *workspace) {
    // The base's own function would do, but for a square root that brings the library of mathematics.
    using Scored = typename Base::CollectiveMmaQK;
    using Summed = typename Base::CollectiveMmaPV;
    const auto scored = make_shape(get<2>(size), get<3>(size), get<4>(size), take<0, 2>(size));
    const auto summed = make_shape(get<2>(size), get<4>(size), get<3>(size), take<0, 2>(size));
    const auto q_and_k = Scored::to_underlying_arguments(scored, {args.ptr_Q, args.dQ, args.ptr_K, args.dK}, workspace);
    // The first operand lies in registers.
    const auto v =
        Summed::to_underlying_arguments(summed, {args.ptr_K, args.dK, args.ptr_V, select<1, 0, 2>(args.dV)}, workspace);

    Params params{};
    params.tma_load_q = q_and_k.tma_load_a;
    params.tma_load_k = q_and_k.tma_load_b;
    params.tma_load_v = v.tma_load_b;
    params.rp_dropout = 1.0f;
    constexpr float kLog2e = 1.4426950408889634f;
    params.scale_softmax = args.scale;
    params.scale_softmax_log2 = args.scale * kLog2e;
    params.inverse_scale = 1.0f / args.scale;
    params.softcap = args.softcap;
    params.lengths = args.lengths;
    params.sinks = args.sinks;
    params.group = args.group;
    params.bias = args.bias;
    uint64_t places = reinterpret_cast<uintptr_t>(args.bias) / sizeof(Element);
    for (int i = 0; i < 3; i++) places |= uint64_t(params.bias_strides[i] = args.bias_strides[i]);
    params.pairs = places % 2 == 0;
    return params;
  }

 protected:
  // The size of the problem that a block solves: its batch may have fewer keys.
  template <class Block, class Size>
  CUTLASS_DEVICE static auto size_of(Block const &block, Params const &params, Size const &size) {
    const int batch = get<2, 0>(block);
    int keys = get<3>(size);
    if (params.lengths != nullptr) keys = cute::min(keys, cute::max(params.lengths[batch], 0));
    Scores<Element> scores{nullptr, 0, params.inverse_scale, params.softcap, params.pairs, params.group};
    if constexpr (kBias != Bias::kNone) {
      const int head = get<2, 1>(block);
      scores.bias = params.bias + batch * params.bias_strides[0] + head * params.bias_strides[1];
      scores.row = params.bias_strides[2];
    }
    return make_tuple(get<0>(size), get<1>(size), get<2>(size), keys, get<4>(size), scores);
  }

  // Rows of a result and the logarithms of their sums, without the sink, which has no value.
  template <class Block, class Result>
  CUTLASS_DEVICE static Result with_sink(Block const &block, Params const &params, Result result) {
    if (params.sinks == nullptr) return result;
    const float sink = params.sinks[get<2, 1>(block)];
    auto &sums = get<0>(result);
    auto rows = make_tensor(sums.data(), cutlass::fmha::collective::layout_acc_mn(typename Base::TiledMmaPV{}, sums.layout()));
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < size<0>(rows); i++) {
      const float factor = 1.0f / (1.0f + cutlass::fast_exp(sink - get<1>(result)(i)));
      CUTLASS_PRAGMA_UNROLL
      for (int j = 0; j < size<1>(rows); j++) rows(i, j) *= factor;
    }
    return result;
  }

  // Before the first access to memory.
  CUTLASS_DEVICE static void wait() {
    cutlass::arch::launch_dependent_grids();
    cutlass::arch::wait_on_dependent_grids();
  }
};

template <class Base, Bias kBias>
struct AttentionTma : Attention<Base, kBias> {
  using Params = typename Attention<Base, kBias>::Params;

  template <class Block, class Size, class... Rest>
  CUTLASS_DEVICE auto compute(int rank, Block const &block, Params const &params, Size const &size, Rest &&...rest) {
    this->wait();
    return this->with_sink(block, params,
                           Base::compute(rank, block, params, this->size_of(block, params, size), rest...));
  }
};

template <class Base, Bias kBias>
struct AttentionWarpSpecialized : Attention<Base, kBias> {
  using Params = typename Attention<Base, kBias>::Params;

  template <bool kLoadQ, class Block, class Size, class... Rest>
  CUTLASS_DEVICE void load_kv_maybe_q(int rank, Block const &block, Params const &params, Size const &size,
                                      Rest &&...rest) {
    this->wait();
    Base::template load_kv_maybe_q<kLoadQ>(rank, block, params, this->size_of(block, params, size), rest...);
  }

  template <class Block, class Size, class... Rest>
  CUTLASS_DEVICE void load_maybe_q(Block const &block, Params const &params, Size const &size, Rest &&...rest) {
    this->wait();
    Base::load_maybe_q(block, params, size, rest...);
  }

  template <class Block, class Size, class... Rest>
  CUTLASS_DEVICE auto compute(Block const &block, Block const &group, Params const &params, Size const &size,
                              Rest &&...rest) {
    this->wait();
    return this->with_sink(block, params,
                           Base::compute(block, group, params, this->size_of(block, params, size), rest...));
  }
};

// The example's epilogue also stores the sums of exponentials, which are for training. It stores them of the rows that
// the size says; the tensor map alone says which rows of the output there are.
template <class Base>
struct Epilogue : Base {
  template <class Tile, class Block, class Result, class TiledMma, class Size, class... Rest>
  CUTLASS_DEVICE void operator()(Tile const &tile, Block const &block, Result const &result, TiledMma const &mma,
                                 Size const &size, Rest &&...rest) {
    Size no_rows = size;
    get<2>(no_rows) = 0;
    Base::operator()(tile, block, result, mma, no_rows, rest...);
  }
};

using Strides = cute::tuple<int, _1, cute::tuple<int, int>>;

template <class Element, class Tile, bool kCausal, Bias kBias, bool kCapped, class... Options>
struct Tma {
  using Base = cutlass::fmha::collective::FmhaMainloopTma<Element, float, Tile, Mask<kCausal, kBias, kCapped>, Options...>;
  using Output = cutlass::fmha::collective::FmhaFwdEpilogue<Element, float, typename Base::TileShapePV>;
  using Kernel = cutlass::fmha::kernel::FmhaKernelTma<AttentionTma<Base, kBias>, Epilogue<Output>, Options...>;
};

template <class Scheduler, class Element, class Tile, bool kCausal, Bias kBias, bool kCapped, class... Options>
struct WarpSpecialized {
  using Base = cutlass::fmha::collective::FmhaMainloopTmaWarpSpecialized<Element, float, float, Tile, Strides, Strides,
                                                                         Strides, Mask<kCausal, kBias, kCapped>, Options...>;
  using Output = cutlass::fmha::collective::FmhaFwdEpilogue<Element, float, typename Base::TileShapePV>;
  using Kernel = cutlass::fmha::kernel::FmhaKernelTmaWarpSpecialized<AttentionWarpSpecialized<Base, kBias>,
                                                                     Epilogue<Output>, Scheduler, Options...>;
};

template <class Element, class Tile, bool kCausal, Bias kBias, bool kCapped, class... Options>
using Cooperative =
    WarpSpecialized<cutlass::fmha::kernel::IndividualTileScheduler, Element, Tile, kCausal, kBias, kCapped, Options...>;

template <class Element, class Tile, bool kCausal, Bias kBias, bool kCapped, class... Options>
using Pingpong =
    WarpSpecialized<cutlass::fmha::kernel::PersistentTileScheduler, Element, Tile, kCausal, kBias, kCapped, Options...,
                    cutlass::fmha::kernel::Option<cutlass::fmha::kernel::Tag::kIsPersistent, cute::true_type>,
                    cutlass::fmha::kernel::Option<cutlass::fmha::kernel::Tag::kLoadsQSeparately, cute::true_type>>;

#ifdef PK_HOST
// Whether the tensor memory accelerator can read or write a tensor.
inline bool takes_tensor(const void *pointer, const int64_t (&strides)[3], size_t element) {
  bool takes = pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % 16 == 0;
  for (const int64_t stride : strides) takes &= stride >= 0 && stride <= INT32_MAX && stride * element % 16 == 0;
  return takes;
}

// A single batch or head has whatever stride tensor maps allow.
inline Strides strides_of(const int64_t (&strides)[3], int64_t batches, int64_t heads) {
  const int64_t batch = strides[batches == 1 ? 1 : 0], head = strides[heads == 1 ? 1 : 2];
  return make_stride(int(strides[1]), _1{}, make_stride(int(batch), int(head)));
}

template <class Copy>
bool is_encoded(Copy const &copy) {
  return encoded(copy.get_tma_descriptor());
}

template <class Kernel, class Element, Bias kBias, bool kCapped>
int32_t fill(const pk_cuda_device_t *device, const pk_attention_t &problem, void *arguments, pk_cuda_launch_t *launch) {
  *launch = {};
  if (problem.batch == 0 || problem.heads == 0 || problem.queries == 0) return 0;
  for (const int64_t extent : {problem.batch, problem.heads, problem.queries, problem.keys}) {
    if (extent < 1 || extent > INT32_MAX) return -1;
  }
  if (problem.group < 1 || problem.heads % problem.group != 0) return -1;
  const int64_t most = size<2>(typename Kernel::TileShape{}), shared_heads = problem.heads / problem.group;
  if (problem.depth != problem.value_depth || problem.depth % (16 / sizeof(Element)) != 0) return -1;
  if (problem.depth < 1 || problem.depth > most || !(problem.scale > kLeastScale)) return -1;
  if (!takes_tensor(problem.q, problem.q_strides, sizeof(Element))) return -1;
  if (!takes_tensor(problem.k, problem.k_strides, sizeof(Element))) return -1;
  if (!takes_tensor(problem.v, problem.v_strides, sizeof(Element))) return -1;
  if (!takes_tensor(problem.o, problem.o_strides, sizeof(Element))) return -1;
  if (kCapped ? !(problem.softcap > 0.0f) : problem.softcap != 0.0f) return -1;
  if ((problem.bias == nullptr) != (kBias == Bias::kNone)) return -1;
  if (kBias == Bias::kKeys && (problem.bias_strides[1] != 0 || problem.bias_strides[2] != 0)) return -1;

  typename Kernel::Arguments args{};
  args.problem_size = {int(problem.batch), int(problem.heads), int(problem.queries), int(problem.keys),
                       int(problem.depth)};
  args.mainloop.ptr_Q = static_cast<const Element *>(problem.q);
  args.mainloop.dQ = strides_of(problem.q_strides, problem.batch, problem.heads);
  args.mainloop.ptr_K = static_cast<const Element *>(problem.k);
  args.mainloop.dK = strides_of(problem.k_strides, problem.batch, shared_heads);
  args.mainloop.ptr_V = static_cast<const Element *>(problem.v);
  args.mainloop.dV = strides_of(problem.v_strides, problem.batch, shared_heads);
  args.mainloop.lengths = problem.lengths;
  args.mainloop.sinks = problem.sinks;
  args.mainloop.bias = static_cast<const Element *>(problem.bias);
  for (int i = 0; i < 3; i++) args.mainloop.bias_strides[i] = problem.bias_strides[i];
  args.mainloop.scale = problem.scale;
  args.mainloop.softcap = problem.softcap;
  args.mainloop.group = int(problem.group);
  args.epilogue.ptr_O = static_cast<Element *>(problem.o);
  args.epilogue.dO = strides_of(problem.o_strides, problem.batch, problem.heads);
  args.hw_info.sm_count = device->num_sms;

  const auto params = Kernel::to_underlying_arguments(args, nullptr);
  if (!is_encoded(params.mainloop.tma_load_q) || !is_encoded(params.mainloop.tma_load_k)) return -1;
  if (!is_encoded(params.mainloop.tma_load_v) || !is_encoded(params.epilogue.epilogue_TMA.tma_store_d)) return -1;
  const dim3 grid = Kernel::get_grid_shape(params), block = Kernel::get_block_shape();
  if (grid.y > 65535 || grid.z > 65535) return -1;
  *static_cast<typename Kernel::Params *>(arguments) = params;
  *launch = {{grid.x, grid.y, grid.z}, {block.x, block.y, block.z}, Kernel::SharedStorageSize, PK_CUDA_PROGRAMMATIC};
  return 0;
}
#endif

}  // namespace pk
