/* runtime.h: declarations shared by the files of the runtime; the rendered entrypoint includes entrypoint.h instead.
 *
 *   device.h         interface of the device, implemented in ../cpu and ../cuda
 *   session.c        life cycle of a session
 *   entries.c        one run of one of the models
 *   memory.c         host memory allocation
 *   validate.c       checks tensors against the model
 *   parallel_loop.c  parallel loops
 *   pool.c           the worker threads (pool.h: shared by these two)
 *   weights.c        constants in a file beside the bundle
 *   libraries.c      opens shared libraries; only in bundles that call some
 *   own_path.c       where the bundle is
 *   constants.c      replaces constants of a session
 *   states.c         tensors that a session keeps between runs
 *   cpu_features.c   CPU features
 *   errors.c         status names and messages
 */
#ifndef PK_RUNTIME_H_
#define PK_RUNTIME_H_

/* gcc's outlined atomics for aarch64 bring a constructor into the bundle; baseline atomics need none. */
#if defined(__aarch64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("no-outline-atomics")
#endif

#include <stdatomic.h>

#include "entrypoint.h"

#define PK_MESSAGE_BYTES 1024
#define PK_MAX_THREADS 1024 /* of the pool, the caller included */

typedef struct pk_pool pk_pool_t;
typedef struct pk_team pk_team_t;

struct pk_executor {
  packager_parallel_for_fn *parallel_for; /* the host program's threads, or NULL */
  void *context;
  pk_pool_t *pool; /* the bundle's threads, or NULL */
  pk_team_t *team; /* the workers that run its loops; NULL: all, unless another loop holds the pool */
};

/* An iteration with a team of `threads` threads, which its loops get from this executor. Returns 0 or an error. */
typedef int32_t pk_team_fn(const void *arguments, const pk_executor_t *executor, int32_t threads, int64_t index);

/* Runs iterations [0, extent) concurrently, each with a team of an equal share of the threads; sequentially in this
 * thread if there are none. Returns 0 or the first error. */
int32_t pk_teams_for(const pk_executor_t *executor, int32_t threads, pk_team_fn *task, const void *arguments,
                     int32_t extent);

typedef struct {
  packager_allocate_fn *allocate; /* NULL: posix_memalign() and free() */
  packager_release_fn *release;
  void *context;
} pk_allocator_t;

/* The constants of a session: three tables of pointers, so that a thread can make a new one while a run uses another,
 * and buffers for those that were swapped. `state` holds two indices of tables: that of the last run to begin, which
 * may still be going on, in bits 0 and 1, and that of the next run, in bits 2 and 3. No other table is in use. */
#define PK_TABLES 3
typedef struct {
  atomic_uint state;
  uint64_t version;                  /* counts the runs that began with other constants than the run before */
  atomic_int writing;                /* a thread is in session_set_constants */
  const uint8_t *base;               /* of the bundle's own data */
  const uint8_t **tables[PK_TABLES]; /* [num_slots] */
  uint8_t **buffers[PK_TABLES];      /* [num_slots] NULL, or room for the data of a slot; in use when a table says so */
  int32_t *given;                    /* [num_constants] scratch of the thread that is writing */
} pk_constants_t;

/* One allocation holds this and the arrays that it points to. */
struct packager_session {
  atomic_int busy;
  int32_t max_threads; /* 0: no limit of its own */
  pk_constants_t constants;
  pk_call_t call;          /* all but `threads` is set once */
  const pk_level_t *level; /* NULL where the model has none */
  const pk_entry_t *entry; /* running, or last run; the fields below are of it */
  pk_executor_t executor;
  void *device;          /* [pk_device_bytes()] the device's part of the session */
  int64_t *dims;         /* [num_dims], then [num_extents] */
  int64_t refused[3];    /* see pk_call_t */
  int shaped;            /* extents are computed from the dims, and the model's conditions on these were checked */
  int64_t *extents;      /* [total_extents] of all inputs, then of all outputs */
  void **inputs;         /* [num_inputs] */
  void **outputs;        /* [num_outputs] */
  uint64_t *input_bytes; /* [num_inputs] sizes, for the overlap check */
  uint64_t *output_bytes;
  uint8_t *selection;             /* [num_selected] */
  const pk_library_t *unsuitable; /* that failed while the session was made; NULL: none */
  pk_allocator_t allocator;
  char message[PK_MESSAGE_BYTES];
};

/* Maxima over all entries. */
typedef struct {
  int32_t inputs, outputs, tensors, dims, extents;
  int32_t segments; /* of a run, which is one at least */
  int32_t graphs;   /* sum of the segments of all entries and variants */
} pk_most_t;
pk_most_t pk_most(void);

/* Name of call number `number` of the entry, from 1 on. Pointers to the names would cost a relocation each when the
 * bundle is loaded. */
const char *pk_call_name(const packager_session_t *session, int32_t number);

/* Says that extents of the inputs, or that a run has computed, do not fit together. */
int32_t pk_fail_condition(packager_session_t *session, const char *condition, int64_t left, int64_t right);

/* Says why a run has ended without computing everything; `failed` is what it has returned. */
int32_t pk_fail_step(packager_session_t *session, int32_t failed);

/* Writes the true extents into the shapes of the outputs, after a run that has read run-time extents. */
void pk_write_shapes(packager_session_t *session, DLTensor *const *outputs);

/* The code of the entry that runs, for the session's CPU. */
static inline pk_run_fn *pk_run_of(const packager_session_t *session) {
  return session->entry->runs[session->level ? session->level - pk_model.levels : 0];
}

/* Sets the thread's message, and the session's unless it is NULL, and returns `status`. */
int32_t pk_fail(packager_session_t *session, int32_t status, const char *format, ...)
    __attribute__((format(printf, 3, 4), cold, noinline));

/* Makes the session the caller's until pk_leave(), which returns `status`. A busy session is not touched, not even its
 * message: another thread owns it. */
int32_t pk_enter(packager_session_t *session, const char *function);
int32_t pk_leave(packager_session_t *session, int32_t status);

/* Finds the variant of an entry with bucketed dims that is for the sizes of these inputs. */
int32_t pk_choose_variant(packager_session_t *session, const pk_entry_t **entry, const DLTensor *const *inputs,
                          int32_t num_inputs);
/* Switches a session that the caller has entered to an entry. */
void pk_enter_entry(packager_session_t *session, const pk_entry_t *entry);

/* Checks the descriptions of the inputs, reads the symbolic dims from them and fills session->extents. Data
 * pointers are not looked at. */
int32_t pk_check_inputs(packager_session_t *session, const DLTensor *const *inputs, int32_t num_inputs);
/* After pk_check_inputs: checks the outputs, all data pointers and overlaps, and fills the pointers of the call. */
int32_t pk_check_memory(packager_session_t *session, const DLTensor *const *inputs, DLTensor *const *outputs,
                        int32_t num_outputs);

/* Checks a value for one of the model's constants and stores the address of its data. Failures go to the thread's
 * message alone. */
int32_t pk_check_constant(const packager_constant_info_t *info, const DLTensor *value, void **data);

/* Checks a tensor that a state is copied to or from, and stores the address of its data. */
int32_t pk_check_state(packager_session_t *session, const packager_tensor_info_t *info, const DLTensor *value,
                       void **data);

/* Memory aligned to PK_ALIGNMENT; `what` is for the message. */
int32_t pk_allocate(const pk_allocator_t *allocator, uint64_t bytes, const char *what, void **memory);
void pk_release(const pk_allocator_t *allocator, void *memory);

/* Points every slot to the bundle's own data. */
void pk_constants_start(packager_session_t *session, const uint8_t *base);
/* Lets the run that begins use the newest constants. */
void pk_constants_advance(packager_session_t *session);
static inline void pk_constants_use(packager_session_t *session) {
  unsigned state = atomic_load_explicit(&session->constants.state, memory_order_relaxed);
  if ((state & 3) != state >> 2) pk_constants_advance(session);
}
/* Frees the buffers of a session that nobody uses any more. */
void pk_constants_release(packager_session_t *session);
/* Writes to `target`, in host memory, what a slot has for this value of its source. */
void pk_constants_gather(uint8_t *target, const pk_slot_t *slot, const DLTensor *value);

/* Refuses a machine that lacks one of pk_model.cpu_features. Stores the level that sessions have there: the last that
 * the CPU has all features of, or the one that is `wanted` if that is not NULL; NULL if the model has no levels. */
int32_t pk_choose_level(const char *wanted, const pk_level_t **level);

/* Locks what sessions share outside of runs: creating, destroying and resizing exclude each other. */
void pk_lock(void);
void pk_unlock(void);

/* Counted per session, under the lock. Acquiring starts the workers, releasing the last stops them. */
int32_t pk_pool_acquire(pk_pool_t **pool);
void pk_pool_release(void);
/* Bracket a run whose loops can use several threads: meanwhile workers spin longer before they sleep. */
void pk_run_begins(const pk_executor_t *executor);
void pk_run_ends(const pk_executor_t *executor);
/* How many threads, the caller included, loops of this executor can use now. */
int32_t pk_executor_threads(const pk_executor_t *executor);

/* Writes the path of the bundle, or of the program that it is linked into. Returns NULL, or why it is not known. */
const char *pk_own_path(char *path, size_t bytes);

/* Counted per session, under the lock. Acquiring maps the external weights, releasing the last unmaps them. */
int32_t pk_weights_acquire(const uint8_t **constants);
void pk_weights_release(void);

#endif /* PK_RUNTIME_H_ */
