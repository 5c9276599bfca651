/* How results of 8 bits are made of floats, for the epilogues of quantized kernels. */
#pragma once

#include <math.h>
#include <stdint.h>

#include "cutlass/array.h"
#include "cutlass/cutlass.h"
#include "cutlass/numeric_types.h"
#include "quantized.h"

namespace pk {

/* As the last fields of pk_scales_t. */
struct Rounding {
  float gain, zero, low, high;
};

/* Half to even, as ONNX and torch round; the clip comes after the zero point. */
struct ScalarToInteger {
  CUTLASS_HOST_DEVICE static float apply(float x, Rounding const &to) {
    return fminf(fmaxf(rintf(x * to.gain) + to.zero, to.low), to.high);
  }
};

/* The conversion that follows rounds. A NaN stays one. */
struct ScalarToFloat8 {
  CUTLASS_HOST_DEVICE static float apply(float x, Rounding const &to) {
    const float y = x * to.gain;
    return y < to.low ? to.low : y > to.high ? to.high : y;
  }
};

/* Makes of them what CUTLASS's epilogues take: functors with arguments. */
template <class Scalar, class T>
struct Rounded {
  using Arguments = Rounding;
  CUTLASS_HOST_DEVICE T operator()(T const &x, Rounding const &to) const { return Scalar::apply(x, to); }
};
template <class Scalar, class T, int N>
struct Rounded<Scalar, cutlass::Array<T, N>> {
  using Arguments = Rounding;
  CUTLASS_HOST_DEVICE cutlass::Array<T, N> operator()(cutlass::Array<T, N> const &x, Rounding const &to) const {
    cutlass::Array<T, N> y;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N; ++i) y[i] = Scalar::apply(x[i], to);
    return y;
  }
};

// clang-format off
template <class T> struct to_integer : Rounded<ScalarToInteger, T> {};
template <class T> struct to_float8 : Rounded<ScalarToFloat8, T> {};
// clang-format on

/* Whether results of a type are rounded from floats that have a gain. */
template <class ElementD>
constexpr bool kIsRounded = cutlass::sizeof_bits<ElementD>::value == 8;

CUTLASS_HOST_DEVICE Rounding rounding(const pk_scales_t &scales) {
  return {scales.gain, scales.zero, scales.low, scales.high};
}

/* Whether vectors of n floats or integers are aligned for accesses of `bytes` bytes. */
inline bool aligned(const pk_scales_t &scales, int64_t bytes) {
  for (const void *vector : {static_cast<const void *>(scales.offset), static_cast<const void *>(scales.scale),
                             static_cast<const void *>(scales.bias)}) {
    if (reinterpret_cast<uintptr_t>(vector) % bytes) return false;
  }
  return true;
}

}  // namespace pk
