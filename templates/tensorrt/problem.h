/* The problem of a call of an engine: addresses, and the sizes that a run says. */
#ifndef PK_TENSORRT_PROBLEM_H_
#define PK_TENSORRT_PROBLEM_H_

#include "engine.h"

#define PK_TRT_ALIGNMENT 256 /* that the library asks of all device memory */

/* The problem of a call, in words of 64 bits: the library enqueues nothing else for equal ones. */
enum {
  PK_TRT_WORD_ENGINE,    /* pk_trt_engine_t */
  PK_TRT_WORD_WORKSPACE, /* its address, aligned */
  PK_TRT_WORD_CONSTANTS, /* their number, if it can be refitted */
  PK_TRT_WORD_MODE,      /* 1: nothing is enqueued, all is made that a run needs */
  PK_TRT_WORD_FIRST      /* addresses of inputs, outputs and constants, then the extents that a run says */
};

static const pk_trt_engine_t *pk_trt_engine_of(const uint64_t *problem) {
  return (const pk_trt_engine_t *)(uintptr_t)problem[PK_TRT_WORD_ENGINE];
}
static const uint64_t *pk_trt_addresses(const uint64_t *problem) { return problem + PK_TRT_WORD_FIRST; }
static const uint64_t *pk_trt_constants(const uint64_t *problem) {
  return problem + PK_TRT_WORD_FIRST + pk_trt_engine_of(problem)->num_tensors;
}
static const uint64_t *pk_trt_extents(const uint64_t *problem) {
  return pk_trt_constants(problem) + pk_trt_engine_of(problem)->num_constants;
}

static uint64_t pk_trt_aligned(uint64_t bytes) {
  return (bytes + PK_TRT_ALIGNMENT - 1) / PK_TRT_ALIGNMENT * PK_TRT_ALIGNMENT;
}

/* Bytes of tensor number `index`; `*says` counts the extents that runs say, up to it. */
static uint64_t pk_trt_bytes(const pk_trt_engine_t *engine, int32_t index, const uint64_t *extents, int32_t *says) {
  const pk_trt_tensor_t *tensor = &engine->tensors[index];
  uint64_t bytes = (uint64_t)pk_trt_itemsize(tensor->type);
  for (int32_t i = 0; i < tensor->rank; ++i) {
    bytes *= tensor->extents[i] < 0 ? extents[(*says)++] : (uint64_t)tensor->extents[i];
  }
  return bytes;
}

/* An engine has no profile for nothing. */
static int pk_trt_is_empty(const uint64_t *problem) {
  const pk_trt_engine_t *engine = pk_trt_engine_of(problem);
  int32_t says = 0;
  uint64_t computed = 0;
  for (int32_t i = 0; i < engine->num_tensors; ++i) {
    const uint64_t bytes = pk_trt_bytes(engine, i, pk_trt_extents(problem), &says);
    if (i >= engine->num_inputs) computed += bytes;
  }
  return computed == 0;
}

#endif /* PK_TENSORRT_PROBLEM_H_ */
