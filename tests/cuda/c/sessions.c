/* Life cycle of sessions of a CUDA bundle, and their constants. Arguments: the dynamic bundle, how often to repeat. */
#define _GNU_SOURCE
#include <malloc.h>

#include "host.h"

#define LIVE_HOST "1 context"
#define LIVE_ONE "2 context, 2 module, 3 function, 1 memory, 1 pooled memory, 2 stream, 2 event"
#define LIVE_TWO "2 context, 2 module, 3 function, 1 memory, 2 pooled memory, 3 stream, 4 event"

static void life(char **arguments) {
  host_start(1);
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  packager_session_t *first = session_open(t, NULL);
  host_check_context();
  CHECK_LOG(
      "context c2 of device 0\n"
      "stream s1 non-blocking\n"
      "load scale\n"
      "load unused\n"
      "shared add 100000\n"
      "load add\n"
      "upload m1 80 in s1\n"
      "wait for s1\n"
      "stream s2 non-blocking\n"
      "wait for s2\n");
  CHECK_TEXT(recorder_live(), LIVE_ONE);
  packager_session_t *second = session_open(t, NULL);
  CHECK_LOG(
      "stream s3 non-blocking\n"
      "wait for s3\n");
  CHECK_TEXT(recorder_live(), LIVE_TWO);
  CHECK(t->session_stream(first) && t->session_stream(second));
  CHECK(t->session_stream(first) != t->session_stream(second));
  CHECK_OK(t, t->session_destroy(first));
  host_check_context();
  CHECK_LOG(
      "wait for e1\n"
      "wait for s2\n"
      "free m2\n"
      "wait for s2\n");
  CHECK_TEXT(recorder_live(), LIVE_ONE);
  CHECK_OK(t, t->session_destroy(second));
  CHECK_TEXT(recorder_live(), LIVE_HOST);
  host_end();
  CHECK_EQ(dlclose(bundle.handle), 0);
}

static void refuse(const packager_bundle_v1_t *t, const packager_session_options_t *options, int32_t status,
                   const char *message) {
  packager_session_t *session;
  CHECK_EQ(t->session_create(options, &session), status);
  CHECK(session == NULL);
  CHECK_TEXT(t->thread_error(), message);
  CHECK_TEXT(recorder_live(), "");
}

static void options(char **arguments) {
  host_start(0);
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  _Alignas(256) static char arena[4096 * 16];
#define OPTIONS(...) &(packager_session_options_t){.struct_size = sizeof(packager_session_options_t), __VA_ARGS__}
#define REFUSE(message, ...) refuse(t, OPTIONS(__VA_ARGS__), PACKAGER_ERROR_ARGUMENT, "options: " message)
  REFUSE("device_index is -1, expected 0 or more", .device_index = -1);
  REFUSE("graph is 3, expected a packager_graph_mode_t, 0..2", .graph = 3);
  REFUSE("launch_blocking is 2, expected 0 or 1", .launch_blocking = 2);
  REFUSE("launch_blocking and PACKAGER_GRAPH_ON are given: a graph cannot be waited for in parts", .launch_blocking = 1,
         .graph = PACKAGER_GRAPH_ON);
  REFUSE("device_arena_bytes is 9, but device_arena is NULL", .device_arena_bytes = 9);
  REFUSE("device_arena is not aligned to 256 bytes", .device_arena = arena + 128, .device_arena_bytes = 1 << 20);
  REFUSE("device_arena_bytes is 65535, expected 65536 or more", .device_arena = arena, .device_arena_bytes = 65535);
  refuse(t, OPTIONS(.device_index = 2), PACKAGER_ERROR_DRIVER, "options: device_index is 2, but CUDA sees 2 device(s)");
  recorder_take();

  /* The caller's arena is used, and not freed; the second device is another one. */
  packager_session_t *session = session_open(t, OPTIONS(.device_arena = arena, .device_arena_bytes = sizeof arena));
  packager_session_t *other = session_open(t, OPTIONS(.device_index = 1));
  CHECK_TEXT(recorder_live(), "2 context, 4 module, 6 function, 2 memory, 1 pooled memory, 4 stream, 4 event");
  CHECK_OK(t, t->session_destroy(session));
  CHECK_OK(t, t->session_destroy(other));
  host_end();
  CHECK_EQ(dlclose(bundle.handle), 0);
}

static void write_log(void *context, int32_t level, const char *message) {
  (void)level;
  snprintf(context, 256, "%s", message);
}

static void logging(char **arguments) {
  host_start(0);
  bundle_t bundle = bundle_open(arguments[0]);
  char message[256];
  packager_session_options_t options = {.struct_size = sizeof options, .log = write_log, .log_context = message};
  options.device_index = 1;
  packager_session_t *session = session_open(bundle.table, &options);
  CHECK_TEXT(message, "cuda: session created, arena of 65536 bytes, Recorder 1 (sm_90), device 1");
  CHECK_OK(bundle.table, bundle.table->session_destroy(session));
  host_end();
  CHECK_EQ(dlclose(bundle.handle), 0);
}

/* Loads, runs, fails and unloads; nothing may be left, of the device's memory or of the host's. The allocator has
 * filled its caches after the first half. */
static void cycles(char **arguments) {
  host_start(0);
  int count = atoi(arguments[1]);
  size_t heap = 0;
  tensors_t *tensors = tensors_new(8);
  for (int i = 0; i < count; ++i) {
    bundle_t bundle = bundle_open(arguments[0]);
    packager_session_t *session = session_open(bundle.table, NULL);
    for (int run = 0; run < 4; ++run) CHECK_OK(bundle.table, tensors_run(bundle.table, session, tensors, NULL));
    tensors->tx.ndim = 1;
    CHECK_EQ(tensors_run(bundle.table, session, tensors, NULL), PACKAGER_ERROR_RANK);
    tensors->tx.ndim = 2;
    CHECK_OK(bundle.table, bundle.table->session_destroy(session));
    CHECK_EQ(dlclose(bundle.handle), 0);
    CHECK(dlopen(arguments[0], RTLD_NOW | RTLD_NOLOAD) == NULL);
    CHECK_TEXT(recorder_live(), "");
    recorder_take();
    recorder_take(); /* frees what the first has returned */
    if (i == count / 2) heap = mallinfo2().uordblks;
  }
  CHECK(mallinfo2().uordblks <= heap);
  free(tensors);
  host_end();
}

/* w becomes `first`, `first` + 1, and so on. */
static int32_t set(const packager_bundle_v1_t *t, packager_session_t *session, const char *name, float first) {
  float data[4] = {first, first + 1, first + 2, first + 3};
  int64_t four[] = {4}, square[] = {2, 2};
  int vector = !strcmp(name, "w");
  const DLTensor value = {data, {kDLCPU, 0}, vector ? 1 : 2, {kDLFloat, 32, 1}, vector ? four : square, NULL, 0};
  const DLTensor *values[] = {&value};
  int32_t status = t->session_set_constants(session, &name, values, 1);
  host_check_context();
  return status;
}

static void constants(char **arguments) {
  host_start(1);
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  packager_session_options_t options = {.struct_size = sizeof options, .graph = PACKAGER_GRAPH_OFF};
  packager_session_t *session = session_open(t, &options);
  tensors_t *tensors = tensors_on_device(8); /* m3, m4, m5 */
  recorder_take();
#define RUN(w, b)                                                        \
  CHECK_OK(t, tensors_run(t, session, tensors, NULL));                   \
  CHECK_LOG("launch scale grid=1,1,1 block=256,1,1 shared=0 m2 m3 " w    \
            " 8 in s2\n"                                                 \
            "launch add grid=8,1,1 block=128,1,1 shared=100000 m4 m2 " b \
            " 8 in s2\n"                                                 \
            "copy m5 m3 128 in s2\n"                                     \
            "wait for s2\n")
  RUN("m1", "m1+64");
  CHECK_OK(t, set(t, session, "b", 10));
  CHECK_LOG(
      "wait for e1\n"
      "upload m6 16 in s1\n"
      "wait for s1\n");
  RUN("m1", "m6");
  CHECK_OK(t, set(t, session, "b", 20));
  CHECK_LOG(
      "wait for e1\n"
      "upload m7 16 in s1\n"
      "wait for s1\n");
  RUN("m1", "m7");
  CHECK_OK(t, set(t, session, "b", 30)); /* the first buffer, which no run that is going on can have */
  CHECK_LOG(
      "wait for e1\n"
      "upload m6 16 in s1\n"
      "wait for s1\n");
  CHECK_OK(t, set(t, session, "w", 1));
  recorder_take();
  RUN("m8", "m6");
  const char *both[] = {"w", "b"};
  const DLTensor *nothing[] = {NULL, NULL};
  CHECK_OK(t, t->session_set_constants(session, both, nothing, 2));
  CHECK_LOG("");
  RUN("m1", "m1+64");

  DLTensor value = tensors->tx;
  value.device = (DLDevice){kDLCUDA, 0};
  const DLTensor *values[] = {&value};
  CHECK_EQ(t->session_set_constants(session, both, values, 1), PACKAGER_ERROR_RANK);
  value.ndim = 1;
  CHECK_EQ(t->session_set_constants(session, both, values, 1), PACKAGER_ERROR_DEVICE);
  CHECK_TEXT(t->thread_error(), "constant 'w': device type is 2, expected 1 (CPU): values are copied from host memory");
  recorder_fail("cuMemAlloc:1:2");
  CHECK_OK(t, set(t, session, "w", 5)); /* there is a buffer */
  recorder_take();
  CHECK_OK(t, tensors_run(t, session, tensors, NULL));
  recorder_take();
  CHECK_EQ(set(t, session, "w", 6), PACKAGER_ERROR_MEMORY);
  CHECK_HAS(t->thread_error(),
            "could not allocate 16 bytes of device memory for a constant: CUDA_ERROR_OUT_OF_MEMORY (out of memory); ");
  recorder_take();
  RUN("m8", "m1+64");
  recorder_fail("");
  CHECK_OK(t, t->session_destroy(session));
  tensors_free_device(tensors);
  host_end();
  CHECK_EQ(dlclose(bundle.handle), 0);
}

/* What the device has of a constant: the one that the bundle has, and the transposed one that is given. */
static void values(char **arguments) {
  host_start(0);
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  packager_session_t *session = session_open(t, NULL);
  CHECK_OK(t, set(t, session, "b", 10));
  tensors_t *tensors = tensors_new(8);
  CHECK_OK(t, tensors_run(t, session, tensors, NULL));
  const char *log = recorder_take();
  CHECK_HAS(log, "upload m1 80 in s1\n");
  CHECK_HAS(log, "upload m3 16 in s1\n");
  CHECK_HAS(log, "launch add grid=8,1,1 block=128,1,1 shared=100000 m5 m2 m3 8 in s2\n");
  const float built_in[] = {1, 2, 3, 4}, transposed[] = {10, 12, 11, 13};
  CHECK_EQ(memcmp(recorder_memory(1), built_in, sizeof built_in), 0);
  CHECK_EQ(memcmp(recorder_memory(3), transposed, sizeof transposed), 0);
  free(tensors);
  CHECK_OK(t, t->session_destroy(session));
  host_end();
  CHECK_EQ(dlclose(bundle.handle), 0);
}

/* Weights in a file beside the bundle, whose bytes count from 0 on. */
static void external(char **arguments) {
  host_start(0);
  bundle_t bundle = bundle_open(arguments[0]);
  int files = count_files();
  packager_session_t *session = session_open(bundle.table, NULL);
  CHECK_EQ(count_files(), files);
  CHECK(!is_mapped("w.safetensors"));
  for (int i = 0; i < 80; ++i) CHECK_EQ(((uint8_t *)recorder_memory(1))[i], i);
  CHECK_OK(bundle.table, bundle.table->session_destroy(session));
  host_end();
  CHECK_EQ(dlclose(bundle.handle), 0);
}

int main(int argc, char **argv) {
  static const case_t cases[] = {{"life", life},        {"options", options},     {"logging", logging},
                                 {"cycles", cycles},    {"constants", constants}, {"values", values},
                                 {"external", external}};
  return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
