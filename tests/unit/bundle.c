/* A bundle by hand: y = scale * x for float32 x[n, 2], n in 1..4, behind the real C ABI.
 *
 * The tests build variants of it: each -D below is one thing that verify must find.
 * SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>

#include "packager.h"

#ifndef ABI
#define ABI PACKAGER_ABI_VERSION
#endif
#ifndef ARENA
#define ARENA 64
#endif
#define COLUMNS 2
#define MAX_ROWS 4

__attribute__((section(".packager.manifest"), used, aligned(64))) static const unsigned char manifest[64 + CAPACITY] = {
    0};
#ifndef NO_CONSTANTS
__attribute__((section(".packager.constants"), used, aligned(64))) static const float scale[16] = {2.0f};
/* As an entrypoint does, by a pointer that is relocated. */
static const volatile float *const volatile constants = scale;
#define SCALE (*constants)
#else
#define SCALE 2.0f
#endif
#ifdef GOLDEN
__asm__(".pushsection .packager.golden,\"\",@progbits\n.incbin \"" GOLDEN "\"\n.popsection\n");
#endif
#ifdef GRAPH
__asm__(".pushsection .packager.graph,\"\",@progbits\n.incbin \"" GRAPH "\"\n.popsection\n");
#endif
#ifdef EXTRA_EXPORT
__attribute__((visibility("default"))) int leaked(void) { return 1; }
#endif
#ifdef TEXTREL
__asm__(".pushsection .text\n.quad packager_bundle_v1\n.popsection\n");
#endif
#ifdef STRANGER /* defined nowhere, and by no version */
extern __attribute__((weak, visibility("default"))) int stranger(void);
__attribute__((used)) static int ask_stranger(void) { return stranger ? stranger() : 0; }
#endif
#ifdef CONSTRUCTORS
__attribute__((constructor)) static void first(void) { setenv("PACKAGER_TEST_CONSTRUCTOR", "ran", 1); }
#endif

struct packager_session {
  int running;
  char message[64];
};
static __thread char thread_message[64];
static struct {
  int live_sessions, threads;
} counts = {0, 1};

/* With -DCUDA the manifest may say that the bundle is of CUDA. Its "device memory" is memory of the host; what the
 * tests look at is what it was given. */
static struct {
  packager_session_options_t options;
  void *stream;
  DLDevice input, output;
} seen;
#define OWN_STREAM 0x5000

static int32_t fail(char *message, const char *text, int32_t status) {
  strncpy(message, text, 63);
  return status;
}

__attribute__((noinline, used)) static void pk_scale(const float *x, float *y, int64_t count) {
  for (int64_t i = 0; i < count; i++) y[i] = SCALE * x[i];
}

static int32_t check(packager_session_t *session, const DLTensor *x) {
  if (x->ndim != 2) return fail(session->message, "input 'x' must have 2 dimensions", PACKAGER_ERROR_RANK);
  if (x->shape[0] < 1 || x->shape[0] > MAX_ROWS || x->shape[1] != COLUMNS)
    return fail(session->message, "input 'x' has a wrong shape", PACKAGER_ERROR_SHAPE);
  if (x->strides && x->shape[0] > 1 && (x->strides[0] != COLUMNS || x->strides[1] != 1))
    return fail(session->message, "input 'x' is not compact", PACKAGER_ERROR_LAYOUT);
  return PACKAGER_OK;
}

static int32_t set_threads(int32_t count) {
  if (count > 64) return fail(thread_message, "too many threads", PACKAGER_ERROR_THREADS);
  counts.threads = count;
  return PACKAGER_OK;
}

static int32_t session_create(const packager_session_options_t *options, packager_session_t **session) {
  *session = NULL;
  if (options && options->struct_size != sizeof *options)
    return fail(thread_message, "wrong struct_size", PACKAGER_ERROR_ARGUMENT);
#ifdef REFUSE
  return fail(thread_message, "the CPU lacks avx1024", PACKAGER_ERROR_MACHINE);
#endif
#ifdef NO_DRIVER
  return fail(thread_message, "libcuda.so.1 cannot be opened", PACKAGER_ERROR_DRIVER);
#endif
  if (options) seen.options = *options;
  *session = calloc(1, sizeof **session);
  counts.live_sessions += 1;
  return *session ? PACKAGER_OK : PACKAGER_ERROR_MEMORY;
}

static int32_t session_run(packager_session_t *session, const DLTensor *const *inputs, int32_t num_inputs,
                           DLTensor *const *outputs, int32_t num_outputs, void *stream) {
  seen.stream = stream;
  if (num_inputs != 1 || num_outputs != 1) return fail(session->message, "tensor count", PACKAGER_ERROR_ARGUMENT);
  int32_t status = check(session, inputs[0]);
  if (status) return status;
  if (outputs[0]->ndim != 2 || outputs[0]->shape[0] != inputs[0]->shape[0] || outputs[0]->shape[1] != COLUMNS)
    return fail(session->message, "output 'y' has a wrong shape", PACKAGER_ERROR_SHAPE);
  seen.input = inputs[0]->device;
  seen.output = outputs[0]->device;
  const float *x = (const float *)((const char *)inputs[0]->data + inputs[0]->byte_offset);
  float *y = (float *)((char *)outputs[0]->data + outputs[0]->byte_offset);
#ifdef CRASH
  *(volatile int *)8 = 1;
#endif
#ifdef HANG
  for (volatile int i = 0;;) (void)i;
#endif
  pk_scale(x, y, inputs[0]->shape[0] * COLUMNS);
  if (y[0] == 84.0f) /* x[0] == 42: the tests' way to keep a session busy for a while */
    for (volatile long i = 0; i < 300000000L; i++) continue;
#ifdef WRONG
  y[0] += 1.0f;
#endif
  return PACKAGER_OK;
}

static int32_t session_output_shape(packager_session_t *session, const DLTensor *const *inputs, int32_t num_inputs,
                                    int32_t output, int64_t *shape) {
  if (num_inputs != 1 || output != 0) return fail(session->message, "no such output", PACKAGER_ERROR_ARGUMENT);
  int32_t status = check(session, inputs[0]);
  if (status) return status;
  shape[0] = inputs[0]->shape[0];
  shape[1] = COLUMNS;
  return PACKAGER_OK;
}

#ifdef CUDA
static void *session_stream(const packager_session_t *session) {
  (void)session;
  return (void *)(uintptr_t)OWN_STREAM;
}
#endif

#if defined(CUDA) || defined(PROFILE)
static int32_t session_profile(packager_session_t *session, const DLTensor *const *inputs, int32_t num_inputs,
                               DLTensor *const *outputs, int32_t num_outputs, packager_profile_fn *report,
                               void *context) {
  int32_t status = session_run(session, inputs, num_inputs, outputs, num_outputs, NULL);
  if (status) return status;
  report(context, "pk_scale", 1000, 4000);
  report(context, "copy", 6000, 1000);
  return PACKAGER_OK;
}
#endif

static int32_t session_destroy(packager_session_t *session) {
  counts.live_sessions -= session != NULL;
  free(session);
  return PACKAGER_OK;
}

static const char *session_error(const packager_session_t *session) { return session->message; }
static const char *thread_error(void) { return thread_message; }
static const char *status_name(int32_t status) {
  switch (status) {
    case PACKAGER_OK:
      return "PACKAGER_OK";
    case PACKAGER_ERROR_RANK:
      return "PACKAGER_ERROR_RANK";
    case PACKAGER_ERROR_SHAPE:
      return "PACKAGER_ERROR_SHAPE";
    case PACKAGER_ERROR_LAYOUT:
      return "PACKAGER_ERROR_LAYOUT";
    case PACKAGER_ERROR_MACHINE:
      return "PACKAGER_ERROR_MACHINE";
    case PACKAGER_ERROR_THREADS:
      return "PACKAGER_ERROR_THREADS";
    case PACKAGER_ERROR_DRIVER:
      return "PACKAGER_ERROR_DRIVER";
    default:
      return "unknown status";
  }
}

static const int64_t shape[] = {PACKAGER_DIM_SYMBOLIC, COLUMNS};
static const int64_t min_shape[] = {1, COLUMNS};
static const int64_t max_shape[] = {MAX_ROWS, COLUMNS};
static const char *const dims[] = {"n", NULL};
#define INFO(name) {name, {kDLFloat, 32, 1}, 2, shape, min_shape, max_shape, dims}
static const packager_tensor_info_t inputs[] = {INFO("x")};
static const packager_tensor_info_t outputs[] = {INFO("y")};

static packager_bundle_v1_t table = {.struct_size = sizeof table,
                                     .abi_version = ABI,
                                     .name = "scale",
                                     .manifest = (const char *)manifest + 64,
                                     .manifest_size = CAPACITY,
                                     .arena_bytes = ARENA,
                                     .constant_bytes = 64,
                                     .num_inputs = 1,
                                     .num_outputs = 1,
                                     .inputs = inputs,
                                     .outputs = outputs,
                                     .set_threads = set_threads,
                                     .session_create = session_create,
                                     .session_run = session_run,
                                     .session_output_shape = session_output_shape,
                                     .session_destroy = session_destroy,
                                     .session_error = session_error,
                                     .thread_error = thread_error,
                                     .status_name = status_name,
#ifdef CUDA
                                     .session_stream = session_stream,
#endif
#if defined(CUDA) || defined(PROFILE)
                                     .session_profile = session_profile,
#endif
                                     /* For the tests: how many sessions are alive, the size of the pool, and what
                                        the last call was given. */
                                     .reserved = {&counts, &seen}};

#ifndef ENTRY
#define ENTRY packager_bundle_v1
#endif
#ifndef NO_ENTRY
__attribute__((visibility("default"))) const packager_bundle_v1_t *ENTRY(void) { return &table; }
#endif
