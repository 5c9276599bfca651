/* onnxruntime through its C API.
 *
 * The wheel ships the library without its headers. OrtApi is a struct of function pointers that is only ever appended
 * to; everything used here is of version 1 of the API, whose layout is fixed, and is called by its position.
 * SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <stddef.h>

#include "engine.h"

enum { API_VERSION = 1, LOG_ERROR = 3, ALL_OPTIMIZATIONS = 99, DEVICE_ALLOCATOR = 0, DEFAULT_MEMORY = 0 };
enum { ELEMENT_FLOAT = 1, ELEMENT_INT64 = 7 };
enum {
  GET_ERROR_MESSAGE = 2,
  CREATE_ENV = 3,
  CREATE_SESSION = 7,
  RUN = 9,
  CREATE_SESSION_OPTIONS = 10,
  SET_GRAPH_OPTIMIZATION_LEVEL = 23,
  SET_INTRA_OP_THREADS = 24,
  SET_INTER_OP_THREADS = 25,
  CREATE_TENSOR_WITH_DATA = 49,
  CREATE_CPU_MEMORY_INFO = 69
};
typedef struct status status_t; /* NULL: success */
typedef void function_t(void);
typedef struct {
  function_t *const *(*get_api)(uint32_t version);
  const char *(*version)(void);
} api_base_t;

typedef const char *get_error_message_fn(const status_t *);
typedef status_t *create_env_fn(int level, const char *name, void **env);
typedef status_t *create_session_options_fn(void **options);
typedef status_t *set_option_fn(void *options, int value);
typedef status_t *create_session_fn(const void *env, const char *path, const void *options, void **session);
typedef status_t *create_cpu_memory_info_fn(int allocator, int memory, void **info);
typedef status_t *create_tensor_fn(const void *info, void *data, size_t bytes, const int64_t *shape, size_t rank,
                                   int element, void **value);
typedef status_t *run_fn(void *session, const void *options, const char *const *input_names, const void *const *inputs,
                         size_t num_inputs, const char *const *output_names, size_t num_outputs, void **outputs);

static function_t *const *api;
static const char *path;
static int32_t threads;
static void *env, *session;
static run_fn *run_session;
static const char *input_names[MAX_TENSORS], *output_names[MAX_TENSORS];
static void *inputs[MAX_TENSORS], *outputs[MAX_TENSORS];
static size_t num_inputs, num_outputs;

static void check(status_t *status) {
  if (status) fail("onnxruntime: %s", ((get_error_message_fn *)api[GET_ERROR_MESSAGE])(status));
}

static void open(const char *const *arguments, int32_t thread_count) {
  const api_base_t *(*get_base)(void);
  path = arguments[1];
  threads = thread_count;
  symbol(library(arguments[0], RTLD_NOW | RTLD_LOCAL), "OrtGetApiBase", &get_base);
  api = get_base()->get_api(API_VERSION);
  if (!api) fail("onnxruntime does not offer version %d of its API", API_VERSION);
  run_session = (run_fn *)api[RUN];
  check(((create_env_fn *)api[CREATE_ENV])(LOG_ERROR, "benchmark", &env));
}

static void load(void) {} /* part of creating a session */

static void *bind(const void *info, const tensor_t *tensor) {
  void *value;
  int element = tensor->view.dtype.code == kDLInt ? ELEMENT_INT64 : ELEMENT_FLOAT;
  check(((create_tensor_fn *)api[CREATE_TENSOR_WITH_DATA])(info, tensor->view.data, tensor->bytes, tensor->shape,
                                                           (size_t)tensor->view.ndim, element, &value));
  return value;
}

static void create(tensors_t *tensors) {
  void *options, *info;
  check(((create_session_options_fn *)api[CREATE_SESSION_OPTIONS])(&options));
  check(((set_option_fn *)api[SET_INTRA_OP_THREADS])(options, threads));
  check(((set_option_fn *)api[SET_INTER_OP_THREADS])(options, 1));
  check(((set_option_fn *)api[SET_GRAPH_OPTIMIZATION_LEVEL])(options, ALL_OPTIMIZATIONS));
  check(((create_session_fn *)api[CREATE_SESSION])(env, path, options, &session));
  check(((create_cpu_memory_info_fn *)api[CREATE_CPU_MEMORY_INFO])(DEVICE_ALLOCATOR, DEFAULT_MEMORY, &info));
  num_inputs = (size_t)tensors->num_inputs;
  num_outputs = (size_t)tensors->num_outputs;
  for (size_t i = 0; i < num_inputs; ++i) {
    input_names[i] = tensors->inputs[i].name;
    inputs[i] = bind(info, &tensors->inputs[i]);
  }
  for (size_t i = 0; i < num_outputs; ++i) {
    output_names[i] = tensors->outputs[i].name;
    outputs[i] = bind(info, &tensors->outputs[i]);
  }
}

static void run(void) {
  check(run_session(session, NULL, input_names, (const void *const *)inputs, num_inputs, output_names, num_outputs,
                    outputs));
}

const engine_t onnxruntime_engine = {"onnxruntime", 2, open, load, create, run};
