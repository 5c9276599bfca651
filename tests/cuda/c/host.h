/* host.h: a host program that uses CUDA itself, by the recorder, beside a bundle of model.c. */
#ifndef HOST_H_
#define HOST_H_

#include "../recorder/recorder.h"
#include "check.h"

/* What host programs call of libcuda.so.1, and what they ask of the recorder. */
static int (*cu_init)(unsigned);
static int (*cu_retain)(void **, int);
static int (*cu_release)(int);
static int (*cu_push)(void *);
static int (*cu_pop)(void **);
static int (*cu_current)(void **);
static int (*cu_alloc)(uint64_t *, size_t);
static int (*cu_free)(uint64_t);
static int (*cu_host_alloc)(void **, size_t, unsigned);
static int (*cu_host_free)(void *);
static int (*cu_stream_create)(void **, unsigned);
static int (*cu_stream_destroy)(void *);
static int (*cu_begin_capture)(void *, int);
static int (*cu_end_capture)(void *, void **);
static int (*cu_graph_destroy)(void *);
static int (*cu_exchange_mode)(int *);
static recorder_take_fn *recorder_take;
static recorder_live_fn *recorder_live;
static recorder_fail_fn *recorder_fail;
static recorder_fault_fn *recorder_fault;
static recorder_depth_fn *recorder_depth;
static recorder_memory_fn *recorder_memory;

static void *host_context;

/* Opens the recorder; with `uses_cuda` the program has a context of its own, on device 1, which is current. */
static inline void host_start(int uses_cuda) {
  static const struct {
    const char *name;
    void *function;
  } functions[] = {{"cuInit", &cu_init},
                   {"cuDevicePrimaryCtxRetain", &cu_retain},
                   {"cuDevicePrimaryCtxRelease_v2", &cu_release},
                   {"cuCtxPushCurrent_v2", &cu_push},
                   {"cuCtxPopCurrent_v2", &cu_pop},
                   {"cuCtxGetCurrent", &cu_current},
                   {"cuMemAlloc_v2", &cu_alloc},
                   {"cuMemFree_v2", &cu_free},
                   {"cuMemHostAlloc", &cu_host_alloc},
                   {"cuMemFreeHost", &cu_host_free},
                   {"cuStreamCreate", &cu_stream_create},
                   {"cuStreamDestroy_v2", &cu_stream_destroy},
                   {"cuStreamBeginCapture_v2", &cu_begin_capture},
                   {"cuStreamEndCapture", &cu_end_capture},
                   {"cuGraphDestroy", &cu_graph_destroy},
                   {"cuThreadExchangeStreamCaptureMode", &cu_exchange_mode},
                   {"recorder_take", &recorder_take},
                   {"recorder_live", &recorder_live},
                   {"recorder_fail", &recorder_fail},
                   {"recorder_fault", &recorder_fault},
                   {"recorder_depth", &recorder_depth},
                   {"recorder_memory", &recorder_memory}};
  void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (!library) FAIL("%s", dlerror());
  for (size_t i = 0; i < sizeof functions / sizeof *functions; ++i) {
    void *function = dlsym(library, functions[i].name);
    if (!function) FAIL("%s", dlerror());
    memcpy(functions[i].function, &function, sizeof function);
  }
  if (!uses_cuda) return;
  CHECK_EQ(cu_init(0), 0);
  CHECK_EQ(cu_retain(&host_context, 1), 0);
  CHECK_EQ(cu_push(host_context), 0);
  recorder_take();
}

/* The context that the program had is current, and nothing but that; and captures are what they were. */
static inline void host_check_context(void) {
  void *context;
  CHECK_EQ(cu_current(&context), 0);
  CHECK(context == host_context);
  CHECK_EQ(recorder_depth(), host_context ? 1 : 0);
  int mode = 0;
  cu_exchange_mode(&mode);
  CHECK_EQ(mode, 0);
}

/* After the last session: everything has been freed. */
static inline void host_end(void) {
  void *context;
  host_check_context();
  if (host_context) {
    CHECK_EQ(cu_pop(&context), 0);
    cu_release(1); /* after a fault this fails, too */
    host_context = NULL;
  }
  CHECK_TEXT(recorder_live(), "");
}

#define CHECK_LOG(expected) CHECK_TEXT(recorder_take(), expected)

/* Device memory of the program's. */
static inline float *device_new(size_t bytes) {
  uint64_t address;
  CHECK_EQ(cu_alloc(&address, bytes), 0);
  return (float *)(uintptr_t)address;
}
static inline void device_free(void *memory) { CHECK_EQ(cu_free((uintptr_t)memory), 0); }

/* The model's tensors, in host memory, in which `echo` is to become what x is. */
#define MAX_ROWS 4096
typedef struct {
  float x[4 * MAX_ROWS], y[4 * MAX_ROWS], echo[4 * MAX_ROWS];
  int64_t shape[2];
  DLTensor tx, ty, techo;
  const DLTensor *inputs[1];
  DLTensor *outputs[2];
} tensors_t;

static inline tensors_t *tensors_new(int64_t n) {
  tensors_t *t = calloc(1, sizeof *t);
  CHECK(t != NULL);
  for (int i = 0; i < 4 * n; ++i) t->x[i] = (float)i;
  t->shape[0] = n;
  t->shape[1] = 4;
  t->tx = (DLTensor){t->x, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, t->shape, NULL, 0};
  t->ty = t->techo = t->tx;
  t->ty.data = t->y;
  t->techo.data = t->echo;
  t->inputs[0] = &t->tx;
  t->outputs[0] = &t->ty;
  t->outputs[1] = &t->techo;
  return t;
}

/* The same in device memory of the program's. */
static inline tensors_t *tensors_on_device(int64_t n) {
  tensors_t *t = tensors_new(n);
  DLTensor *tensors[] = {&t->tx, &t->ty, &t->techo};
  for (int i = 0; i < 3; ++i) {
    tensors[i]->data = device_new(16 * (size_t)(n ? n : 1));
    tensors[i]->device.device_type = kDLCUDA;
    memcpy(tensors[i]->data, t->x, 16 * (size_t)n); /* the recorder's device memory is the host's */
  }
  return t;
}
static inline void tensors_free_device(tensors_t *t) {
  device_free(t->tx.data);
  device_free(t->ty.data);
  device_free(t->techo.data);
  free(t);
}

static inline int32_t tensors_run(const packager_bundle_v1_t *bundle, packager_session_t *session, tensors_t *t,
                                  void *stream) {
  int32_t status = bundle->session_run(session, t->inputs, 1, t->outputs, 2, stream);
  host_check_context();
  return status;
}

static inline void tensors_check_echo(const tensors_t *t) {
  CHECK_EQ(memcmp(t->techo.data, t->x, 16 * (size_t)t->shape[0]), 0);
}

#endif /* HOST_H_ */
