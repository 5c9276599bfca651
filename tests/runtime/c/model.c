/* A hand-written model in the form that the entrypoint template renders. Compiled with one of
 *   -DMODEL_STATIC   y[2,3] = 2 * x[2,3] + 1
 *   -DMODEL_DYNAMIC  sum[n,4] = a[n,4] * weights[4] + b[n,4] and grid[2*n+1] = 0, 1, 2, ...
 *   -DMODEL_STATES   y[4] = sum[4], then sum += x[4] and scale[2] *= 2, which are states; and a second entry, "tell":
 *                    first[n] = x[n,2][0] + sum[0], and last[1] = x[n,2][1] of the last row
 *   -DMODEL_BATCHES  y[10,2] = the sum of the squares of x[10,4] + shift[1], and the threads of the call: ten
 * micro-batches -DMODEL_CONSTANTS  y[71] = the constants that it has, one slot after the other; see there and for the
 * dynamic one, optionally, -DDIM_MIN=1 -DDIM_MAX=32    bounds of n (default 0..4096) -DWEIGHTS_FILE='"w.bin"' weights
 * in this file, whose header stands in weights_header.inc and for the static one -DSELECTION=0,1: its second function's
 * candidate 1 computes -2 * x + 1, or -DBETTER='"avx2",': it has levels "least", "better", which needs that, and
 * "best", which needs avx9999 too; they add 1, 2 and 3 and for both -DFEATURES='"avx2", "fma",' and
 * -DENTRY=name_bundle_v1. */
#include "entrypoint.h"

#ifndef ENTRY
#define ENTRY packager_bundle_v1
#endif
#ifndef FEATURES
#define FEATURES
#endif
#define COUNT(array) (int32_t)(sizeof(array) / sizeof *(array))

#ifdef SELECTION
static const uint8_t selection[] = {SELECTION}, candidates[] = {1, 2};
#define NUM_SELECTED COUNT(selection)
#define SELECTED selection
#define CANDIDATES candidates
#else
#define NUM_SELECTED 0
#define SELECTED NULL
#define CANDIDATES NULL
#endif

/* Alternative 1 of choice 1 calls a library; alternative 0 calls none. */
#ifdef LIBRARY
static void *functions[2];
static void tell_version(void *const *opened, int32_t version[3]) {
  int packed = ((int (*)(void))opened[0])();
  version[0] = packed / 10000, version[1] = packed / 100 % 100, version[2] = packed % 100;
}
static float call_library(void) { return ((float (*)(void))functions[1])(); }
static const pk_library_t library = {.functions = functions, .num_functions = LIBRARY, .version = tell_version};
static const pk_library_t *const libraries[] = {&library};
static const pk_library_use_t uses[] = {{1, 1, 0}};
static const int32_t fallbacks[] = {-1, 0};
static const char texts[] =
    "test_library\0"
    "2.1\0"
    "2.1.3\0"
    "optional\0"
    "libpktest.so.2\0"
    "libpktest.so.1\0"
    "\0"
    "test_version\0"
    "test_value\0";
static const pk_libraries_t loaded = {pk_open_libraries, pk_avoid_library, texts,      libraries, uses,
                                      fallbacks,         COUNT(libraries), COUNT(uses)};
#define LOADED &loaded
#else
static inline __attribute__((unused)) float call_library(void) {
  return -2;
} /* a real candidate would compute the same */
#define LOADED NULL
#endif

static const char *const features[] = {FEATURES NULL};
static const char manifest[] = "{}  ";

#ifdef MODEL_STATIC
#define NAME "static"
#define ARENA_BYTES 24

static const int64_t shape[] = {2, 3};
static const char *const no_dims[] = {NULL, NULL};
static const packager_tensor_info_t inputs[] = {{"x", {kDLFloat, 32, 1}, 2, shape, shape, shape, no_dims}};
static const packager_tensor_info_t outputs[] = {{"y", {kDLFloat, 32, 1}, 2, shape, shape, shape, no_dims}};

static int32_t run_with(const pk_call_t *call, float bias) {
  const float *x = call->inputs[0];
  float *doubled = (float *)call->arena, *y = call->outputs[0];
  float factor = NUM_SELECTED && call->selection[1] ? call_library() : 2;
  for (int i = 0; i < 6; ++i) doubled[i] = factor * x[i];
  for (int i = 0; i < 6; ++i) y[i] = doubled[i] + bias;
  pk_returned(call, 1);
  return 0;
}
static int32_t run(const pk_call_t *call) { return run_with(call, 1); }

#ifdef BETTER
static int32_t run_better(const pk_call_t *call) { return run_with(call, 2); }
static int32_t run_best(const pk_call_t *call) { return run_with(call, 3); }
static const char *const none[] = {NULL}, *const better[] = {BETTER NULL}, *const best[] = {BETTER "avx9999", NULL};
static const pk_level_t levels[] = {{"least", none}, {"better", better}, {"best", best}};
#define RUNS run, run_better, run_best
#define NUM_LEVELS COUNT(levels)
#define LEVELS levels
#endif
static const char call_names[] = "affine\0";
#endif

#ifdef MODEL_DYNAMIC
#ifndef DIM_MAX
#define DIM_MIN 0
#define DIM_MAX 4096
#endif
#define NAME "dynamic"
#define NUM_CALLS 2
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
#define EMBEDDED NULL
#define EXTERNAL &external
#else
_Alignas(64) static const float weights[] = {1, 2, 3, 4};
#define EMBEDDED (const uint8_t *)weights
#define EXTERNAL NULL
#endif

static const int64_t weights_shape[] = {4}, forms[] = {4, 1};
static const packager_constant_info_t constants[] = {{"w", {kDLFloat, 32, 1}, 1, weights_shape}};
static const pk_slot_t slots[] = {{.offset = 0, .nbytes = 16, .source = 0, .ndim = 1, .form = 0, .first = 0}};
#define NUM_CONSTANTS COUNT(constants)
#define NUM_SLOTS COUNT(slots)
#define CONSTANTS constants
#define SLOTS slots
#define FORMS forms

static void shapes(const int64_t *values, int64_t *extents) {
  const int64_t n = values[0];
  const int64_t all[TOTAL_EXTENTS] = {n, 4, n, 4, n, 4, 2 * n + 1};
  for (int i = 0; i < TOTAL_EXTENTS; ++i) extents[i] = all[i];
}

static int32_t scale(const void *arguments, int64_t begin, int64_t end) {
  const pk_call_t *call = arguments;
  const float *a = call->inputs[0], *w = (const float *)call->constants[0];
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
  pk_returned(call, 1);
  int32_t error = pk_for(call, add, call, call->dims[0]);
  if (error) {
    add_error = error; /* only now: the first access to a thread-local may allocate */
    return 2;
  }
  pk_returned(call, 2);
  int64_t *grid = call->outputs[1];
  for (int64_t i = 0; i < 2 * call->dims[0] + 1; ++i) grid[i] = i;
  return 0;
}
static const char call_names[] = "scale\0add\0";

__attribute__((visibility("default"))) int32_t test_add_error(void);
int32_t test_add_error(void) { return add_error; }
#endif

#ifdef MODEL_BATCHES
#define NAME "batches"
#define ROWS 10
#define LANE_BYTES 64
#define ARENA_BYTES (ROWS * LANE_BYTES)
#define NUM_CALLS 2
#define POISON (-777.0f) /* in x[row][0]: "sum" fails */

static const int64_t most[] = {ROWS, 4}, one[] = {1}, most_sums[] = {ROWS, 2};
static const char *const no_dims[] = {NULL, NULL};
#ifdef BATCH_DIM
static const int64_t rows[] = {PACKAGER_DIM_SYMBOLIC, 4}, sums[] = {PACKAGER_DIM_SYMBOLIC, 2};
static const int64_t least[] = {1, 4}, least_sums[] = {1, 2};
static const char *const row_dims[] = {"n", NULL};
static const pk_dim_t dims[] = {{"n", 1, ROWS, 0, 0}};
static void shapes(const int64_t *values, int64_t *extents) {
  const int64_t all[] = {values[0], 4, 1, values[0], 2};
  for (int i = 0; i < 5; ++i) extents[i] = all[i];
}
#define NUM_DIMS 1
#define DIMS dims
#define SHAPES shapes
#define TOTAL_EXTENTS 5
#else
#define rows most
#define least most
#define sums most_sums
#define least_sums most_sums
#define row_dims no_dims
#define BATCHES ROWS
#endif
static const packager_tensor_info_t inputs[] = {{"x", {kDLFloat, 32, 1}, 2, rows, least, most, row_dims},
                                                {"shift", {kDLFloat, 32, 1}, 1, one, one, one, no_dims}};
static const packager_tensor_info_t outputs[] = {{"y", {kDLFloat, 32, 1}, 2, sums, least_sums, most_sums, row_dims}};

static int32_t square(const void *arguments, int64_t begin, int64_t end) {
  const pk_call_t *call = arguments;
  const float *x = (const float *)((uint8_t *)call->inputs[0] + call->batch * 16);
  for (int64_t i = begin; i < end; ++i) ((float *)call->arena)[i] = x[i] * x[i];
  return 0;
}

static int32_t run(const pk_call_t *call) {
  const float *squares = (const float *)call->arena, *x = (const float *)call->inputs[0] + call->batch * 4;
  float *y = (float *)((uint8_t *)call->outputs[0] + call->batch * 8);
  if (pk_for(call, square, call, 4)) return 1;
  pk_returned(call, 1);
  if (x[0] == POISON) return 2;
  y[0] = squares[0] + squares[1] + squares[2] + squares[3] + *(const float *)call->inputs[1];
  y[1] = (float)call->threads;
  pk_returned(call, 2);
  return 0;
}
static const char call_names[] = "square\0sum\0";
#endif

#ifdef MODEL_CONSTANTS
/* y[2,423] is every slot, byte by byte, twice: when the run begins, and after it has spun for pause[0] rounds. */
#define NAME "constants"
#define ARENA_BYTES 64
#define EXTERNAL NULL

typedef struct {
  _Alignas(64) float w[24];
  _Alignas(64) float permuted[24];
  _Alignas(64) float packed[24];
  _Alignas(64) uint16_t half[3];
  _Alignas(64) int8_t byte[9];
  _Alignas(64) double scalar;
  _Alignas(64) float computed[4];
} data_t;
static const data_t data = {
    .w = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23},
    .permuted = {0, 6, 12, 18, 1, 7, 13, 19, 2, 8, 14, 20, 3, 9, 15, 21, 4, 10, 16, 22, 5, 11, 17, 23},
    .packed = {0, 1, 6, 7, 12, 13, 18, 19, 2, 3, 8, 9, 14, 15, 20, 21, 4, 5, 10, 11, 16, 17, 22, 23},
    .half = {4, 2, 0},
    .byte = {0, 3, 6, 1, 4, 7, 2, 5, 8},
    .scalar = 0.5,
    .computed = {9, 9, 9, 9},
};
#define EMBEDDED (const uint8_t *)&data
#define CONSTANT_BYTES sizeof data

static const int64_t matrix[] = {4, 6}, five[] = {5}, square[] = {3, 3}, none[] = {0};
static const packager_constant_info_t constants[] = {
    {"w", {kDLFloat, 32, 1}, 2, matrix},    {"twin", {kDLFloat, 32, 1}, 2, matrix}, /* the same data as w */
    {"half", {kDLFloat, 16, 1}, 1, five}, /* read backwards, every other element */
    {"byte", {kDLInt, 8, 1}, 2, square},  /* read transposed */
    {"scalar", {kDLFloat, 64, 1}, 0, NULL}, {"empty", {kDLFloat, 32, 1}, 1, none},
};
/* clang-format off */
static const int64_t forms[] = {
    24, 1,
    6, 4, 1, 6,
    3, 4, 2, 2, 6, 1,
    3, -2,
    3, 3, 1, 3,
    1, 1,
    0, 1,
};
/* clang-format on */
static const pk_slot_t slots[] = {
    {offsetof(data_t, w), 96, 0, 1, 0, 0},         {offsetof(data_t, permuted), 96, 0, 2, 2, 0},
    {offsetof(data_t, packed), 96, 0, 3, 6, 0},    {offsetof(data_t, w), 96, 1, 1, 0, 0},
    {offsetof(data_t, half), 6, 2, 1, 12, 4},      {offsetof(data_t, byte), 9, 3, 2, 14, 0},
    {offsetof(data_t, scalar), 8, 4, 1, 18, 0},    {offsetof(data_t, computed), 0, 5, 1, 20, 0},
    {offsetof(data_t, computed), 16, -1, 0, 0, 0},
};
#define NUM_CONSTANTS COUNT(constants)
#define NUM_SLOTS COUNT(slots)
#define CONSTANTS constants
#define SLOTS slots
#define FORMS forms

static const int64_t one[] = {1}, result[] = {2, 423};
static const char *const no_dims[] = {NULL, NULL};
static const packager_tensor_info_t inputs[] = {{"pause", {kDLInt, 32, 1}, 1, one, one, one, no_dims}};
static const packager_tensor_info_t outputs[] = {{"y", {kDLUInt, 8, 1}, 2, result, result, result, no_dims}};

static uint8_t *copy_slots(const pk_call_t *call, uint8_t *y) {
  for (int i = 0; i < NUM_SLOTS; ++i) {
    for (uint64_t j = 0; j < slots[i].nbytes; ++j) *y++ = call->constants[i][j];
  }
  return y;
}

static int32_t run(const pk_call_t *call) {
  uint8_t *y = copy_slots(call, call->outputs[0]);
  for (volatile int32_t i = 0; i < *(const int32_t *)call->inputs[0];) ++i;
  copy_slots(call, y);
  pk_returned(call, 1);
  return 0;
}
static const char call_names[] = "copy\0";
#endif

#ifdef MODEL_STATES
#define NAME "states"
#define ARENA_BYTES 20 /* the states begin at the next multiple of 64 */
#define EXTERNAL NULL
#define NUM_CONSTANTS 0
#define CONSTANTS NULL
#define FORMS NULL
_Alignas(64) static const double data[] = {9, 9, 9, 9, 9, 9, 9, 9, 3, 5};
#define EMBEDDED (const uint8_t *)data
#define CONSTANT_BYTES sizeof data
static const pk_slot_t slots[] = {{.offset = 64, .nbytes = 16, .source = -1}};
#define NUM_SLOTS COUNT(slots)
#define SLOTS slots

static const int64_t four[] = {4}, two[] = {2}, none[] = {0};
static const char *const no_dims[] = {NULL};
static const packager_tensor_info_t inputs[] = {{"x", {kDLFloat, 32, 1}, 1, four, four, four, no_dims}};
static const packager_tensor_info_t outputs[] = {{"y", {kDLFloat, 32, 1}, 1, four, four, four, no_dims}};
static const packager_tensor_info_t states[] = {{"sum", {kDLFloat, 32, 1}, 1, four, four, four, no_dims},
                                                {"scale", {kDLFloat, 64, 1}, 1, two, two, two, no_dims},
                                                {"empty", {kDLFloat, 32, 1}, 1, none, none, none, no_dims}};
static const pk_state_t state_places[] = {{0, 16, -1}, {64, 16, 0}, {128, 0, -1}};
#define STATE_BYTES 128
#define NUM_STATES COUNT(states)
#define STATES states
#define STATE_PLACES state_places

static int32_t run(const pk_call_t *call) {
  float *sum = (float *)call->states, *copy = (float *)call->arena;
  double *scale = (double *)(call->states + 64);
  if ((uintptr_t)call->states % PK_ALIGNMENT) return 1;
  for (int i = 0; i < 5; ++i) copy[i] = i < 4 ? sum[i] : 1; /* to the end of the arena */
  for (int i = 0; i < 4; ++i) sum[i] += ((const float *)call->inputs[0])[i];
  for (int i = 0; i < 4; ++i) ((float *)call->outputs[0])[i] = copy[i];
  for (int i = 0; i < 2; ++i) scale[i] *= 2;
  pk_returned(call, 1);
  return 0;
}
static const char call_names[] = "add\0";

static const int64_t rows[] = {PACKAGER_DIM_SYMBOLIC, 2}, rows_min[] = {1, 2}, rows_max[] = {6, 2}, one[] = {1};
static const char *const rows_dims[] = {"n", NULL};
static const packager_tensor_info_t tell_inputs[] = {
    {"rows", {kDLFloat, 32, 1}, 2, rows, rows_min, rows_max, rows_dims}};
static const packager_tensor_info_t tell_outputs[] = {
    {"first", {kDLFloat, 32, 1}, 1, rows, rows_min, rows_max, rows_dims},
    {"last", {kDLFloat, 32, 1}, 1, one, one, one, no_dims}};
static const pk_dim_t tell_dims[] = {{"n", 1, 6, 0, 0}};

static void tell_shapes(const int64_t *values, int64_t *extents) {
  const int64_t all[] = {values[0], 2, values[0], 1};
  for (int i = 0; i < 4; ++i) extents[i] = all[i];
}

static int32_t tell(const pk_call_t *call) {
  const float *x = call->inputs[0];
  float *first = call->outputs[0];
  for (int64_t i = 0; i < call->dims[0]; ++i) {
    if (x[2 * i] < 0) return 2;
    first[i] = x[2 * i] + ((const float *)call->states)[0];
  }
  pk_returned(call, 1);
  *(float *)call->outputs[1] = x[2 * call->dims[0] - 1];
  pk_returned(call, 2);
  return 0;
}
static pk_run_fn *const tell_runs[] = {tell};
#define MORE_ENTRIES                   \
  {.num_inputs = COUNT(tell_inputs),   \
   .num_outputs = COUNT(tell_outputs), \
   .num_dims = COUNT(tell_dims),       \
   .total_extents = 4,                 \
   .inputs = tell_inputs,              \
   .outputs = tell_outputs,            \
   .dims = tell_dims,                  \
   .shapes = tell_shapes,              \
   .runs = tell_runs,                  \
   .call_names = "gather\0tell\0",     \
   .num_calls = 2},
#endif

#ifndef MORE_ENTRIES
#define MORE_ENTRIES
#endif

#ifndef NUM_DIMS
#define NUM_DIMS 0
#define DIMS NULL
#define SHAPES NULL
#define TOTAL_EXTENTS 0
#endif

#ifndef CONSTANT_BYTES
#define EMBEDDED NULL
#define CONSTANT_BYTES 0
#define EXTERNAL NULL
#define NUM_CONSTANTS 0
#define NUM_SLOTS 0
#define CONSTANTS NULL
#define SLOTS NULL
#define FORMS NULL
#endif

#ifndef STATES
#define NUM_STATES 0
#define STATE_BYTES 0
#define STATES NULL
#define STATE_PLACES NULL
#endif

#ifndef RUNS
#define RUNS run
#endif

#ifndef NUM_CALLS
#define NUM_CALLS 1
#endif

#ifndef BATCHES
#define BATCHES 0
#endif
#ifndef LANE_BYTES
#define LANE_BYTES 0
#endif
#ifndef BATCH_DIM
#define BATCH_DIM 0
#endif

#ifndef LEVELS
#define NUM_LEVELS 0
#define LEVELS NULL
#endif

static pk_run_fn *const runs[] = {RUNS};
static const pk_entry_t entries[] = {{
                                         .num_inputs = COUNT(inputs),
                                         .num_outputs = COUNT(outputs),
                                         .num_dims = NUM_DIMS,
                                         .total_extents = TOTAL_EXTENTS,
                                         .inputs = inputs,
                                         .outputs = outputs,
                                         .dims = DIMS,
                                         .shapes = SHAPES,
                                         .runs = runs,
                                         .call_names = call_names,
                                         .num_calls = NUM_CALLS,
                                         .batches = BATCHES,
                                         .batch_dim = BATCH_DIM,
                                         .lane_bytes = LANE_BYTES,
                                     },
                                     MORE_ENTRIES};

const pk_model_t pk_model = {
    .num_entries = COUNT(entries),
    .entries = entries,
    .name = NAME,
    .manifest = manifest,
    .manifest_bytes = sizeof manifest - 1,
    .arena_bytes = ARENA_BYTES,
    .constant_bytes = CONSTANT_BYTES,
    .embedded_constants = EMBEDDED,
    .external = EXTERNAL,
    .cpu_features = features,
    .num_constants = NUM_CONSTANTS,
    .num_slots = NUM_SLOTS,
    .constants = CONSTANTS,
    .slots = SLOTS,
    .forms = FORMS,
    .num_levels = NUM_LEVELS,
    .levels = LEVELS,
    .num_selected = NUM_SELECTED,
    .selection = SELECTED,
    .candidates = CANDIDATES,
    .num_states = NUM_STATES,
    .state_bytes = STATE_BYTES,
    .states = STATES,
    .state_places = STATE_PLACES,
    .loaded = LOADED,
};

static const packager_bundle_v1_t bundle;
#ifdef MODEL_STATES
static const packager_bundle_v1_t tell_table;
static const packager_bundle_v1_t *const tables[] = {&bundle, &tell_table};
#else
static const packager_bundle_v1_t *const tables[] = {&bundle};
#endif
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
    .num_constants = NUM_CONSTANTS,
    .constants = CONSTANTS,
    .session_set_constants = pk_session_set_constants,
    .session_stream = pk_session_stream,
    .session_profile = pk_session_profile,
    .session_cpu_level = pk_session_cpu_level,
    .state_bytes = STATE_BYTES,
    .num_states = NUM_STATES,
    .states = STATES,
    .session_get_state = pk_session_get_state,
    .session_set_state = pk_session_set_state,
    .session_reset = pk_session_reset,
    .num_entries = COUNT(tables),
    .entries = tables,
};

#ifdef MODEL_STATES
static int32_t tell_run(packager_session_t *session, const DLTensor *const *given, int32_t num_inputs,
                        DLTensor *const *results, int32_t num_outputs, void *stream) {
  return pk_entry_run(session, &entries[1], given, num_inputs, results, num_outputs, stream);
}
static int32_t tell_output_shape(packager_session_t *session, const DLTensor *const *given, int32_t num_inputs,
                                 int32_t output, int64_t *shape) {
  return pk_entry_output_shape(session, &entries[1], given, num_inputs, output, shape);
}
static int32_t tell_profile(packager_session_t *session, const DLTensor *const *given, int32_t num_inputs,
                            DLTensor *const *results, int32_t num_outputs, packager_profile_fn *report, void *context) {
  return pk_entry_profile(session, &entries[1], given, num_inputs, results, num_outputs, report, context);
}

static const packager_bundle_v1_t tell_table = {
    .struct_size = sizeof tell_table,
    .abi_version = PACKAGER_ABI_VERSION,
    .name = "tell",
    .manifest = manifest,
    .manifest_size = sizeof manifest - 1,
    .arena_bytes = ARENA_BYTES,
    .constant_bytes = CONSTANT_BYTES,
    .num_inputs = COUNT(tell_inputs),
    .num_outputs = COUNT(tell_outputs),
    .inputs = tell_inputs,
    .outputs = tell_outputs,
    .set_threads = pk_set_threads,
    .session_create = pk_session_create,
    .session_run = tell_run,
    .session_output_shape = tell_output_shape,
    .session_destroy = pk_session_destroy,
    .session_error = pk_session_error,
    .thread_error = pk_thread_error,
    .status_name = pk_status_name,
    .num_constants = NUM_CONSTANTS,
    .constants = CONSTANTS,
    .session_set_constants = pk_session_set_constants,
    .session_stream = pk_session_stream,
    .session_profile = tell_profile,
    .session_cpu_level = pk_session_cpu_level,
    .state_bytes = STATE_BYTES,
    .num_states = NUM_STATES,
    .states = STATES,
    .session_get_state = pk_session_get_state,
    .session_set_state = pk_session_set_state,
    .session_reset = pk_session_reset,
    .num_entries = COUNT(tables),
    .entries = tables,
};
#endif

__attribute__((visibility("default"))) const packager_bundle_v1_t *ENTRY(void);
const packager_bundle_v1_t *ENTRY(void) { return &bundle; }
