/* filters.c: two operators that ONNX does not have. Both are reentrant: they keep nothing between calls. */
#include <math.h>
#include <stdint.h>

#include "packager.h" /* DLTensor; dlpack/dlpack.h will do as well */

/* com.example::Biquad: y[t] = b0 x[t] + b1 x[t-1] + b2 x[t-2] - a1 y[t-1] - a2 y[t-2] for each of n signals.
 * c is b0, b1, b2, a1, a2. Source: Zoelzer 2011, "DAFX", section 2.2.1. */
int32_t filters_biquad(const float *x, const float *c, float *y, int64_t n, int64_t t) {
  for (int64_t i = 0; i < n; i++) {
    double s1 = 0, s2 = 0; /* transposed direct form II */
    for (int64_t j = 0; j < t; j++) {
      const double in = x[i * t + j], out = c[0] * in + s1;
      s1 = c[1] * in - c[3] * out + s2;
      s2 = c[2] * in - c[4] * out;
      y[i * t + j] = (float)out;
    }
  }
  return 0;
}

/* com.example::Level: the level (RMS) of each signal in dB, not below `floor`, and its largest magnitude. */
int32_t filters_level(const DLTensor *x, DLTensor *level, DLTensor *peak, float floor) {
  if (x->ndim != 2 || x->shape[1] < 1) return 1; /* any other number than 0: the run fails */
  const float *data = x->data;
  float *levels = level->data, *peaks = peak->data;
  for (int64_t i = 0; i < x->shape[0]; i++) {
    double sum = 0;
    float largest = 0;
    for (int64_t j = 0; j < x->shape[1]; j++) {
      const float value = data[i * x->shape[1] + j];
      sum += (double)value * value;
      largest = fmaxf(largest, fabsf(value));
    }
    levels[i] = fmaxf((float)(10 * log10(sum / (double)x->shape[1] + 1e-12)), floor);
    peaks[i] = largest;
  }
  return 0;
}
