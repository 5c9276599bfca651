/* packager.h: the C ABI of a packager bundle, version 1.
 *
 * A bundle is one ELF shared library (or one static archive) that holds a compiled model. It exports a
 * single function, packager_bundle_v1(), which returns a constant table of everything else:
 *
 *     void *so = dlopen("./model.so", RTLD_NOW | RTLD_LOCAL);
 *     packager_bundle_v1_fn *entry = (packager_bundle_v1_fn *)dlsym(so, PACKAGER_ENTRY_SYMBOL);
 *     const packager_bundle_v1_t *bundle = entry();
 *     packager_session_t *session;
 *     if (bundle->session_create(NULL, &session) != PACKAGER_OK) puts(bundle->thread_error());
 *     bundle->session_run(session, inputs, 1, outputs, 1, NULL);
 *     bundle->session_destroy(session);
 *
 * Rules that hold for every function of the table:
 *   - It returns PACKAGER_OK (0) or a negative packager_status_t, never throws and never exits.
 *   - Shapes count elements, sizes count bytes.
 *   - Strings are UTF-8, zero-terminated and owned by the bundle.
 *
 * Depends on <stdint.h> alone. Compiles as C99 and as C++11. SPDX-License-Identifier: Apache-2.0
 */
#ifndef PACKAGER_H_
#define PACKAGER_H_

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define PACKAGER_ABI_VERSION 1
#define PACKAGER_ENTRY_SYMBOL "packager_bundle_v1"

/* An extent that is known only at run time (packager_tensor_info_t.shape). */
#define PACKAGER_DIM_SYMBOLIC (-1)

/* DLPack's tensor view, layout-compatible with DLPack 0.2 to 1.x. Include <dlpack/dlpack.h> before this
 * header to use its definitions instead. */
#ifndef DLPACK_DLPACK_H_
typedef enum { kDLCPU = 1, kDLCUDA = 2, kDLCUDAHost = 3 } DLDeviceType;
typedef enum {
  kDLInt = 0,
  kDLUInt = 1,
  kDLFloat = 2,
  kDLBfloat = 4,
  kDLBool = 6,
  kDLFloat8_e4m3fn = 10, /* from here on, and of integers below 8 bits, each element has a byte of its own */
  kDLFloat8_e4m3fnuz = 11,
  kDLFloat8_e5m2 = 12,
  kDLFloat8_e5m2fnuz = 13,
  kDLFloat8_e8m0fnu = 14,
  kDLFloat4_e2m1fn = 17
} DLDataTypeCode;
typedef struct {
  int32_t device_type; /* DLDeviceType */
  int32_t device_id;
} DLDevice;
typedef struct {
  uint8_t code; /* DLDataTypeCode */
  uint8_t bits;
  uint16_t lanes;
} DLDataType;
typedef struct {
  void *data;
  DLDevice device;
  int32_t ndim;
  DLDataType dtype;
  int64_t *shape;
  int64_t *strides; /* in elements; NULL means compact row-major */
  uint64_t byte_offset;
} DLTensor;
#endif

typedef enum {
  PACKAGER_OK = 0,
  PACKAGER_ERROR_ARGUMENT = -1,  /* NULL pointer, wrong number of tensors, unknown option */
  PACKAGER_ERROR_RANK = -2,      /* wrong number of dimensions */
  PACKAGER_ERROR_SHAPE = -3,     /* wrong extent, or a symbolic dim out of its bounds */
  PACKAGER_ERROR_DTYPE = -4,     /* wrong element type */
  PACKAGER_ERROR_DEVICE = -5,    /* tensor on a device that the bundle does not run on */
  PACKAGER_ERROR_LAYOUT = -6,    /* not compact row-major */
  PACKAGER_ERROR_ALIGNMENT = -7, /* data not aligned to its element size */
  PACKAGER_ERROR_OVERLAP = -8,   /* an output overlaps an input or another output */
  PACKAGER_ERROR_BUSY = -9,      /* another thread uses the session, or sets its constants */
  PACKAGER_ERROR_MEMORY = -10,   /* the allocator returned NULL */
  PACKAGER_ERROR_MACHINE = -11, /* the CPU lacks a feature, or the GPU is of an arch, that the bundle has no code for */
  PACKAGER_ERROR_WEIGHTS = -12, /* external weights missing, or not those of this bundle */
  PACKAGER_ERROR_THREADS = -13, /* worker threads could not be started */
  PACKAGER_ERROR_KERNEL = -14,  /* a primitive function reported failure */
  PACKAGER_ERROR_CONSTANT = -15, /* no constant of this name that can be swapped at run time */
  PACKAGER_ERROR_DRIVER = -16,   /* no CUDA driver, one that is too old for the bundle's code, or no such device */
  PACKAGER_ERROR_GPU = -17,      /* the GPU reported a fault: the process can use it no more */
  PACKAGER_ERROR_LIBRARY = -18   /* a shared library that the model calls is missing, too old or lacks a function */
} packager_status_t;

/* A named model input or output. */
typedef struct {
  const char *name;
  DLDataType dtype;
  int32_t ndim;
  const int64_t *shape;     /* [ndim] extents; PACKAGER_DIM_SYMBOLIC where known only at run time */
  const int64_t *min_shape; /* [ndim] smallest extents; equals shape where static */
  const int64_t *max_shape; /* [ndim] largest extents; equals shape where static */
  const char *const *dims;  /* [ndim] the symbolic expression ("n", "2*n", "nonzero_0"), or NULL where static */
} packager_tensor_info_t;

/* One of the model's own constants, its weights for example, under the name that it has in the model. */
typedef struct {
  const char *name;
  DLDataType dtype;
  int32_t ndim;
  const int64_t *shape; /* [ndim] */
} packager_constant_info_t;

/* Runs task(arguments, i) once for every i in [0, tasks), on any threads, and returns when all are done. */
typedef void packager_parallel_for_fn(void *context, void (*task)(void *arguments, int32_t index), void *arguments,
                                      int32_t tasks);
/* Returns `size` bytes aligned to `alignment` (a power of two), or NULL. */
typedef void *packager_allocate_fn(void *context, uint64_t size, uint64_t alignment);
typedef void packager_release_fn(void *context, void *memory);

typedef enum { PACKAGER_LOG_INFO = 0, PACKAGER_LOG_WARNING = 1, PACKAGER_LOG_ERROR = 2 } packager_log_level_t;
typedef void packager_log_fn(void *context, int32_t level, const char *message);

/* How a session of a CUDA bundle runs: launch by launch, or as a CUDA graph that it captures once per shape and then
 * replays. AUTO captures when a shape comes a second time. Results are the same. */
typedef enum { PACKAGER_GRAPH_AUTO = 0, PACKAGER_GRAPH_ON = 1, PACKAGER_GRAPH_OFF = 2 } packager_graph_mode_t;

/* Told by session_profile once for each primitive function that was called, in order: nanoseconds from the start of the
 * run, and how long it took. */
typedef void packager_profile_fn(void *context, const char *symbol, int64_t start, int64_t duration);

/* Options of a session. Zero-initialize, set struct_size = sizeof(packager_session_options_t), then what you
 * need: zero always means the default. NULL instead of options means all defaults. */
typedef struct {
  uint32_t struct_size;
  int32_t device_index;                   /* CUDA device; 0 for a CPU bundle */
  int32_t max_threads;                    /* most threads that this session's parallel loops use, the caller's included;
                                             0: as many as set_threads() says */
  int32_t num_selected;                   /* of `selection` */
  packager_parallel_for_fn *parallel_for; /* the host program's own threads instead of the bundle's pool;
                                             max_threads then tells how many tasks a loop is split into */
  void *parallel_for_context;
  packager_allocate_fn *allocate; /* both or neither; called in session_create, session_set_constants and
                                     session_destroy only */
  packager_release_fn *release;
  void *allocator_context;
  packager_log_fn *log; /* called in session_create only */
  void *log_context;
  /* Of CUDA bundles; zero for others. */
  int32_t graph;           /* packager_graph_mode_t */
  int32_t launch_blocking; /* 1: wait for each primitive function, so that a fault tells which one; slow, no graphs */
  void *device_arena;      /* memory of the device for intermediate tensors, at least arena_bytes of the table, 256-byte
                              aligned; NULL: the session allocates it. It must outlive the session */
  uint64_t device_arena_bytes;
  /* For each choice of the manifest's placement the number of the alternative to use, then for each entry of its
   * `selection` the number of the candidate: how fast the session is, never what it computes. NULL: those that the
   * bundle was sealed with. Read in session_create only. */
  const uint8_t *selection; /* [num_selected] */
  /* The CPU level whose code to use, by its name in the manifest's `cpu_levels`: "x86-64-v3". NULL: the best one that
   * this machine's CPU has. Read in session_create only. */
  const char *cpu_level;
  /* Folders with shared libraries that the model calls (the manifest's `requirements.libraries`), with colons between,
   * searched after those that the process has open, and before the bundle's folder and the dynamic linker's. Libraries
   * are opened once for a process: what an earlier session found is kept. Read in session_create only. */
  const char *library_path;
} packager_session_options_t;

typedef struct packager_session packager_session_t;

/* The table that packager_bundle_v1() returns: constant, valid while the bundle is loaded. Later minor
 * versions only append fields: check struct_size before reading one that this header does not know. */
typedef struct packager_bundle_v1 {
  uint32_t struct_size;
  uint32_t abi_version; /* PACKAGER_ABI_VERSION */
  const char *name;     /* of the model, of the entry where there are several */
  const char *manifest; /* JSON, manifest_size bytes, not zero-terminated */
  uint64_t manifest_size;
  uint64_t arena_bytes;    /* what each session allocates for intermediate tensors */
  uint64_t constant_bytes; /* shared by all sessions */
  int32_t num_inputs;
  int32_t num_outputs;
  const packager_tensor_info_t *inputs;
  const packager_tensor_info_t *outputs;

  /* Sets the size of the bundle's thread pool for this process: `threads` counts the calling thread, so 0
   * and 1 (the default) mean the caller's thread alone. Waits until no session is running in parallel.
   * Workers start with the first session and are joined when the last one is destroyed. */
  int32_t (*set_threads)(int32_t threads);

  /* Creates a session: its arena is allocated here and nowhere else. Sessions share code and constants.
   * On failure *session is NULL and thread_error() says why. Thread-safe. */
  int32_t (*session_create)(const packager_session_options_t *options, packager_session_t **session);

  /* Runs the model once. Tensors are in the order of `inputs` and `outputs` of this table, compact row-major,
   * aligned to their element size, and belong to the caller, outputs too. `stream` is NULL for a CPU bundle.
   * CUDA: tensors may lie on the session's device (kDLCUDA; used in place), or in host memory (copied by the run).
   * With `stream` NULL the run works on the session's own stream and returns when all is done. With a stream it is
   * enqueued there and the call returns at once, unless an output lies in pageable host memory (kDLCPU): then it waits.
   * Runs of one session follow each other, on whichever streams.
   * Outputs have the shapes that session_output_shape tells. Where an extent is known only by the run, that is room for
   * the most: the run writes the true extents to DLTensor.shape (and strides, unless NULL), the data are compact in
   * these, and the shape has to be the room again for the next run. Every argument is checked before anything is
   * computed; after an error the session can be used again. A session may move between threads but runs in one at a
   * time (else PACKAGER_ERROR_BUSY). Allocates nothing, takes no lock and makes no system call, except to wake parked
   * workers and to sleep when workers take much longer than the caller's own share. CUDA: the first runs of a shape
   * allocate staging memory for host tensors, and make the shape's graph; what the driver does besides is its own. */
  int32_t (*session_run)(packager_session_t *session, const DLTensor *const *inputs, int32_t num_inputs,
                         DLTensor *const *outputs, int32_t num_outputs, void *stream);

  /* Writes to shape[0..ndim) what output number `output` measures for these inputs, whose data may be NULL: the most
   * where an extent is known only by the run. */
  int32_t (*session_output_shape)(packager_session_t *session, const DLTensor *const *inputs, int32_t num_inputs,
                                  int32_t output, int64_t *shape);

  /* Frees the session; NULL is ignored. PACKAGER_ERROR_BUSY (nothing freed) while it runs. */
  int32_t (*session_destroy)(packager_session_t *session);

  /* The message of the last call that failed on this session, or in this thread; "" if none has. Valid until
   * the next failure of the same session or thread. */
  const char *(*session_error)(const packager_session_t *session);
  const char *(*thread_error)(void);
  /* "PACKAGER_ERROR_SHAPE" for -3, and so on; "unknown status" for others. */
  const char *(*status_name)(int32_t status);

  /* The model's constants that session_set_constants can swap, in no particular order. Others were computed with at
   * build time; the manifest has their names among the `sources` of its constants. */
  int32_t num_constants;
  int32_t reserved0;
  const packager_constant_info_t *constants;

  /* Swaps `count` of them in one session for new data, such as fine-tuned weights: constant names[i] becomes
   * values[i], or what it was in the bundle where values[i] is NULL. All or nothing: after an error no constant has
   * changed. Values are checked as inputs are: shape and type of the constant, compact row-major. They are copied, and
   * belong to the caller again when the call returns.
   * May be called from any thread, also while a run of the session is going on: that run goes on with the constants
   * that it began with, and the next run that begins has all the new ones. One thread at a time (else
   * PACKAGER_ERROR_BUSY). Failures are told by thread_error() alone. */
  int32_t (*session_set_constants)(packager_session_t *session, const char *const *names, const DLTensor *const *values,
                                   int32_t count);

  /* The CUDA stream (CUstream, cudaStream_t) of the session's own, on which session_run works when it is given none;
   * NULL for a CPU bundle. */
  void *(*session_stream)(const packager_session_t *session);

  /* Runs the model as session_run does without a stream, measures each primitive function and tells `report` when all
   * are done. */
  int32_t (*session_profile)(packager_session_t *session, const DLTensor *const *inputs, int32_t num_inputs,
                             DLTensor *const *outputs, int32_t num_outputs, packager_profile_fn *report, void *context);

  /* The name of the CPU level whose code the session uses; NULL for a CUDA bundle. */
  const char *(*session_cpu_level)(const packager_session_t *session);

  /* States: tensors that a session keeps between its runs, a KV-cache for example, and none of `inputs` and `outputs`.
   * A run reads them and leaves their next values. Each session has its own, in state_bytes of memory that come on top
   * of the arena; they begin as the model says, mostly as zeros. A run that fails leaves them undefined. */
  uint64_t state_bytes;
  int32_t num_states;
  int32_t reserved1;
  const packager_tensor_info_t *states;

  /* Copies state number `state` to `value`, or from it: a tensor of its shape and type, compact row-major, in host
   * memory or, CUDA, on the session's device. Waits for runs that were enqueued before, and returns when all is done.
   * As session_run they take the session for themselves (else PACKAGER_ERROR_BUSY). */
  int32_t (*session_get_state)(packager_session_t *session, int32_t state, DLTensor *value);
  int32_t (*session_set_state)(packager_session_t *session, int32_t state, const DLTensor *value);
  /* Makes all states what they were in the new session; likewise. */
  int32_t (*session_reset)(packager_session_t *session);

  /* Entries: the models of a bundle, which share constants, states and sessions; mostly there is one. Each has a table
   * of its own, with its name, inputs and outputs, and with the functions that run it: session_run,
   * session_output_shape and session_profile. All else is the same in every table, and a session that was created by
   * any of them serves all. entries[0] is the table that packager_bundle_v1() returns. */
  int32_t num_entries;
  int32_t reserved2;
  const struct packager_bundle_v1 *const *entries;
  const void *reserved[2];
} packager_bundle_v1_t;

typedef const packager_bundle_v1_t *packager_bundle_v1_fn(void);

#ifdef __cplusplus
}
#endif
#endif /* PACKAGER_H_ */
