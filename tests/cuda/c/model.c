/* A hand-written CUDA model in the form that the entrypoint template renders: for x[n,4] in 0..4096,
 *   call 1, scale: arena = x * w            kernel 0, of the first module
 *   call 2, add:   y = arena + b            kernel 1, of the second module, with much shared memory
 *   call 3, keep:  echo = x                 a copy
 * which nothing computes but for the copy: see ../recorder. scale fails by itself where n is 13. Macros:
 *   -DMODEL_STATIC           n is 8
 *   -DKERNELS='"add:24"'     the second module's text
 *   -DADD_BLOCK=1            threads of a block of add
 *   -DARENA_BYTES=1024 -DCONSTANT_BYTES=...  more than is needed
 *   -DDRIVER=13000           the least version of the driver
 *   -DFLAGS=0                of launches
 *   -DFIRST_ARCH=0 -DSECOND_ARCH=0  of the modules
 *   -DMODEL_COUNTED          b of add are the session's counters
 *   -DMODEL_FILLED           add is filled, see below, and there is
 *     call 4, again: y = y + b   which is filled, too
 *   -DMODEL_STATES           there are two states, last[4], first zeros, and fixed[4], first w, and
 *     call 4, tell:   echo[0] = last
 *     call 5, hold:   last = x[0]
 *                            and a second entry, "swap":
 *     call 1, tell:   old[4] = last
 *     call 2, hold:   last = new[4]
 *   -DMODEL_SEGMENTS         the run is split, see split.h
 *   -DMODEL_OPAQUE           add is what a library does, see opaque.h, and there are
 *     call 4, again: y = y + b   which is, too
 *     call 5, scale: arena = x * w
 *   -DARGUMENTS=...          bytes of its arguments, where that is not their size */
#include <string.h>

#include "entrypoint.h"

#ifndef KERNELS
#ifdef MODEL_FILLED
#define KERNELS "recorded unused:8 add:96"
#else
#define KERNELS "recorded unused:8 add:32"
#endif
#endif
#ifndef ADD_BLOCK
#define ADD_BLOCK 128
#endif
#ifndef ARENA_BYTES
#define ARENA_BYTES (4096 * 16)
#endif
#ifndef CONSTANT_BYTES
#define CONSTANT_BYTES 80
#endif
#ifndef DRIVER
#define DRIVER 13000
#endif
#ifndef FLAGS
#define FLAGS 0
#endif
#ifndef FIRST_ARCH
#define FIRST_ARCH 0
#endif
#ifndef SECOND_ARCH
#define SECOND_ARCH 0
#endif
#define COUNT(array) (int32_t)(sizeof(array) / sizeof *(array))

static const char manifest[] = "{}  ";
static const char *const features[] = {NULL};

static const uint32_t first_shared[] = {0}, second_shared[] = {0, 100000};
static const pk_cuda_module_t first_module = {"recorded scale:32", "scale", first_shared, 1, FIRST_ARCH};
static const pk_cuda_module_t second_module = {KERNELS, "unused\0add", second_shared, 2, SECOND_ARCH};
static const pk_cuda_module_t *const modules[] = {&first_module, &second_module};
#ifdef MODEL_OPAQUE
#define OPAQUE 1
#else
#define OPAQUE 0
#endif
static const pk_cuda_model_t cuda_model = {modules, COUNT(modules), DRIVER, "sm_80, sm_90a, compute_80", OPAQUE};
enum { FIRST_MODULE = 0, SECOND_MODULE = 1 };

typedef struct {
  void *y;
  const void *a, *b;
  int64_t n;
} arguments_t;

static int32_t scale(pk_cuda_t *cuda, void *y, const void *x, const void *w, int64_t n) {
  if (n == 13) return 7;
  const arguments_t arguments = {y, x, w, n};
  const pk_cuda_launch_t launch = {{(uint32_t)((n + 63) / 64), 1, 1}, {256, 1, 1}, 0, FLAGS};
  return pk_cuda_launch(cuda, FIRST_MODULE, &launch, &arguments, sizeof arguments);
}

#ifdef MODEL_FILLED
#include "filled.h"
#elif defined MODEL_OPAQUE
#include "opaque.h"
#else
static int32_t add(pk_cuda_t *cuda, void *y, const void *a, const void *b, int64_t n) {
  const arguments_t arguments = {y, a, b, n};
  const pk_cuda_launch_t launch = {{(uint32_t)n, 1, 1}, {ADD_BLOCK, 1, 1}, 100000, FLAGS};
  return pk_cuda_launch(cuda, SECOND_MODULE + 1, &launch, &arguments, sizeof arguments);
}
#endif

#ifdef MODEL_SEGMENTS
#include "split.h"
#else
static int32_t run(const pk_call_t *call) {
#ifdef MODEL_STATIC
  const int64_t n = 8;
#else
  const int64_t n = call->dims[0];
#endif
  pk_cuda_step(call->cuda, 1);
  if (scale(call->cuda, call->arena, call->inputs[0], call->constants[0], n)) return 1;
  pk_cuda_step(call->cuda, 2);
#ifdef MODEL_COUNTED
  void *b;
  if (pk_cuda_counters(call->cuda, &b)) return 2;
#else
  const void *b = call->constants[1];
#endif
  if (add(call->cuda, call->outputs[0], call->arena, b, n)) return 2;
  pk_cuda_step(call->cuda, 3);
  if (pk_cuda_copy(call->cuda, call->outputs[1], call->inputs[0], (uint64_t)n * 16)) return 3;
#if defined MODEL_FILLED || defined MODEL_OPAQUE
  pk_cuda_step(call->cuda, 4);
  if (add(call->cuda, call->outputs[0], call->outputs[0], call->constants[1], n)) return 4;
#endif
#ifdef MODEL_OPAQUE
  pk_cuda_step(call->cuda, 5);
  if (scale(call->cuda, call->arena, call->inputs[0], call->constants[0], n)) return 5;
#endif
#ifdef MODEL_STATES
  pk_cuda_step(call->cuda, 4);
  if (pk_cuda_copy(call->cuda, call->outputs[1], call->states, 16)) return 4;
  pk_cuda_step(call->cuda, 5);
  if (pk_cuda_copy(call->cuda, call->states, call->inputs[0], 16)) return 5;
#endif
  return 0;
}
#endif
#ifdef MODEL_SEGMENTS
static const char call_names[] = "scale\0add\0keep\0scale\0add\0keep\0scale\0keep";
#elif defined MODEL_STATES
static const char call_names[] = "scale\0add\0keep\0tell\0hold";
#else
static const char call_names[] = "scale\0add\0keep\0again\0scale";
#endif

#ifdef MODEL_STATIC
static const int64_t matrix[] = {8, 4}, least[] = {8, 4}, most[] = {8, 4};
static const char *const names[] = {NULL, NULL};
#define NUM_DIMS 0
#define DIMS NULL
#define SHAPES NULL
#define TOTAL_EXTENTS 0
#else
static const int64_t matrix[] = {PACKAGER_DIM_SYMBOLIC, 4}, least[] = {0, 4}, most[] = {4096, 4};
static const char *const names[] = {"n", NULL};
static const pk_dim_t dims[] = {{"n", 0, 4096, 0, 0}};
#define NUM_DIMS COUNT(dims)
#define DIMS dims
#define SHAPES shapes
#define TOTAL_EXTENTS 6

static void shapes(const int64_t *values, int64_t *extents) {
  for (int i = 0; i < TOTAL_EXTENTS; i += 2) {
    extents[i] = values[0];
    extents[i + 1] = 4;
  }
}
#endif

static const packager_tensor_info_t inputs[] = {{"x", {kDLFloat, 32, 1}, 2, matrix, least, most, names}};
static const packager_tensor_info_t outputs[] = {{"y", {kDLFloat, 32, 1}, 2, matrix, least, most, names},
                                                 {"echo", {kDLFloat, 32, 1}, 2, matrix, least, most, names}};

#ifdef WEIGHTS_FILE
static const uint8_t header[] = {
#include "weights_header.inc"
};
static const pk_external_weights_t external = {WEIGHTS_FILE, sizeof header + CONSTANT_BYTES, sizeof header, header};
#define EMBEDDED NULL
#define EXTERNAL &external
#else
_Alignas(64) static const float weights[(CONSTANT_BYTES) / 4] = {1, 2, 3, 4, [16] = 5, 6, 7, 8};
#define EMBEDDED (const uint8_t *)weights
#define EXTERNAL NULL
#endif

static const int64_t four[] = {4}, square[] = {2, 2}, forms[] = {4, 1, 2, 2, 1, 2};
static const packager_constant_info_t constants[] = {{"w", {kDLFloat, 32, 1}, 1, four},
                                                     {"b", {kDLFloat, 32, 1}, 2, square}};
static const pk_slot_t slots[] = {
    {.offset = 0, .nbytes = 16, .source = 0, .ndim = 1, .form = 0, .first = 0},
    {.offset = 64, .nbytes = 16, .source = 1, .ndim = 2, .form = 2, .first = 0}, /* transposed */
};

#ifdef MODEL_STATES
static const char *const no_dims[] = {NULL};
static const packager_tensor_info_t states[] = {{"last", {kDLFloat, 32, 1}, 1, four, four, four, no_dims},
                                                {"fixed", {kDLFloat, 32, 1}, 1, four, four, four, no_dims}};
static const pk_state_t state_places[] = {{0, 16, -1}, {64, 16, 0}};
#define STATE_BYTES 128
#define NUM_STATES COUNT(states)
#define STATES states
#define STATE_PLACES state_places

static const packager_tensor_info_t swap_inputs[] = {{"new", {kDLFloat, 32, 1}, 1, four, four, four, no_dims}};
static const packager_tensor_info_t swap_outputs[] = {{"old", {kDLFloat, 32, 1}, 1, four, four, four, no_dims}};
static int32_t swap(const pk_call_t *call) {
  pk_cuda_step(call->cuda, 1);
  if (pk_cuda_copy(call->cuda, call->outputs[0], call->states, 16)) return 1;
  pk_cuda_step(call->cuda, 2);
  if (pk_cuda_copy(call->cuda, call->states, call->inputs[0], 16)) return 2;
  return 0;
}
static pk_run_fn *const swap_runs[] = {swap};
#define MORE_ENTRIES                   \
  {.num_inputs = COUNT(swap_inputs),   \
   .num_outputs = COUNT(swap_outputs), \
   .inputs = swap_inputs,              \
   .outputs = swap_outputs,            \
   .runs = swap_runs,                  \
   .call_names = "tell\0hold\0"},
#else
#define MORE_ENTRIES
#define STATE_BYTES 0
#define NUM_STATES 0
#define STATES NULL
#define STATE_PLACES NULL
#endif

static pk_run_fn *const runs[] = {run};
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
#ifdef MODEL_SEGMENTS
                                         .num_extents = COUNT(computed),
                                         .extents = computed,
                                         .room = room,
                                         .num_segments = 4,
#endif
                                     },
                                     MORE_ENTRIES};

const pk_model_t pk_model = {
    .num_entries = COUNT(entries),
    .entries = entries,
    .name = "cuda",
    .manifest = manifest,
    .manifest_bytes = sizeof manifest - 1,
    .arena_bytes = ARENA_BYTES,
    .constant_bytes = CONSTANT_BYTES,
    .embedded_constants = EMBEDDED,
    .external = EXTERNAL,
    .cpu_features = features,
    .num_constants = COUNT(constants),
    .num_slots = COUNT(slots),
    .constants = constants,
    .slots = slots,
    .forms = forms,
    .cuda = &cuda_model,
    .num_states = NUM_STATES,
    .state_bytes = STATE_BYTES,
    .states = STATES,
    .state_places = STATE_PLACES,
};

static const packager_bundle_v1_t bundle;
#ifdef MODEL_STATES
static const packager_bundle_v1_t swap_table;
static const packager_bundle_v1_t *const tables[] = {&bundle, &swap_table};
#else
static const packager_bundle_v1_t *const tables[] = {&bundle};
#endif
static const packager_bundle_v1_t bundle = {
    .struct_size = sizeof bundle,
    .abi_version = PACKAGER_ABI_VERSION,
    .name = "cuda",
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
    .num_constants = COUNT(constants),
    .constants = constants,
    .session_set_constants = pk_session_set_constants,
    .session_stream = pk_session_stream,
    .session_profile = pk_session_profile,
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
static int32_t swap_run(packager_session_t *session, const DLTensor *const *given, int32_t num_inputs,
                        DLTensor *const *results, int32_t num_outputs, void *stream) {
  return pk_entry_run(session, &entries[1], given, num_inputs, results, num_outputs, stream);
}

static const packager_bundle_v1_t swap_table = {
    .struct_size = sizeof swap_table,
    .abi_version = PACKAGER_ABI_VERSION,
    .name = "swap",
    .manifest = manifest,
    .manifest_size = sizeof manifest - 1,
    .arena_bytes = ARENA_BYTES,
    .constant_bytes = CONSTANT_BYTES,
    .num_inputs = COUNT(swap_inputs),
    .num_outputs = COUNT(swap_outputs),
    .inputs = swap_inputs,
    .outputs = swap_outputs,
    .set_threads = pk_set_threads,
    .session_create = pk_session_create,
    .session_run = swap_run,
    .session_destroy = pk_session_destroy,
    .session_error = pk_session_error,
    .thread_error = pk_thread_error,
    .status_name = pk_status_name,
    .num_constants = COUNT(constants),
    .constants = constants,
    .session_set_constants = pk_session_set_constants,
    .session_stream = pk_session_stream,
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

__attribute__((visibility("default"))) const packager_bundle_v1_t *packager_bundle_v1(void);
const packager_bundle_v1_t *packager_bundle_v1(void) { return &bundle; }
