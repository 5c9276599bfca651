/* A hand-written model in the form that the entrypoint template renders. Compiled with one of
 *   -DMODEL_STATIC   y[2,3] = 2 * x[2,3] + 1
 *   -DMODEL_DYNAMIC  sum[n,4] = a[n,4] * weights[4] + b[n,4] and grid[2*n+1] = 0, 1, 2, ...
 * and for the dynamic one, optionally,
 *   -DDIM_MIN=1 -DDIM_MAX=32    bounds of n (default 0..4096)
 *   -DWEIGHTS_FILE='"w.bin"'    weights in this file, whose header stands in weights_header.inc
 * and for both -DFEATURES='"avx2", "fma",' and -DENTRY=name_bundle_v1. */
#include "internal.h"

#ifndef ENTRY
#define ENTRY packager_bundle_v1
#endif
#ifndef FEATURES
#define FEATURES
#endif
#define COUNT(array) (int32_t)(sizeof(array) / sizeof *(array))

static const char *const features[] = {FEATURES NULL};
static const char manifest[] = "{}  ";

#ifdef MODEL_STATIC
#define NAME "static"
#define ARENA_BYTES 24
#define NUM_DIMS 0
#define DIMS NULL
#define SHAPES NULL
#define TOTAL_EXTENTS 0
#define CONSTANTS NULL
#define CONSTANT_BYTES 0
#define EXTERNAL NULL

static const int64_t shape[] = {2, 3};
static const char *const no_dims[] = {NULL, NULL};
static const packager_tensor_info_t inputs[] = {{"x", {kDLFloat, 32, 1}, 2, shape, shape, shape, no_dims}};
static const packager_tensor_info_t outputs[] = {{"y", {kDLFloat, 32, 1}, 2, shape, shape, shape, no_dims}};

static int32_t run(const pk_call_t *call) {
  const float *x = call->inputs[0];
  float *doubled = (float *)call->arena, *y = call->outputs[0];
  for (int i = 0; i < 6; ++i) doubled[i] = 2 * x[i];
  for (int i = 0; i < 6; ++i) y[i] = doubled[i] + 1;
  return 0;
}
static const char *const call_names[] = {"affine"};
#endif

#ifdef MODEL_DYNAMIC
#ifndef DIM_MAX
#define DIM_MIN 0
#define DIM_MAX 4096
#endif
#define NAME "dynamic"
#define ARENA_BYTES (DIM_MAX * 16)
#define NUM_DIMS COUNT(dims)
#define DIMS dims
#define SHAPES shapes
#define TOTAL_EXTENTS 7
#define CONSTANT_BYTES 16
#define POISON (-777.0f) /* in b[row][0]: "add" fails with error 1000 + row */

static const int64_t matrix[] = {PACKAGER_DIM_SYMBOLIC, 4}, matrix_min[] = {DIM_MIN, 4}, matrix_max[] = {DIM_MAX, 4};
static const int64_t vector[] = {PACKAGER_DIM_SYMBOLIC}, vector_min[] = {2 * DIM_MIN + 1};
static const int64_t vector_max[] = {2 * DIM_MAX + 1};
static const char *const matrix_dims[] = {"n", NULL}, *const vector_dims[] = {"2*n+1"};
static const packager_tensor_info_t inputs[] = {
    {"a", {kDLFloat, 32, 1}, 2, matrix, matrix_min, matrix_max, matrix_dims},
    {"b", {kDLFloat, 32, 1}, 2, matrix, matrix_min, matrix_max, matrix_dims},
};
static const packager_tensor_info_t outputs[] = {
    {"sum", {kDLFloat, 32, 1}, 2, matrix, matrix_min, matrix_max, matrix_dims},
    {"grid", {kDLInt, 64, 1}, 1, vector, vector_min, vector_max, vector_dims},
};
static const pk_dim_t dims[] = {{"n", DIM_MIN, DIM_MAX, 0, 0}};

#ifdef WEIGHTS_FILE
static const uint8_t header[] = {
#include "weights_header.inc"
};
static const pk_external_weights_t external = {WEIGHTS_FILE, sizeof header + 16, sizeof header, header};
#define CONSTANTS NULL
#define EXTERNAL &external
#else
_Alignas(64) static const float weights[] = {1, 2, 3, 4};
#define CONSTANTS (const uint8_t *)weights
#define EXTERNAL NULL
#endif

static void shapes(const int64_t *values, int64_t *extents) {
  const int64_t n = values[0];
  const int64_t all[TOTAL_EXTENTS] = {n, 4, n, 4, n, 4, 2 * n + 1};
  for (int i = 0; i < TOTAL_EXTENTS; ++i) extents[i] = all[i];
}

static int32_t scale(const void *arguments, int64_t begin, int64_t end) {
  const pk_call_t *call = arguments;
  const float *a = call->inputs[0], *w = (const float *)call->constants;
  float *scaled = (float *)call->arena;
  for (int64_t i = 4 * begin; i < 4 * end; ++i) scaled[i] = a[i] * w[i % 4];
  return 0;
}

static int32_t add(const void *arguments, int64_t begin, int64_t end) {
  const pk_call_t *call = arguments;
  const float *scaled = (const float *)call->arena, *b = call->inputs[1];
  float *sum = call->outputs[0];
  for (int64_t i = 4 * begin; i < 4 * end; ++i) {
    if (i % 4 == 0 && b[i] == POISON) return 1000 + (int32_t)(i / 4);
    sum[i] = scaled[i] + b[i];
  }
  return 0;
}

/* What `add` returned last in this thread: lets the tests see which chunk's error a loop reports. */
static _Thread_local int32_t add_error;

static int32_t run(const pk_call_t *call) {
  if (pk_for(call, scale, call, call->dims[0])) return 1;
  int32_t error = pk_for(call, add, call, call->dims[0]);
  if (error) {
    add_error = error; /* only now: the first access to a thread-local may allocate */
    return 2;
  }
  int64_t *grid = call->outputs[1];
  for (int64_t i = 0; i < 2 * call->dims[0] + 1; ++i) grid[i] = i;
  return 0;
}
static const char *const call_names[] = {"scale", "add"};

__attribute__((visibility("default"))) int32_t test_add_error(void);
int32_t test_add_error(void) { return add_error; }
#endif

const pk_model_t pk_model = {
    .name = NAME,
    .manifest = manifest,
    .manifest_bytes = sizeof manifest - 1,
    .arena_bytes = ARENA_BYTES,
    .constant_bytes = CONSTANT_BYTES,
    .constants = CONSTANTS,
    .external = EXTERNAL,
    .cpu_features = features,
    .num_inputs = COUNT(inputs),
    .num_outputs = COUNT(outputs),
    .num_dims = NUM_DIMS,
    .inputs = inputs,
    .outputs = outputs,
    .dims = DIMS,
    .shapes = SHAPES,
    .total_extents = TOTAL_EXTENTS,
    .run = run,
    .call_names = call_names,
};

static const packager_bundle_v1_t bundle = {
    .struct_size = sizeof bundle,
    .abi_version = PACKAGER_ABI_VERSION,
    .name = NAME,
    .manifest = manifest,
    .manifest_size = sizeof manifest - 1,
    .arena_bytes = ARENA_BYTES,
    .constant_bytes = CONSTANT_BYTES,
    .num_inputs = COUNT(inputs),
    .num_outputs = COUNT(outputs),
    .inputs = inputs,
    .outputs = outputs,
    .set_threads = pk_set_threads,
    .session_create = pk_session_create,
    .session_run = pk_session_run,
    .session_output_shape = pk_session_output_shape,
    .session_destroy = pk_session_destroy,
    .session_error = pk_session_error,
    .thread_error = pk_thread_error,
    .status_name = pk_status_name,
};

__attribute__((visibility("default"))) const packager_bundle_v1_t *ENTRY(void);
const packager_bundle_v1_t *ENTRY(void) { return &bundle; }
