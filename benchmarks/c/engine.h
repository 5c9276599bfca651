/* engine.h: one interface to everything that a benchmark compares. SPDX-License-Identifier: Apache-2.0 */
#ifndef BENCHMARKS_ENGINE_H_
#define BENCHMARKS_ENGINE_H_

#include "packager.h"

#define MAX_TENSORS 32
#define MAX_RANK 8
#define MAX_ARGUMENTS 4

typedef struct {
  const char *name;
  DLTensor view; /* data: 64-byte aligned memory of the program, compact row-major */
  int64_t shape[MAX_RANK];
  uint64_t bytes;
} tensor_t;

/* The tensors of the model; all engines read the same inputs and write to the same outputs. */
typedef struct {
  int32_t num_inputs;
  int32_t num_outputs;
  tensor_t inputs[MAX_TENSORS];
  tensor_t outputs[MAX_TENSORS];
} tensors_t;

/* The steps on the way to an answer, in order; each ends the program if it fails. */
typedef struct {
  const char *name;
  int32_t num_arguments;
  /* Opens the engine's own library, if it has one. */
  void (*open)(const char *const *arguments, int32_t threads);
  /* Reads the model as far as the engine has such a step. */
  void (*load)(void);
  /* Makes what can be run, and binds the tensors. */
  void (*create)(tensors_t *tensors);
  void (*run)(void);
} engine_t;

extern const engine_t packager_engine, onnxruntime_engine, tvm_engine, kernel_engine, fma_engine;

/* Prints "error: ..." and exits with 1. */
_Noreturn void fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* dlopen and dlsym that fail loudly. `symbol` yields an object pointer: ISO C has no cast to a function. */
void *library(const char *path, int flags);
void symbol(void *library, const char *name, void *function);

#endif /* BENCHMARKS_ENGINE_H_ */
