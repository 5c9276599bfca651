/* No model: multiply-adds of vectors in registers, which is what a core can do at most. The argument is the CPU level
 * whose vectors are used: x86-64-v3, x86-64-v4 or aarch64. With "+loads" after it, multiply-adds with the loads that a
 * tile of a matrix product must do, from the first-level cache.
 * SPDX-License-Identifier: Apache-2.0 */
#include <string.h>

#include "engine.h"

#define ROUNDS 102400 /* harness/cpu_peak.py has it, and the number of accumulators, too */
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

/* A tile: an element of each of its rows times two vectors, step by step. */
#define STEPS 256
#define PITCH 272
static float rows[14 * PITCH], columns[STEPS * 32] __attribute__((aligned(64)));

#define START_ROW(i) vector_t low##i = SET((float)i), high##i = low##i;
#define STEP_ROW(i)                                \
  {                                                \
    const vector_t factor = SET(x[(i) * PITCH]);   \
    low##i = MULTIPLY_ADD(factor, first, low##i);  \
    high##i = MULTIPLY_ADD(factor, last, high##i); \
  }
#define TOTAL_ROW(i) total = ADD(total, ADD(low##i, high##i));
#define TILE(ROWS)                                               \
  vector_t total = SET(0.0f);                                    \
  ROWS(START_ROW)                                                \
  for (int round = 0; round < ROUNDS / STEPS; ++round) {         \
    const vector_t *w = (const vector_t *)columns;               \
    for (const float *x = rows; x < rows + STEPS; ++x, w += 2) { \
      const vector_t first = w[0], last = w[1];                  \
      ROWS(STEP_ROW)                                             \
    }                                                            \
  }                                                              \
  ROWS(TOTAL_ROW)                                                \
  return total[0];
#define ROWS_6(each) each(0) each(1) each(2) each(3) each(4) each(5)
#define ROWS_12(each) ROWS_6(each) each(6) each(7) each(8) each(9) each(10) each(11)
#define ROWS_14(each) ROWS_12(each) each(12) each(13)

#ifdef __x86_64__
#include <immintrin.h>
#define SET _mm256_set1_ps
#define ADD _mm256_add_ps
#define MULTIPLY_ADD _mm256_fmadd_ps
__attribute__((target("avx2,fma"))) static float run_v3(void) {
  typedef __m256 vector_t;
  LOOP
}
__attribute__((target("avx2,fma"))) static float run_v3_loads(void) {
  typedef __m256 vector_t;
  TILE(ROWS_6)
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
__attribute__((target("avx512f"))) static float run_v4_loads(void) {
  typedef __m512 vector_t;
  TILE(ROWS_14)
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
static float run_neon_loads(void) {
  typedef float32x4_t vector_t;
  TILE(ROWS_12)
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
  if (!strcmp(level, "x86-64-v3+loads")) loop = run_v3_loads;
  if (!strcmp(level, "x86-64-v4+loads")) loop = run_v4_loads;
#else
  if (!strcmp(level, "aarch64")) loop = run_neon;
  if (!strcmp(level, "aarch64+loads")) loop = run_neon_loads;
#endif
  if (!loop) fail("there is no loop for %s", level);
  for (int i = 0; i < 14 * PITCH; ++i) rows[i] = (float)(i * 37 % 101) / 101.0f - 0.5f;
  for (int i = 0; i < STEPS * 32; ++i) columns[i] = (float)(i * 53 % 97) / 97.0f - 0.5f;
}

static void create(tensors_t *tensors) { (void)tensors; }

static void run(void) { result = loop(); }

const engine_t fma_engine = {"fma", 1, open, load, create, run};
