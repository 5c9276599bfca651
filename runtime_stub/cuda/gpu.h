/* gpu.h: declarations shared by the files of the CUDA runtime.
 *
 *   driver.c          loads libcuda.so.1; error messages of its results
 *   gpu.c             per-device state shared by sessions: context, modules, constants
 *   device.c          per-session state, constants
 *   states.c          tensors that a session keeps between runs
 *   staging.c         copies of tensors that kernels cannot access or that are misaligned
 *   run.c             one run: stream order, waiting
 *   call.c            calls the primitive functions, reports their failures
 *   launch.c          the API that primitive functions call
 *   problem_launch.c  launches with arguments computed from a problem, cached; tensor maps
 *   opaque.c          work that a library enqueues
 *   prepare.c         has libraries load and choose what they need before the first run
 *   kept.c            what backends keep on a device, or for a session
 *   copies.c          constants, for libraries that hold copies of them
 *   graph.c           CUDA graphs: capture, update, replay
 *   profile.c         times primitive functions
 *   memory.c          growable arrays
 */
#ifndef PK_GPU_H_
#define PK_GPU_H_

#include "driver.h"

#define PK_MAX_GRAPHS 16       /* of a session, for each segment of a run; the least recently used is evicted */
#define PK_MAX_SEGMENTS 16     /* for which a session has room at once */
#define PK_MAX_NODES 4096      /* of the graph of a segment that has loops; a larger one is launched */
#define PK_MAX_READS 32        /* run-time extents that are read together */
#define PK_TENSOR_ALIGNMENT 16 /* guaranteed to kernels, for vector loads */
#define PK_ARENA_ALIGNMENT 256
#define PK_SAID_BYTES 512     /* of what a library says */
#define PK_DL_CUDA_MANAGED 13 /* kDLCUDAManaged, which DLPack has had since 0.6 */

typedef struct {
  CUfunction function; /* NULL: of a module that is not for this device */
  int32_t overlaps;    /* its code may hold griddepcontrol.wait, and so PK_CUDA_PROGRAMMATIC means something */
} pk_kernel_t;

/* What a backend keeps on a device, or for a session. */
typedef struct pk_kept pk_kept_t;
struct pk_kept {
  pk_kept_t *next; /* made before this */
  const pk_cuda_kept_t *kind;
  void *value;
  uint64_t bytes;
  uint8_t key[];
};

/* A device as the sessions on it share it; counted under pk_lock(). */
typedef struct pk_gpu pk_gpu_t;
struct pk_gpu {
  pk_gpu_t *next;
  int32_t index;
  int32_t sessions;
  int32_t has_pools;
  pk_cuda_device_t facts;
  CUdevice device;
  CUcontext context;    /* the primary one, which the runtime API uses too */
  CUstream uploads;     /* of constants */
  CUmodule *modules;    /* NULL where one is not for this device */
  pk_kernel_t *kernels; /* of all modules, numbered through */
  CUdeviceptr constants;
  _Atomic(pk_kept_t *) kept; /* the newest */
  atomic_int fault;          /* the first that was seen; 0: none */
  char name[128];
};

/* Staging buffers of one tensor, reused by later runs. */
typedef struct {
  void *caller; /* the tensor's data in this run */
  void *host;   /* pinned */
  CUdeviceptr device;
  uint64_t host_bytes;
  uint64_t device_bytes;
} pk_staging_t;

/* A launch, a copy or a library's work in a graph. */
typedef struct {
  CUgraphNode node;
  int32_t kernel; /* or PK_COPY, PK_OPAQUE */
  uint32_t bytes; /* of its arguments */
  uint64_t offset;
  pk_cuda_launch_t launch;
  pk_cuda_enqueue_fn *enqueue; /* of PK_OPAQUE */
} pk_node_t;
#define PK_COPY (-1)
#define PK_OPAQUE (-2)

enum { PK_GRAPH_EMPTY, PK_GRAPH_SEEN, PK_GRAPH_READY, PK_GRAPH_REFUSED };

/* The run of one entry, or a segment of it, for one vector of dims. */
typedef struct {
  int32_t state;
  int32_t count;
  uint64_t used; /* time of last use */
  const pk_entry_t *entry;
  int32_t segment;  /* 0: the whole run */
  int32_t filled;   /* filled launches in it */
  int64_t *dims;    /* [num_dims], then the keys of the segment: at most [num_extents] */
  void **pointers;  /* [num_inputs + num_outputs] that it was last made for */
  uint64_t version; /* of the constants, likewise */
  CUgraph graph;    /* owns the nodes that `exec` is changed by */
  CUgraphExec exec; /* NULL where there is no node */
  pk_node_t *nodes; /* [capacity] */
  uint8_t *arguments;
  uint64_t capacity, argument_bytes, argument_capacity;
} pk_graph_t;

/* What a session keeps of a filled launch. */
typedef struct {
  pk_cuda_fill_fn *fill; /* NULL: there is nothing */
  uint64_t problem_bytes, argument_bytes;
  uint8_t *arguments; /* and behind them the problem */
  uint8_t *problem;
  uint64_t room;
  pk_cuda_launch_t launch;
} pk_filled_t;

/* A measured primitive function. */
typedef struct {
  int32_t step;
  CUevent start, end;
} pk_measure_t;

/* What a launch does in a run: launch; launch and synchronize; capture into a graph; compare with a node of a graph;
 * launch between two events; nothing, but have libraries prepare their work. */
enum { PK_LAUNCH, PK_WAIT, PK_CAPTURE, PK_COMPARE, PK_PROFILE, PK_PREPARE };

/* Results of a launch beside the driver's. */
enum {
  PK_NOT_LOADED = -1, /* the kernel is for another architecture */
  PK_REFUSED = -2,    /* the kernel does not support the problem */
  PK_NO_MEMORY = -3,  /* for its arguments, on the host */
  PK_LIBRARY = -4,    /* a library failed */
  PK_UNKNOWN = -5     /* while preparing: the run depends on what it computes from here on */
};

/* A session's own part. First what a launch reads. */
struct pk_cuda {
  int32_t mode;    /* PK_LAUNCH.. */
  int32_t step;    /* 1-based number of the call that runs */
  CUstream stream; /* of this run */
  const pk_kernel_t *kernels;
  int32_t chained;   /* the last that this run has enqueued is a kernel, which the next one may overlap */
  int32_t filled;    /* filled launches of this run so far */
  CUresult result;   /* of what failed, in the driver or as PK_NOT_LOADED..; 0: nothing */
  int32_t failed;    /* kernel that PK_NOT_LOADED.. is about; status of PK_LIBRARY */
  int32_t caught;    /* `result` was waited for: it is that of the step */
  int32_t visited;   /* nodes of `graph` that were compared */
  int32_t by_graphs; /* segments of this run are graphs */
  int32_t status;    /* of a run that ended with PK_FAILED */
  char *said;        /* [PK_SAID_BYTES] what PK_LIBRARY was explained by; empty: nothing */
  pk_graph_t *graph;
  packager_session_t *session;

  pk_gpu_t *gpu;
  pk_kept_t *kept;      /* its own, the newest */
  CUdeviceptr counters; /* of kernels; 0 until one asks for them */
  CUstream own;
  CUstream captures; /* made with the first graph */
  CUstream opaque;   /* in which libraries' work is captured; made with the first */
  CUevent done;      /* recorded behind the last run that was not waited for */
  CUevent staged;    /* recorded behind the last copy from pinned staging memory */
  /* Identities of streams: a handle may be that of one that was destroyed. */
  unsigned long long own_identity;
  unsigned long long done_stream; /* that `done` was recorded in */
  int32_t pending;                /* `done` may be ahead */
  int32_t staging_busy;           /* `staged` may be ahead */
  int32_t blocking;               /* wait for each launch */
  int32_t graph_mode;
  int32_t num_graphs;
  CUdeviceptr arena;     /* 0: the caller's, or none */
  CUdeviceptr states;    /* 0: none */
  int64_t *extents;      /* [PK_MAX_READS] of run-time extents that are copied here, pinned; NULL before the first */
  pk_graph_t *graphs;    /* [num_graphs] */
  uint64_t clock;        /* of pk_graph_t.used */
  pk_staging_t *staging; /* [num_inputs + num_outputs] */
  pk_filled_t *places;   /* [num_places] of filled launches, by their numbers within a run */
  uint64_t num_places, place_capacity;
  pk_measure_t *measures;
  uint64_t num_measures, measure_capacity;
};

static inline CUresult pk_gpu_enter(const pk_gpu_t *gpu) { return pk_driver.cuCtxPushCurrent(gpu->context); }
/* The host program's context is current again. */
static inline void pk_gpu_leave(void) {
  CUcontext context;
  pk_driver.cuCtxPopCurrent(&context);
}

/* Another thread of the host program may be capturing in the mode that forbids all threads to allocate. What is done
 * here has no part in its graph. Returns what pk_restore_captures() takes. */
static inline int pk_relax_captures(void) {
  int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
  pk_driver.cuThreadExchangeStreamCaptureMode(&mode);
  return mode;
}
static inline void pk_restore_captures(int mode) { pk_driver.cuThreadExchangeStreamCaptureMode(&mode); }

/* gpu.c. Under pk_lock(): the state of a device, made for its first session and freed with the last. */
int32_t pk_gpu_acquire(int32_t index, pk_gpu_t **gpu);
void pk_gpu_release(pk_gpu_t *gpu);
const char *pk_kernel_name(int32_t kernel);
/* Allocates device memory in the current context. */
int32_t pk_gpu_allocate(packager_session_t *session, uint64_t bytes, const char *what, CUdeviceptr *memory);

/* staging.c. Replaces the pointers of the call by device memory, and enqueues what brings the inputs there. */
int32_t pk_stage_inputs(packager_session_t *session, const DLTensor *const *inputs, DLTensor *const *outputs);
/* Enqueues what brings the outputs back. `*waits`: some are complete only after pk_unstage_outputs(), which needs
 * the stream to be done. */
int32_t pk_stage_outputs(packager_session_t *session, DLTensor *const *outputs, int *waits);
void pk_unstage_outputs(packager_session_t *session, DLTensor *const *outputs);
/* Refuses tensors that would have to be staged. */
int32_t pk_check_capturable(packager_session_t *session, const DLTensor *const *inputs, DLTensor *const *outputs);
void pk_staging_release(pk_cuda_t *cuda);

/* run.c. One run, whose tensors are where kernels can use them while `compute` enqueues its work. */
typedef int32_t pk_compute_fn(packager_session_t *session);
int32_t pk_run(packager_session_t *session, const DLTensor *const *inputs, DLTensor *const *outputs, CUstream stream,
               pk_compute_fn *compute);
/* As the session's options say. */
pk_compute_fn pk_compute;
/* call.c. Nothing of a run is enqueued yet. */
void pk_call_begin(pk_cuda_t *cuda, int32_t mode);
/* Calls the primitive functions of a run in a mode, each segment alike. Returns the number of the call that
 * failed, or 0. */
int32_t pk_call(packager_session_t *session, int32_t mode);
/* Runs the segments of a run by graphs, and launches the rest. */
int32_t pk_call_segments(packager_session_t *session);
int32_t pk_fail_call(packager_session_t *session, int32_t failed);
/* Fails a run; `what` failed with this result, outside of a primitive function. */
int32_t pk_fail_run(packager_session_t *session, CUresult result, const char *what);

/* What a graph is of. */
typedef struct {
  pk_run_fn *compute;
  int32_t segment; /* 0: the whole run */
  int32_t num_keys;
  const int64_t *keys;
} pk_part_t;
/* graph.c. Runs a part, by a graph where there is one for these dims or it is time to make it. Returns what its
 * function returns, or PK_FAILED. */
int32_t pk_graph_run(packager_session_t *session, const pk_part_t *part);
/* What a node of a graph does. `launch` of a copy is that of PK_COPY, its arguments are a pk_copy_t. */
typedef struct {
  int32_t kernel;
  const pk_cuda_launch_t *launch;
  const void *arguments;
  uint64_t bytes;
  int32_t is_one; /* parameter, whatever its alignment; else they are all parameters, one after the other */
  pk_cuda_enqueue_fn *enqueue; /* of PK_OPAQUE, whose arguments are the problem and whose launch is that of PK_COPY */
} pk_work_t;
/* How the driver takes the arguments of a launch: in a buffer, which begins where parameters do. One that is aligned to
 * more than their beginning is passed by its address: the driver knows where it lies. */
typedef struct {
  size_t bytes;
  void *one[1], *buffer[5];
  void **params, **extra;
} pk_parameters_t;
typedef struct {
  void *target;
  const void *source;
  uint64_t bytes;
} pk_copy_t;
/* Within a run: remembers what was captured last; compares node number `visited` with what would be enqueued now, and
 * changes it if they differ. */
CUresult pk_graph_remember(pk_cuda_t *cuda, const pk_work_t *work);
CUresult pk_graph_compare(pk_cuda_t *cuda, const pk_work_t *work);
/* Adds a graph to the one that the run is captured into, as a node that comes after what was captured last. */
CUresult pk_graph_add_child(const pk_cuda_t *cuda, CUgraph child);
void pk_graphs_release(pk_cuda_t *cuda);

/* launch.c. How the arguments of a launch are passed: pointers into `parameters` and into the arguments. */
void pk_pass(pk_parameters_t *parameters, const pk_work_t *work);
/* Launches a kernel, or does with it what the mode of the run asks for. */
int32_t pk_launch_work(pk_cuda_t *cuda, const pk_work_t *work);
/* The same for any work. */
CUresult pk_perform(pk_cuda_t *cuda, const pk_work_t *work);
/* Fails a launch with PK_NOT_LOADED.., which it returns. */
int32_t pk_fail_launch(pk_cuda_t *cuda, int32_t kernel, CUresult result);

/* problem_launch.c */
void pk_filled_release(pk_cuda_t *cuda);

/* opaque.c. Has the library enqueue its work in the run's stream, or as a node where that is captured. */
CUresult pk_opaque_enqueue(pk_cuda_t *cuda, const pk_work_t *work);
/* Captures the work as a graph of its own. */
CUresult pk_opaque_capture(pk_cuda_t *cuda, const pk_work_t *work, CUgraph *graph);
/* prepare.c. Walks all entries of a new session with the dims at their maxima. */
int32_t pk_prepare(packager_session_t *session);
/* kept.c. In the device's context. */
void pk_kept_release(pk_gpu_t *gpu);
void pk_kept_release_own(pk_cuda_t *cuda);

/* profile.c. Around each launch. */
CUresult pk_measure_begin(pk_cuda_t *cuda);
CUresult pk_measure_end(pk_cuda_t *cuda);

/* memory.c. Grows an array to at least `count` elements of `size` bytes. Returns 0 if out of memory. */
int pk_grow(void **array, uint64_t *capacity, uint64_t count, uint64_t size);

#endif /* PK_GPU_H_ */
