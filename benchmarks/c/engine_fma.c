/* No model: multiply-adds of vectors in registers, which is what a core can do at most. The argument is the CPU level
 * whose vectors are used: x86-64-v3, x86-64-v4 or aarch64. SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engine.h"

#define ROUNDS 100000 /* cpu_gemm.py has both numbers too */
#define ACCUMULATORS(each) \
  each(0) each(1) each(2) each(3) each(4) each(5) each(6) each(7) each(8) each(9) each(10) each(11)

/* Sums are named: those of an array would go through memory. */
#define START(i) vector_t sum##i = SET((float)i);
#define STEP(i) sum##i = MULTIPLY_ADD(sum##i, factor, addend);
#define TOTAL(i) total = ADD(total, sum##i);
#define LOOP                                                       \
  vector_t factor = SET(0.5f), addend = SET(1.0f), total = addend; \
  ACCUMULATORS(START)                                              \
  for (int round = 0; round < ROUNDS; ++round) {                   \
    ACCUMULATORS(STEP)                                             \
  }                                                                \
  ACCUMULATORS(TOTAL)                                              \
  return total[0];

#ifdef __x86_64__
#include <immintrin.h>
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
#else
#include <arm_neon.h>
#define SET vdupq_n_f32
#define ADD vaddq_f32
#define MULTIPLY_ADD(sum, factor, addend) vfmaq_f32(addend, sum, factor)
static float run_neon(void) {
  typedef float32x4_t vector_t;
  LOOP
}
#endif

static const char *level;
static float (*loop)(void);
static volatile float result; /* so that it is computed */

static void open(const char *const *arguments, int32_t threads) {
  level = arguments[0];
  if (threads != 1) fail("the peak is that of one thread");
}

static void load(void) {
#ifdef __x86_64__
  if (!strcmp(level, "x86-64-v3")) loop = run_v3;
  if (!strcmp(level, "x86-64-v4")) loop = run_v4;
#else
  if (!strcmp(level, "aarch64")) loop = run_neon;
#endif
  if (!loop) fail("there is no loop for %s", level);
}

static void create(tensors_t *tensors) { (void)tensors; }

static void run(void) { result = loop(); }

const engine_t fma_engine = {"fma", 1, open, load, create, run};
