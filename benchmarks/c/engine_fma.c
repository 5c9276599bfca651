/* No model: multiply-adds of vectors in registers, which is what a core can do at most. The argument is the CPU level
 * whose vectors are used: x86-64-v3 or x86-64-v4.
 * SPDX-License-Identifier: Apache-2.0 */
#include <immintrin.h>
#include <string.h>

#include "engine.h"

#define ITERATIONS 102400 /* harness/cpu_peak.py has it, and the number of accumulators, too */
#define ACCUMULATORS(each) \
  each(0) each(1) each(2) each(3) each(4) each(5) each(6) each(7) each(8) each(9) each(10) each(11)

/* Sums are named: those of an array would go through memory. */
#define START(i) vector_t sum##i = SET((float)i);
#define STEP(i) sum##i = MULTIPLY_ADD(sum##i, factor, addend);
#define TOTAL(i) total = ADD(total, sum##i);
#define LOOP                                                       \
  vector_t factor = SET(0.5f), addend = SET(1.0f), total = addend; \
  ACCUMULATORS(START)                                              \
  for (int i = 0; i < ITERATIONS; ++i) {                           \
    ACCUMULATORS(STEP)                                             \
  }                                                                \
  ACCUMULATORS(TOTAL)                                              \
  return total[0];

#define SET _mm256_set1_ps
#define ADD _mm256_add_ps
#define MULTIPLY_ADD _mm256_fmadd_ps
__attribute__((target("avx2,fma"))) static float run_v3(void) {
  typedef __m256 vector_t;
  LOOP
}
#undef SET
#undef ADD
#undef MULTIPLY_ADD
#define SET _mm512_set1_ps
#define ADD _mm512_add_ps
#define MULTIPLY_ADD _mm512_fmadd_ps
__attribute__((target("avx512f"))) static float run_v4(void) {
  typedef __m512 vector_t;
  LOOP
}

static float (*loop)(void);
static volatile float result; /* so that it is computed */

static void open(const char *const *arguments, int32_t threads) {
  if (threads != 1) fail("the peak is that of one thread");
  if (!strcmp(arguments[0], "x86-64-v3")) loop = run_v3;
  if (!strcmp(arguments[0], "x86-64-v4")) loop = run_v4;
  if (!loop) fail("there is no loop for %s", arguments[0]);
}

static void load(void) {}

static void create(tensors_t *tensors) { (void)tensors; }

static void run(void) { result = loop(); }

const engine_t fma_engine = {"fma", 1, open, load, create, run};
