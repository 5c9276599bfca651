/* An epilogue of gated products (GLU, arXiv:2002.05202): d = act(g) * u, where g and u are the halves of the columns of
 * alpha * a b + bias.
 *
 * The rows of b are interleaved: of each sixteen columns of the product the first eight are gates of the others. So a
 * thread's accumulators, which are two columns of each eight, hold both factors of an element of d, and the products lie
 * as those of a tile of half as many columns would. */
#pragma once

#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"

namespace pk {

/* A shape of rows and columns and others, with half as many columns. */
template <class Shape>
CUTLASS_HOST_DEVICE constexpr auto halved(Shape const &shape) {
  return cute::replace<1>(shape, cute::get<1>(shape) / cute::Int<2>{});
}

/* The matrix instructions of a tile of half as many columns. */
template <class Mma, class Element, class Tile>
using HalfMma = decltype(cute::make_tiled_mma(
    cute::GMMA::ss_op_selector<Element, Element, float, decltype(halved(Tile{})), cute::GMMA::Major::K,
                               cute::GMMA::Major::K>(),
    cute::Layout<cute::Shape<decltype(cute::size<1>(typename Mma::ThrLayoutVMNK{})), cute::_1, cute::_1>>{}));

/* `Base` is the epilogue of d. */
template <class Base, class Half, template <class> class Activation>
struct GatedEpilogue : Base {
  using Bias = typename Base::ElementD;

  struct Arguments : Base::Arguments {
    Bias const *bias; /* of the columns of the product; or NULL */
    float alpha;
  };
  struct Params : Base::Params {
    Bias const *bias;
    float alpha;
  };

  template <class Problem>
  static Params to_underlying_arguments(Problem const &problem, Arguments const &arguments, void *workspace) {
    return {Base::to_underlying_arguments(halved(problem), arguments, workspace), arguments.bias, arguments.alpha};
  }
  template <class Problem>
  static bool can_implement(Problem const &problem, Arguments const &arguments) {
    return Base::can_implement(halved(problem), arguments);
  }
  template <class Tile>
  CUTLASS_HOST_DEVICE static constexpr int get_load_pipe_increment(Tile tile) {
    return Base::get_load_pipe_increment(halved(tile));
  }
  template <class Tile>
  CUTLASS_HOST_DEVICE static constexpr int get_store_pipe_increment(Tile tile) {
    return Base::get_store_pipe_increment(halved(tile));
  }

  CUTLASS_DEVICE GatedEpilogue(Params const &params, typename Base::TensorStorage &storage)
      : Base(params, storage), params_(params) {}

  template <class LoadPipeline, class LoadState, class StorePipeline, class StoreState, class Problem, class Tile,
            class Block, class Accumulators, class Mma, class... Rest>
  CUTLASS_DEVICE auto store(LoadPipeline load_pipeline, LoadState load_state, StorePipeline store_pipeline,
                            StoreState store_state, Problem problem, Tile tile, Block block,
                            Accumulators const &accumulators, Mma mma, int thread, Rest &&...rest) {
    using namespace cute;
    auto products = partition_fragment_C(Half{}, take<0, 2>(halved(Tile{})));
    const auto places = mma.get_slice(thread).partition_C(make_identity_tensor(take<0, 2>(tile)));
    constexpr int kRows = decltype(size<1>(products))::value, kEights = decltype(size<0, 2>(products))::value;
    static_assert(decltype(size<2>(products))::value == 1 && decltype(size<2>(accumulators))::value == 1,
                  "one instruction for all columns");
    const int first = int(get<1>(block)) * size<1>(tile), columns = get<1>(problem);
    const Activation<float> activate;
    CUTLASS_PRAGMA_UNROLL
    for (int eight = 0; eight < kEights; eight++) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < 2; i++) {
        float gate_bias = 0, bias = 0;
        if (params_.bias) {
          const int column = first + int(get<1>(places(make_coord(i, 0, 2 * eight), 0, 0)));
          if (column < columns) {
            gate_bias = float(params_.bias[column]);
            bias = float(params_.bias[column + 8]);
          }
        }
        CUTLASS_PRAGMA_UNROLL
        for (int row = 0; row < 2 * kRows; row++) {
          const auto at = [&](int of) { return make_coord(make_coord(i, row % 2, of), row / 2, 0); };
          const float gate = params_.alpha * accumulators(at(2 * eight)) + gate_bias;
          const float factor = params_.alpha * accumulators(at(2 * eight + 1)) + bias;
          products(at(eight)) = activate(gate) * factor;
        }
      }
    }
    return Base::store(load_pipeline, load_state, store_pipeline, store_state, halved(problem), halved(tile), block,
                       products, Half{}, thread, static_cast<Rest &&>(rest)...);
  }

 private:
  Params const &params_;
};

}  // namespace pk
