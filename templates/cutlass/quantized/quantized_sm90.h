/* The epilogue of quantized kernels for sm_90a: what quantized.h says of sums, as a tree of CUTLASS's visitors. */
#pragma once

#include "quantized.h"
//
#include "cute/tensor.hpp"
//
#include "cutlass/cutlass.h"
#include "cutlass/epilogue/collective/collective_builder.hpp"
#include "cutlass/epilogue/fusion/operations.hpp"
#include "cutlass/epilogue/thread/activation.h"
#include "cutlass/functional.h"
#include "cutlass/numeric_types.h"
//
#include "activations.h"
#include "rounding.h"

namespace pk {

/* `ElementC` is void where no residual is read. A swapped kernel solves the transposed problem: columns are its rows.
 */
template <class Tile, bool kSwapped, class Accumulator, class ElementC, class ElementD,
          template <class> class Activation>
struct Quantized {
  template <class Node, class... Children>
  using Tree = cutlass::epilogue::fusion::Sm90EVT<Node, Children...>;
  template <template <class> class Function, class Result, class Number = float>
  using Apply =
      cutlass::epilogue::fusion::Sm90Compute<Function, Result, Number, cutlass::FloatRoundStyle::round_to_nearest>;
  template <class T>
  using Vector = cute::conditional_t<kSwapped, cutlass::epilogue::fusion::Sm90ColBroadcast<0, Tile, T>,
                                     cutlass::epilogue::fusion::Sm90RowBroadcast<0, Tile, T>>;
  using Scalar = cutlass::epilogue::fusion::Sm90ScalarBroadcast<float>;
  using Sum = cutlass::epilogue::fusion::Sm90AccFetch;

  static constexpr bool kInteger = cute::is_same_v<Accumulator, int32_t>;
  static constexpr bool kIsSum = cute::is_same_v<ElementD, int32_t>;
  static constexpr bool kResidual = !cute::is_void_v<ElementC>;
  using Shifted =
      cute::conditional_t<kInteger, Tree<Apply<cutlass::plus, int32_t, int32_t>, Sum, Vector<int32_t>>, Sum>;
  using Scaled = Tree<Apply<cutlass::homogeneous_multiply_add, float>, Vector<float>, Shifted, Vector<float>>;
  using Residual = cutlass::epilogue::fusion::Sm90SrcFetch<ElementC>;
  using Added =
      cute::conditional_t<kResidual, Tree<Apply<cutlass::homogeneous_multiply_add, float>, Scalar, Residual, Scaled>,
                          Scaled>;
  using Activated = Tree<Apply<Activation, cute::conditional_t<kIsRounded<ElementD>, float, ElementD>>, Added>;
  template <class T>
  using Round = cute::conditional_t<cutlass::platform::is_integral<ElementD>::value, to_integer<T>, to_float8<T>>;
  using Result = cute::conditional_t<kIsRounded<ElementD>, Tree<Apply<Round, ElementD>, Activated>, Activated>;
  using Callbacks = cute::conditional_t<kIsSum, Shifted, Result>;

#ifdef PK_HOST
  static typename Shifted::Arguments shifted(const pk_scales_t &scales) {
    if constexpr (kInteger) {
      return {{}, {scales.offset, scales.offset_of_all, {}}, {}};
    } else {
      return {};
    }
  }

  static typename Added::Arguments added(const pk_scales_t &scales) {
    const typename Scaled::Arguments scaled{
        {scales.scale, scales.scale_of_all, {}}, shifted(scales), {scales.bias, scales.bias_of_all, {}}, {}};
    if constexpr (kResidual) {
      return {{{scales.beta}, {nullptr}, {}}, {}, scaled, {}};
    } else {
      return scaled;
    }
  }

  static typename Callbacks::Arguments arguments(const pk_scales_t &scales) {
    if constexpr (kIsSum) {
      return shifted(scales);
    } else if constexpr (kIsRounded<ElementD>) {
      return {{added(scales), {}}, rounding(scales)};
    } else {
      return {added(scales), {}};
    }
  }
#endif
};

}  // namespace pk
