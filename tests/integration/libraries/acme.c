/* The library that the tests' backend `loader` calls. FACTOR tells copies apart. */
#include <math.h>
#include <stdint.h>

#ifndef FACTOR
#define FACTOR 1
#endif

int acme_version(void);
int acme_version(void) { return VERSION; }

void acme_sin(float *y, const float *x, int64_t n);
void acme_sin(float *y, const float *x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = FACTOR * sinf(x[i]);
}

#ifndef WITHOUT_COS
void acme_cos(float *y, const float *x, int64_t n);
void acme_cos(float *y, const float *x, int64_t n) {
  for (int64_t i = 0; i < n; ++i) y[i] = FACTOR * cosf(x[i]);
}
#endif
