/* What the epilogues of GEMM and convolution kernels apply to each element, in float.
 *
 * Those without a suffix are made for results that are rounded to 16 bits: they cost two instructions of the special
 * function unit and are right to about 2e-7. `_precise` ones are right to a few units in the last place of a float.
 * `_fast` ones are right to about 3e-5 and cost one such instruction. */
#pragma once

#include "cutlass/array.h"
#include "cutlass/cutlass.h"
#include "cutlass/functional.h"

namespace pk {

/* Makes of `Scalar::apply` the functor of float and of arrays of float that CUTLASS's epilogues take. */
template <class Scalar, class T>
struct Elementwise {
  CUTLASS_HOST_DEVICE T operator()(T const &x) const { return Scalar::apply(x); }
};
template <class Scalar, class T, int N>
struct Elementwise<Scalar, cutlass::Array<T, N>> {
  CUTLASS_HOST_DEVICE cutlass::Array<T, N> operator()(cutlass::Array<T, N> const &x) const {
    cutlass::Array<T, N> y;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < N; ++i) y[i] = Scalar::apply(x[i]);
    return y;
  }
};

/* The instructions themselves; the host, which calls none of them but in tests, has functions of libm. */
#ifdef __CUDA_ARCH__
#define PK_INSTRUCTION(name, instruction, exact)        \
  CUTLASS_HOST_DEVICE float name(float x) {             \
    float y;                                            \
    asm(instruction ".f32 %0, %1;" : "=f"(y) : "f"(x)); \
    return y;                                           \
  }
#else
#define PK_INSTRUCTION(name, instruction, exact) \
  CUTLASS_HOST_DEVICE float name(float x) { return exact; }
#endif
PK_INSTRUCTION(exp2_approx, "ex2.approx.ftz", exp2f(x))
PK_INSTRUCTION(log2_approx, "lg2.approx.ftz", log2f(x))
PK_INSTRUCTION(reciprocal_approx, "rcp.approx.ftz", 1.0f / x)
PK_INSTRUCTION(tanh_approx, "tanh.approx", tanhf(x))
PK_INSTRUCTION(sine_approx, "sin.approx.ftz", sinf(x))
#undef PK_INSTRUCTION

constexpr float kLog2 = 0.69314718055994531f;
constexpr float kLog2E = 1.4426950408889634f;
constexpr float kSqrtHalf = 0.70710678118654752f;
/* tanh's argument in the tanh form of GELU is kGeluScale * x * (1 + kGeluCube * x * x). */
constexpr float kGeluScale = 0.79788456080286536f;
constexpr float kGeluCube = 0.044715f;

/* A number that is given by the bits of a float, as all parameters of activations are. */
template <uint32_t kBits>
CUTLASS_HOST_DEVICE float number() {
  const union {
    uint32_t bits;
    float value;
  } of = {kBits};
  return of.value;
}

/* A NaN stays one in all of them. */
struct ScalarRelu {
  CUTLASS_HOST_DEVICE static float apply(float x) { return cutlass::maximum<float, true>{}(x, 0.0f); }
};

template <uint32_t kSlope>
struct ScalarLeakyRelu {
  CUTLASS_HOST_DEVICE static float apply(float x) { return x > 0.0f ? x : number<kSlope>() * x; }
};

template <uint32_t kLow, uint32_t kHigh>
struct ScalarClip {
  CUTLASS_HOST_DEVICE static float apply(float x) {
    return cutlass::minimum<float, true>{}(cutlass::maximum<float, true>{}(x, number<kLow>()), number<kHigh>());
  }
};

struct ScalarTanh {
  CUTLASS_HOST_DEVICE static float apply(float x) { return tanhf(x); }
};
struct ScalarTanhFast {
  CUTLASS_HOST_DEVICE static float apply(float x) { return tanh_approx(x); }
};

struct ScalarHardsigmoid {
  CUTLASS_HOST_DEVICE static float apply(float x) {
    return cutlass::minimum<float, true>{}(cutlass::maximum<float, true>{}(x + 3.0f, 0.0f), 6.0f) * (1.0f / 6.0f);
  }
};
struct ScalarHardswish {
  CUTLASS_HOST_DEVICE static float apply(float x) { return x * ScalarHardsigmoid::apply(x); }
};

struct ScalarSigmoid {
  CUTLASS_HOST_DEVICE static float apply(float x) { return reciprocal_approx(1.0f + exp2_approx(-kLog2E * x)); }
};
struct ScalarSigmoidFast {
  CUTLASS_HOST_DEVICE static float apply(float x) { return 0.5f + 0.5f * tanh_approx(0.5f * x); }
};
struct ScalarSigmoidPrecise {
  CUTLASS_HOST_DEVICE static float apply(float x) { return reciprocal_approx(1.0f + expf(-x)); }
};

struct ScalarSilu {
  CUTLASS_HOST_DEVICE static float apply(float x) { return x * ScalarSigmoid::apply(x); }
};
struct ScalarSiluFast {
  CUTLASS_HOST_DEVICE static float apply(float x) { return x * ScalarSigmoidFast::apply(x); }
};
struct ScalarSiluPrecise {
  CUTLASS_HOST_DEVICE static float apply(float x) { return x * ScalarSigmoidPrecise::apply(x); }
};

/* x tanh(log(1 + e)) with e = exp(x) is x n / (n + 2) with n = e (e + 2), and x itself where e is large. */
struct ScalarMish {
  CUTLASS_HOST_DEVICE static float apply(float x) {
    const float e = exp2_approx(kLog2E * cutlass::minimum<float, true>{}(x, 20.0f)), n = e * (e + 2.0f);
    return x * n * reciprocal_approx(n + 2.0f);
  }
};
struct ScalarMishPrecise {
  CUTLASS_HOST_DEVICE static float apply(float x) {
    const float e = expf(cutlass::minimum<float, true>{}(x, 20.0f)), n = e * (e + 2.0f);
    return x * (n / (n + 2.0f));
  }
};

/* By a sigmoid of one of the accuracies. */
template <class Sigmoid, uint32_t kBeta>
struct ScalarSwish {
  CUTLASS_HOST_DEVICE static float apply(float x) { return x * Sigmoid::apply(number<kBeta>() * x); }
};

template <uint32_t kScale, uint32_t kShift>
struct ScalarStarRelu {
  CUTLASS_HOST_DEVICE static float apply(float x) {
    const float y = ScalarRelu::apply(x);
    return number<kScale>() * y * y + number<kShift>();
  }
};

/* log(1 + exp(x)), which is max(x, 0) + log(1 + exp(-|x|)). */
struct ScalarSoftplus {
  CUTLASS_HOST_DEVICE static float apply(float x) {
    return ScalarRelu::apply(x) + kLog2 * log2_approx(1.0f + exp2_approx(-kLog2E * fabsf(x)));
  }
};
struct ScalarSoftplusPrecise {
  CUTLASS_HOST_DEVICE static float apply(float x) { return ScalarRelu::apply(x) + log1pf(expf(-fabsf(x))); }
};

template <uint32_t kLow, uint32_t kSlope>
struct ScalarElu {
  CUTLASS_HOST_DEVICE static float apply(float x) {
    return x > 0.0f ? number<kSlope>() * x : number<kLow>() * (exp2_approx(kLog2E * x) - 1.0f);
  }
};
template <uint32_t kLow, uint32_t kSlope>
struct ScalarEluPrecise {
  CUTLASS_HOST_DEVICE static float apply(float x) {
    return x > 0.0f ? number<kSlope>() * x : number<kLow>() * expm1f(x);
  }
};

/* The rest of x by a multiple of 2 pi / 4, and which: pi / 2 in three parts (Cody and Waite), right to 1e-7 where x is
 * below 1e5. sinf's own reduction of larger numbers needs local memory, whether there are any or not. */
CUTLASS_HOST_DEVICE float quarter_turn(float x, int &quarter) {
  const float turns = rintf(x * 0.63661977236758134f);
  quarter = int(turns) & 3;
  float rest = fmaf(-turns, 1.5707962512969971f, x);
  rest = fmaf(-turns, 7.5497894158615964e-08f, rest);
  return fmaf(-turns, 5.3903025299577648e-15f, rest);
}

template <uint32_t kFactor>
struct ScalarSine {
  CUTLASS_HOST_DEVICE static float apply(float x) {
    const float angle = number<kFactor>() * x, turns = rintf(angle * 0.15915494309189535f);
    return sine_approx(fmaf(-turns, -1.7484556000744487e-07f, fmaf(-turns, 6.2831854820251465f, angle)));
  }
};
/* Polynomials of sine and cosine on +-pi / 4 as in Cephes (Moshier). */
template <uint32_t kFactor>
struct ScalarSinePrecise {
  CUTLASS_HOST_DEVICE static float apply(float x) {
    int quarter;
    const float r = quarter_turn(number<kFactor>() * x, quarter), z = r * r;
    const float sine = r + r * z * (-1.6666654611e-1f + z * (8.3321608736e-3f - 1.9515295891e-4f * z));
    const float cosine =
        1.0f - 0.5f * z + z * z * (4.166664568298827e-2f + z * (-1.388731625493765e-3f + 2.443315711809948e-5f * z));
    const float value = quarter & 1 ? cosine : sine;
    return quarter & 2 ? -value : value;
  }
};

/* x times the normal distribution's cumulative probability. erfc(z) = t * polynomial(t) * exp(-z * z) with
 * t = 1 / (1 + p z), Abramowitz and Stegun 7.1.26, right to 1.5e-7. */
struct ScalarGelu {
  CUTLASS_HOST_DEVICE static float apply(float x) {
    const float z = fabsf(x) * kSqrtHalf;
    const float t = reciprocal_approx(1.0f + 0.3275911f * z);
    const float series =
        t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    const float half = 0.5f * series * exp2_approx(-kLog2E * z * z); /* half of erfc(|z|) */
    return x * (x < 0.0f ? half : 1.0f - half);
  }
};
/* As tanh of a polynomial that was fitted to erf. */
struct ScalarGeluFast {
  CUTLASS_HOST_DEVICE static float apply(float x) {
    const float u = cutlass::minimum<float>{}(x * x, 25.0f), half = 0.5f * x;
    return half + half * tanh_approx(x * (0.797508f + u * (0.0370056f - 3.515e-4f * u)));
  }
};
struct ScalarGeluPrecise {
  CUTLASS_HOST_DEVICE static float apply(float x) { return 0.5f * x * (1.0f + erff(x * kSqrtHalf)); }
};

/* 0.5 (1 + tanh(u)) is sigmoid(2 u). */
struct ScalarGeluTanh {
  CUTLASS_HOST_DEVICE static float apply(float x) {
    return x * ScalarSigmoid::apply(2.0f * kGeluScale * x * (1.0f + kGeluCube * x * x));
  }
};
struct ScalarGeluTanhFast {
  CUTLASS_HOST_DEVICE static float apply(float x) {
    const float half = 0.5f * x;
    return half + half * tanh_approx(kGeluScale * x * (1.0f + kGeluCube * x * x));
  }
};
struct ScalarGeluTanhPrecise {
  CUTLASS_HOST_DEVICE static float apply(float x) {
    return 0.5f * x * (1.0f + tanhf(kGeluScale * x * (1.0f + kGeluCube * x * x)));
  }
};

// clang-format off
template <class T> struct relu : Elementwise<ScalarRelu, T> {};
template <uint32_t kSlope> struct leaky_relu { template <class T> struct of : Elementwise<ScalarLeakyRelu<kSlope>, T> {}; };
template <uint32_t kLow, uint32_t kHigh> struct clip {
  template <class T> struct of : Elementwise<ScalarClip<kLow, kHigh>, T> {};
};
template <uint32_t kFactor> struct sine { template <class T> struct of : Elementwise<ScalarSine<kFactor>, T> {}; };
template <uint32_t kFactor> struct sine_fast : sine<kFactor> {};
template <uint32_t kFactor> struct sine_precise {
  template <class T> struct of : Elementwise<ScalarSinePrecise<kFactor>, T> {};
};
template <uint32_t kScale, uint32_t kShift> struct star_relu {
  template <class T> struct of : Elementwise<ScalarStarRelu<kScale, kShift>, T> {};
};
template <uint32_t kBeta> struct swish {
  template <class T> struct of : Elementwise<ScalarSwish<ScalarSigmoid, kBeta>, T> {};
};
template <uint32_t kBeta> struct swish_fast {
  template <class T> struct of : Elementwise<ScalarSwish<ScalarSigmoidFast, kBeta>, T> {};
};
template <uint32_t kBeta> struct swish_precise {
  template <class T> struct of : Elementwise<ScalarSwish<ScalarSigmoidPrecise, kBeta>, T> {};
};
template <uint32_t kLow, uint32_t kSlope> struct elu {
  template <class T> struct of : Elementwise<ScalarElu<kLow, kSlope>, T> {};
};
template <uint32_t kLow, uint32_t kSlope> struct elu_fast : elu<kLow, kSlope> {};
template <uint32_t kLow, uint32_t kSlope> struct elu_precise {
  template <class T> struct of : Elementwise<ScalarEluPrecise<kLow, kSlope>, T> {};
};
template <class T> struct softplus : Elementwise<ScalarSoftplus, T> {};
template <class T> struct softplus_fast : Elementwise<ScalarSoftplus, T> {};
template <class T> struct softplus_precise : Elementwise<ScalarSoftplusPrecise, T> {};
template <class T> struct tanh : Elementwise<ScalarTanh, T> {};
template <class T> struct tanh_fast : Elementwise<ScalarTanhFast, T> {};
template <class T> struct tanh_precise : Elementwise<ScalarTanh, T> {};
template <class T> struct hardswish : Elementwise<ScalarHardswish, T> {};
template <class T> struct hardsigmoid : Elementwise<ScalarHardsigmoid, T> {};
template <class T> struct sigmoid : Elementwise<ScalarSigmoid, T> {};
template <class T> struct sigmoid_fast : Elementwise<ScalarSigmoidFast, T> {};
template <class T> struct sigmoid_precise : Elementwise<ScalarSigmoidPrecise, T> {};
template <class T> struct silu : Elementwise<ScalarSilu, T> {};
template <class T> struct silu_fast : Elementwise<ScalarSiluFast, T> {};
template <class T> struct silu_precise : Elementwise<ScalarSiluPrecise, T> {};
template <class T> struct gelu : Elementwise<ScalarGelu, T> {};
template <class T> struct gelu_fast : Elementwise<ScalarGeluFast, T> {};
template <class T> struct gelu_precise : Elementwise<ScalarGeluPrecise, T> {};
template <class T> struct gelu_tanh : Elementwise<ScalarGeluTanh, T> {};
template <class T> struct gelu_tanh_fast : Elementwise<ScalarGeluTanhFast, T> {};
template <class T> struct gelu_tanh_precise : Elementwise<ScalarGeluTanhPrecise, T> {};
template <class T> struct mish : Elementwise<ScalarMish, T> {};
template <class T> struct mish_fast : Elementwise<ScalarMish, T> {};
template <class T> struct mish_precise : Elementwise<ScalarMishPrecise, T> {};
// clang-format on

}  // namespace pk
