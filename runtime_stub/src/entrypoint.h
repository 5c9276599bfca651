/* entrypoint.h: interface between the rendered entrypoint and the runtime. Not part of the ABI. */
#ifndef PK_ENTRYPOINT_H_
#define PK_ENTRYPOINT_H_

#include <stddef.h>

#include "packager.h"
#include "packager_cuda.h"
#include "packager_library.h"

#define PK_ALIGNMENT 64 /* of the arena, of each tensor in it and of each embedded constant, in bytes */

/* A symbolic dim: its bounds and the input axis that it is read from. */
typedef struct {
  const char *name;
  int64_t min;
  int64_t max;
  int32_t input;
  int32_t axis;
} pk_dim_t;

/* Constants kept in a file beside the bundle. */
typedef struct {
  const char *file_name; /* in the folder of the bundle */
  uint64_t file_bytes;   /* exact size of the file */
  uint64_t header_bytes; /* length prefix and JSON header, which are also where the data starts */
  const uint8_t *header; /* [header_bytes], which the file must start with; it carries the data's SHA-256 */
} pk_external_weights_t;

/* A constant as the code sees it: pointer number i of pk_call_t.constants. */
typedef struct {
  uint64_t offset; /* of the bundle's own data, into the constants */
  uint64_t nbytes;
  int32_t source; /* the model's constant that it follows when that is swapped; -1: it never changes */
  /* How it reads the source, element by element: ndim extents and then ndim strides from pk_model.forms[form] on, from
   * element `first` on. */
  int32_t ndim;
  int64_t form;
  int64_t first;
} pk_slot_t;

/* A tensor that a session keeps between its runs. */
typedef struct {
  uint64_t offset; /* into pk_call_t.states */
  uint64_t nbytes;
  int32_t slot; /* of the bundle's own data that it begins with; -1: zeros */
} pk_state_t;

/* The CUDA part of a model. */
typedef struct {
  const pk_cuda_module_t *const *modules; /* [num_modules]; kernels are numbered through, in this order */
  int32_t num_modules;
  int32_t driver;   /* minimum that cuDriverGetVersion must return: 13000 for CUDA 13.0 */
  const char *code; /* what the modules hold, for messages: "sm_80, sm_90a, compute_80" */
  int32_t opaque;   /* functions may call pk_cuda_enqueue(): sessions prepare it */
} pk_cuda_model_t;

/* A library that is called by an alternative of a choice of the selection, or, with choice -1, by every session. */
typedef struct {
  int32_t choice;
  int32_t alternative;
  int32_t library;
} pk_library_use_t;

/* The shared libraries that sessions open. */
typedef struct {
  /* pk_open_libraries; bundles without libraries are linked without it. */
  int32_t (*open)(const packager_session_options_t *options, uint8_t *selection);
  /* pk_avoid_library */
  int32_t (*avoid)(const pk_library_t *library, const packager_session_options_t *options, uint8_t *selection);
  const char *texts;                    /* the section .packager.libraries: what is opened */
  const pk_library_t *const *libraries; /* [num_libraries] in the order of the texts */
  const pk_library_use_t *uses;         /* [num_uses] */
  const int32_t *fallbacks;             /* for each choice the alternative without libraries; -1: there is none */
  int32_t num_libraries;
  int32_t num_uses;
} pk_libraries_t;

/* How one run executes its parallel loops; owned by the session. */
typedef struct pk_executor pk_executor_t;

/* Everything that one run needs; the entrypoint reads it, the runtime fills it. */
typedef struct {
  uint8_t *arena;                  /* PK_ALIGNMENT-aligned, pk_model.arena_bytes long */
  uint8_t *states;                 /* PK_ALIGNMENT-aligned, pk_model.state_bytes long */
  const uint8_t *const *constants; /* [num_slots] */
  void *const *inputs;             /* [num_inputs] data pointers, byte offsets applied */
  void *const *outputs;            /* [num_outputs] */
  const int64_t *dims;             /* [num_dims] values of the symbolic dims */
  int64_t *extents;                /* [num_extents] the run-time extents that the run has read */
  int64_t *refused;                /* [3] of a run that ended with PK_OUTSIDE or PK_BROKEN: see there */
  pk_cuda_t *cuda; /* NULL in a CPU bundle; else arena, states, constants, inputs and outputs are device memory */
  const uint8_t *selection; /* [num_selected] candidates to use */
  const pk_executor_t *executor;
  int32_t threads; /* 1: parallel loops run in this thread and the executor is not touched */
  int64_t *times;  /* NULL unless the run is measured: [calls + 1] when it began, when each call returned */
  int64_t batch;   /* number of the micro-batch, of an entry that has such */
} pk_call_t;

/* A CPU level that the bundle has code for. */
typedef struct {
  const char *name;                /* as the Target has it: "x86-64-v4" */
  const char *const *cpu_features; /* what its code uses beside pk_model.cpu_features, NULL-terminated */
} pk_level_t;

/* Calls every primitive function in order. Returns 0, the 1-based index of the call that failed, or one of these. */
typedef int32_t pk_run_fn(const pk_call_t *call);
#define PK_OUTSIDE (-2) /* refused: index of a run-time extent, its value, its upper bound; the lower one is 0 */
#define PK_BROKEN (-3)  /* refused: index of a condition that does not hold, its left and its right side */
#define PK_FAILED (-4)  /* outside of a primitive function: the message is there already */

/* A bucketed dim: the model has a variant for each of its sizes. */
typedef struct {
  const char *name;
  const int64_t *sizes; /* [num_sizes] rising */
  int32_t num_sizes;
  int32_t input; /* where it is read from */
  int32_t axis;
} pk_bucketed_dim_t;

/* One of the models of a bundle. They share everything that pk_model has. */
typedef struct pk_entry pk_entry_t;
struct pk_entry {
  int32_t num_inputs;
  int32_t num_outputs;
  int32_t num_dims;
  int32_t total_extents; /* how many extents `shapes` writes */
  const packager_tensor_info_t *inputs;
  const packager_tensor_info_t *outputs;
  const pk_dim_t *dims;
  /* Writes all extents of all inputs, then of all outputs, for these dims and, behind them, run-time extents. NULL when
   * there are neither. */
  void (*shapes)(const int64_t *dims, int64_t *extents);
  int32_t num_extents;        /* run-time extents, which a run reads from what it computes */
  const char *const *extents; /* their names and nodes, for messages */
  /* Writes what `shapes` writes, each extent the largest that a run with these dims may have. NULL when there are no
   * run-time extents. */
  void (*room)(const int64_t *dims, int64_t *extents);
  /* Checks the model's conditions on the dims beyond their bounds: returns 0, or the 1-based number of a condition that
   * does not hold, and the values of its two sides. NULL when there is none. */
  int32_t (*check)(const int64_t *dims, int64_t values[2]);
  const char *const *conditions; /* their texts */
  pk_run_fn *const *runs;        /* [num_levels] of the levels, the least first; one where there are none */
  const char *call_names; /* of the calls of a run: zero-terminated texts, one after the other, then an empty one */
  int32_t num_calls;      /* of a run */
  int32_t num_loops;      /* begins and ends of loops in which the host has a part: it reads whether to go on */
  int32_t num_segments;   /* CUDA only: parts of a run that are graphs; 0: a run is one as a whole */
  int64_t batches;        /* micro-batches: how often a run calls everything, each time for a part; 0: see below */
  int32_t batch_dim;      /* the 1-based number of the dim that is the number of micro-batches; 0: there is none */
  uint64_t lane_bytes;    /* memory in the arena for one of them */
  /* A model with bucketed dims is run by its variants alone, one for every combination of sizes, that of the last dim
   * changing fastest; above it has inputs and outputs. */
  const pk_bucketed_dim_t *bucketed; /* [num_bucketed] */
  const pk_entry_t *variants;        /* [num_variants]; NULL where there are no bucketed dims */
  int32_t num_bucketed;
  int32_t num_variants;
};

/* What the rendered entrypoint provides: one constant, pk_model. */
typedef struct {
  const char *name;
  const char *manifest; /* JSON, padded with blanks to manifest_bytes; written when the bundle is sealed */
  uint64_t manifest_bytes;
  uint64_t arena_bytes;
  uint64_t constant_bytes;
  const uint8_t *embedded_constants;     /* NULL when there are none or they are external */
  const pk_external_weights_t *external; /* NULL unless the constants are in a file */
  const char *const
      *cpu_features;     /* of all code but that of better levels; names that cpu_features.c knows, then NULL */
  int32_t num_entries;   /* at least 1 */
  int32_t num_constants; /* of the models' own */
  int32_t num_slots;
  const pk_entry_t *entries;
  const packager_constant_info_t *constants;
  const pk_slot_t *slots;
  const int64_t *forms;
  int32_t num_levels;          /* 0 in a CUDA bundle */
  const pk_level_t *levels;    /* [num_levels] the least first */
  const pk_cuda_model_t *cuda; /* NULL for a CPU bundle */
  int32_t num_selected;        /* functions that have candidates */
  const uint8_t *selection;    /* [num_selected] which one is used, unless a session says otherwise */
  const uint8_t *candidates;   /* [num_selected] how many there are */
  int32_t num_states;
  uint64_t state_bytes;
  const packager_tensor_info_t *states; /* [num_states] */
  const pk_state_t *state_places;       /* [num_states] */
  const pk_libraries_t *loaded;         /* NULL: none */
} pk_model_t;

extern const pk_model_t pk_model;

/* Records why a run ends. */
static inline __attribute__((unused, cold)) int32_t pk_outside(const pk_call_t *call, int64_t extent, int64_t value,
                                                               int64_t bound) {
  call->refused[0] = extent, call->refused[1] = value, call->refused[2] = bound;
  return PK_OUTSIDE;
}
static inline __attribute__((unused, cold)) int32_t pk_broken(const pk_call_t *call, int64_t condition, int64_t left,
                                                              int64_t right) {
  call->refused[0] = condition, call->refused[1] = left, call->refused[2] = right;
  return PK_BROKEN;
}

/* CUDA only: called before each primitive function with its 1-based number, for messages and profiles. */
void pk_cuda_step(pk_cuda_t *cuda, int32_t number);
/* CUDA only: reads run-time extents from device memory, after all work before; waits once for all. */
int32_t pk_cuda_extents(pk_cuda_t *cuda, int32_t count, const void *const *sources, int64_t *const *extents);
/* CUDA only: writes a scalar of a loop to device memory. */
int32_t pk_cuda_store(pk_cuda_t *cuda, void *target, int64_t value);
/* CUDA only: runs a segment, from 1 on, which computes the same in all runs with these dims and `keys`. `launches` is
 * how many there are in it. Returns what `segment` returns, or PK_FAILED. */
int32_t pk_cuda_segment(const pk_call_t *call, int32_t number, int64_t launches, int32_t num_keys, const int64_t *keys,
                        pk_run_fn *segment);

/* CPU only: called after each primitive function with its 1-based number. */
int64_t pk_now(void);
static inline void pk_returned(const pk_call_t *call, int32_t number) {
  if (__builtin_expect(call->times != NULL, 0)) call->times[number] = pk_now();
}

/* Opens the libraries that a session with this selection calls. Where one is missing, the selection takes alternatives
 * without it, unless the caller gave it; if there are none, the session is refused. */
int32_t pk_open_libraries(const packager_session_options_t *options, uint8_t *selection);
/* Has the selection do without a library that is open, and warns with the thread's message. Returns whether it can. */
int32_t pk_avoid_library(const pk_library_t *library, const packager_session_options_t *options, uint8_t *selection);

/* The functions of the table. The rendered entrypoint fills a `static const packager_bundle_v1_t` with them and
 * with what pk_model says, so that the table is constant data, and returns its address. */
int32_t pk_set_threads(int32_t threads);
int32_t pk_session_create(const packager_session_options_t *options, packager_session_t **session);
/* Those with an entry are called by the functions of that entry's table; pk_session_run and so on are the first's. */
int32_t pk_entry_run(packager_session_t *session, const pk_entry_t *entry, const DLTensor *const *inputs,
                     int32_t num_inputs, DLTensor *const *outputs, int32_t num_outputs, void *stream);
int32_t pk_entry_output_shape(packager_session_t *session, const pk_entry_t *entry, const DLTensor *const *inputs,
                              int32_t num_inputs, int32_t output, int64_t *shape);
int32_t pk_entry_profile(packager_session_t *session, const pk_entry_t *entry, const DLTensor *const *inputs,
                         int32_t num_inputs, DLTensor *const *outputs, int32_t num_outputs, packager_profile_fn *report,
                         void *context);
int32_t pk_session_run(packager_session_t *session, const DLTensor *const *inputs, int32_t num_inputs,
                       DLTensor *const *outputs, int32_t num_outputs, void *stream);
int32_t pk_session_output_shape(packager_session_t *session, const DLTensor *const *inputs, int32_t num_inputs,
                                int32_t output, int64_t *shape);
int32_t pk_session_set_constants(packager_session_t *session, const char *const *names, const DLTensor *const *values,
                                 int32_t count);
int32_t pk_session_destroy(packager_session_t *session);
void *pk_session_stream(const packager_session_t *session);
const char *pk_session_cpu_level(const packager_session_t *session);
int32_t pk_session_profile(packager_session_t *session, const DLTensor *const *inputs, int32_t num_inputs,
                           DLTensor *const *outputs, int32_t num_outputs, packager_profile_fn *report, void *context);
int32_t pk_session_get_state(packager_session_t *session, int32_t state, DLTensor *value);
int32_t pk_session_set_state(packager_session_t *session, int32_t state, const DLTensor *value);
int32_t pk_session_reset(packager_session_t *session);
const char *pk_session_error(const packager_session_t *session);
const char *pk_thread_error(void);
const char *pk_status_name(int32_t status);

/* A chunk of a parallel loop: iterations [begin, end) of a primitive function with these arguments.
 * Returns 0 or the primitive function's error. */
typedef int32_t pk_task_fn(const void *arguments, int64_t begin, int64_t end);

/* Splits [0, extent) statically into at most `threads` equal chunks and runs them. */
int32_t pk_parallel_for(const pk_executor_t *executor, int32_t threads, pk_task_fn *task, const void *arguments,
                        int64_t extent);

/* Runs a loop; without threads this is a plain call. */
static inline int32_t pk_for(const pk_call_t *call, pk_task_fn *task, const void *arguments, int64_t extent) {
  if (call->threads <= 1 || extent < 2) return task(arguments, 0, extent);
  return pk_parallel_for(call->executor, call->threads, task, arguments, extent);
}

#endif /* PK_ENTRYPOINT_H_ */
