/* Where runs work: streams and their order, tensors in host memory, streams that are being captured. Argument: the
 * dynamic bundle. */
#include "host.h"

static bundle_t bundle;
static const packager_bundle_v1_t *t;
static packager_session_t *session;

/* The program has a context; the session has no graphs. Constants are m1, the arena is m2, the stream s2. */
static void start(char **arguments, int32_t graph) {
  host_start(1);
  bundle = bundle_open(arguments[0]);
  t = bundle.table;
  packager_session_options_t options = {.struct_size = sizeof options, .graph = graph};
  session = session_open(t, &options);
  recorder_take();
}

static void end(void) {
  CHECK_OK(t, t->session_destroy(session));
  host_end();
  CHECK_EQ(dlclose(bundle.handle), 0);
}

static void *stream_new(void) {
  void *stream;
  CHECK_EQ(cu_stream_create(&stream, 1), 0);
  return stream;
}

#define SCALE(x, stream) "launch scale grid=1,1,1 block=256,1,1 shared=0 m2 " x " m1 8 in " stream "\n"
#define ADD(y, stream) "launch add grid=8,1,1 block=128,1,1 shared=100000 " y " m2 m1+64 8 in " stream "\n"
#define KEEP(echo, x, stream) "copy " echo " " x " 128 in " stream "\n"
#define RUN(x, y, echo, stream) SCALE(x, stream) ADD(y, stream) KEEP(echo, x, stream)

static void streams(char **arguments) {
  start(arguments, PACKAGER_GRAPH_OFF);
  void *one = stream_new(), *two = stream_new(); /* s3, s4 */
  tensors_t *d = tensors_on_device(8);           /* m3, m4, m5 */
  memset(d->techo.data, 0, 128);
  recorder_take();
  CHECK_OK(t, tensors_run(t, session, d, NULL)); /* waits */
  CHECK_LOG(RUN("m3", "m4", "m5", "s2") "wait for s2\n");
  tensors_check_echo(d);
  CHECK_OK(t, tensors_run(t, session, d, one)); /* nothing to follow: the last run was waited for */
  CHECK_LOG(RUN("m3", "m4", "m5", "s3") "record e1 in s3\n");
  CHECK_OK(t, tensors_run(t, session, d, one)); /* the stream keeps the order */
  CHECK_LOG(RUN("m3", "m4", "m5", "s3") "record e1 in s3\n");
  CHECK_OK(t, tensors_run(t, session, d, two));
  CHECK_LOG("s4 waits for e1\n" RUN("m3", "m4", "m5", "s4") "record e1 in s4\n");
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_LOG("s2 waits for e1\n" RUN("m3", "m4", "m5", "s2") "wait for s2\n");
  CHECK_OK(t, tensors_run(t, session, d, (void *)1)); /* the legacy default stream */
  CHECK_LOG(RUN("m3", "m4", "m5", "default1") "record e1 in default1\n");
  CHECK_OK(t, tensors_run(t, session, d, t->session_stream(session))); /* given, and so not waited for */
  CHECK_LOG("s2 waits for e1\n" RUN("m3", "m4", "m5", "s2") "record e1 in s2\n");
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_LOG(RUN("m3", "m4", "m5", "s2") "wait for s2\n");

  /* A stream that is gone is not asked for anything. */
  CHECK_OK(t, tensors_run(t, session, d, one));
  CHECK_EQ(cu_stream_destroy(one), 0);
  recorder_take();
  CHECK_OK(t, tensors_run(t, session, d, two));
  CHECK_LOG("s4 waits for e1\n" RUN("m3", "m4", "m5", "s4") "record e1 in s4\n");
  CHECK_EQ(cu_stream_destroy(two), 0);
  tensors_free_device(d);
  end();
}

static void host_tensors(char **arguments) {
  start(arguments, PACKAGER_GRAPH_OFF);
  tensors_t *h = tensors_new(8), *d = tensors_on_device(8); /* m3, m4, m5 */
  CHECK_OK(t, tensors_run(t, session, h, NULL));
  CHECK_LOG("upload m6 128 in s2\n"
            "record e2 in s2\n" RUN("m6", "m7", "m8", "s2")
            "download m7 128 in s2\n"
            "download m8 128 in s2\n"
            "wait for s2\n");
  tensors_check_echo(h);
  void *stream = stream_new(); /* s3 */
  recorder_take();
  memset(h->echo, 0, sizeof h->echo);
  CHECK_OK(t, tensors_run(t, session, h, stream)); /* waits all the same */
  CHECK_LOG("upload m6 128 in s3\n"
            "record e2 in s3\n" RUN("m6", "m7", "m8", "s3")
            "download m7 128 in s3\n"
            "download m8 128 in s3\n"
            "wait for s3\n");
  tensors_check_echo(h);

  /* From the host to the device: the second run waits with its copy for that of the first. */
  d->inputs[0] = &h->tx;
  CHECK_OK(t, tensors_run(t, session, d, stream));
  CHECK_LOG(
      "upload m6 128 in s3\n"
      "record e2 in s3\n" RUN("m6", "m4", "m5", "s3") "record e1 in s3\n");
  h->x[0] = 77;
  CHECK_OK(t, tensors_run(t, session, d, stream));
  CHECK_LOG(
      "wait for e2\n"
      "upload m6 128 in s3\n"
      "record e2 in s3\n" RUN("m6", "m4", "m5", "s3") "record e1 in s3\n");
  CHECK(*(float *)d->techo.data == 77);

  /* Pinned memory is copied from and to directly, and not waited for. */
  void *pinned[3];
  DLTensor *tensors[] = {&h->tx, &h->ty, &h->techo};
  for (int i = 0; i < 3; ++i) {
    CHECK_EQ(cu_host_alloc(&pinned[i], 128, 0), 0);
    tensors[i]->data = pinned[i];
    tensors[i]->device.device_type = kDLCUDAHost;
  }
  memcpy(pinned[0], h->x, 128);
  CHECK_OK(t, tensors_run(t, session, h, stream));
  CHECK_LOG("upload m6 128 in s3\n" RUN(
      "m6", "m7", "m8",
      "s3") "download m7 128 in s3\n"
            "download m8 128 in s3\n"
            "record e1 in s3\n");
  tensors_check_echo(h);
  for (int i = 0; i < 3; ++i) CHECK_EQ(cu_host_free(pinned[i]), 0);
  CHECK_EQ(cu_stream_destroy(stream), 0);
  free(h);
  tensors_free_device(d);
  end();
}

/* Buffers grow with the tensors, and are kept for smaller ones. */
static void sizes(char **arguments) {
  start(arguments, PACKAGER_GRAPH_OFF);
  static const int64_t rows[] = {1, 256, 257, 4096, 0, 5, 300};
  static const int live[] = {3, 3, 3, 3, 3, 3, 3};
  for (int i = 0; i < 7; ++i) {
    tensors_t *h = tensors_new(rows[i]);
    CHECK_OK(t, tensors_run(t, session, h, NULL));
    tensors_check_echo(h);
    free(h);
    char expected[64];
    snprintf(expected, sizeof expected, "%d memory, 1 pooled memory, %d pinned memory, ", 1 + live[i], live[i]);
    CHECK_HAS(recorder_live(), expected);
    const char *log = recorder_take();
    CHECK_EQ(strstr(log, "free") != NULL, i == 2 || i == 3);
    CHECK_EQ(strstr(log, "launch") == NULL, i == 4); /* n is 0 */
  }
  end();
}

static void refuse(tensors_t *d, void *stream, int32_t status, const char *message) {
  CHECK_EQ(tensors_run(t, session, d, stream), status);
  CHECK_TEXT(t->session_error(session), message);
  CHECK_LOG("");
}

static void tensors(char **arguments) {
  start(arguments, PACKAGER_GRAPH_OFF);
  tensors_t *d = tensors_on_device(16); /* m3, m4, m5, of which 8 rows are used */
  d->shape[0] = 8;
  recorder_take();
  d->tx.device.device_id = 1;
  refuse(d, NULL, PACKAGER_ERROR_DEVICE, "input 'x': on CUDA device 1, expected device 0, the session's");
  d->tx.device = (DLDevice){7, 0};
  refuse(d, NULL, PACKAGER_ERROR_DEVICE, "input 'x': device type is 7, expected 2 (CUDA) or 1 (CPU)");
  d->tx.device = (DLDevice){kDLCUDA, 0};
  d->techo.device.device_id = 3;
  refuse(d, NULL, PACKAGER_ERROR_DEVICE, "output 'echo': on CUDA device 3, expected device 0, the session's");
  d->techo.device.device_id = 0;
  d->techo.data = (char *)d->ty.data + 64;
  refuse(d, NULL, PACKAGER_ERROR_OVERLAP, "output 'echo' overlaps output 'y'");
  d->techo.data = recorder_memory(5);
  d->tx.device = (DLDevice){(DLDeviceType)13, 5}; /* managed: in place, of no device in particular */
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_LOG(RUN("m3", "m4", "m5", "s2") "wait for s2\n");

  /* Not aligned as kernels expect: through a copy. */
  d->tx.device = (DLDevice){kDLCUDA, 0};
  d->tx.byte_offset = 4;
  d->techo.byte_offset = 8;
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_LOG("copy m6 m3+4 128 in s2\n" RUN(
      "m6", "m4", "m7",
      "s2") "copy m5+8 m7 128 in s2\n"
            "wait for s2\n");
  CHECK_EQ(memcmp((char *)recorder_memory(5) + 8, d->x + 1, 128), 0);
  d->tx.byte_offset = 16;
  d->techo.byte_offset = 0;
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_LOG(RUN("m3+16", "m4", "m5", "s2") "wait for s2\n");
  tensors_free_device(d);
  end();
}

/* A run into a stream that is being captured becomes a part of that graph, and has none of its own. */
static void captured(char **arguments) {
  start(arguments, PACKAGER_GRAPH_ON);
  tensors_t *d = tensors_on_device(8), *h = tensors_new(8);
  void *stream = stream_new(), *graph; /* s3 */
  recorder_take();
  CHECK_EQ(cu_begin_capture(stream, 0), 0);
  CHECK_OK(t, tensors_run(t, session, d, stream));
  CHECK_LOG(
      "capture launch scale grid=1,1,1 block=256,1,1 shared=0 m2 m3 m1 8 in s3\n"
      "capture launch add grid=8,1,1 block=128,1,1 shared=100000 m4 m2 m1+64 8 in s3\n"
      "capture copy m5 m3 128 in s3\n");
  refuse(h, stream, PACKAGER_ERROR_DEVICE,
         "input 'x': in host memory, expected device memory: the stream is being captured");
  d->techo.byte_offset = 4;
  d->techo.data = (char *)d->techo.data - 16;
  refuse(d, stream, PACKAGER_ERROR_ALIGNMENT,
         "output 'echo': not aligned to 16 bytes, as it must be while the stream is being captured");
  d->techo.byte_offset = 16;
  CHECK_EQ(cu_end_capture(stream, &graph), 0);
  CHECK_EQ(cu_graph_destroy(graph), 0);
  CHECK_OK(t, tensors_run(t, session, d, stream)); /* the session has a graph for its own runs */
  const char *log = recorder_take();
  CHECK_HAS(log, "launch x1 in s3\n");
  d->techo.data = recorder_memory(5);
  d->techo.byte_offset = 0;
  CHECK_EQ(cu_stream_destroy(stream), 0);
  tensors_free_device(d);
  free(h);
  end();
}

typedef struct {
  char text[256];
  size_t used;
} report_t;

static void write_report(void *context, const char *symbol, int64_t begin, int64_t duration) {
  report_t *report = context;
  report->used += (size_t)snprintf(report->text + report->used, sizeof report->text - report->used,
                                   "%s %" PRId64 " %" PRId64 "\n", symbol, begin, duration);
}

/* The recorder lets a millisecond pass between events that were made one after the other. */
static void profile(char **arguments) {
  start(arguments, PACKAGER_GRAPH_ON);
  tensors_t *h = tensors_new(8);
  for (int i = 0; i < 3; ++i) {
    report_t report = {"", 0};
    CHECK_OK(t, t->session_profile(session, h->inputs, 1, h->outputs, 2, write_report, &report));
    CHECK_TEXT(report.text,
               "scale 2000000 1000000\n"
               "add 4000000 1000000\n"
               "keep 6000000 1000000\n");
    host_check_context();
    tensors_check_echo(h);
  }
  h->shape[0] = 13;
  report_t report = {"", 0};
  CHECK_EQ(t->session_profile(session, h->inputs, 1, h->outputs, 2, write_report, &report), PACKAGER_ERROR_KERNEL);
  CHECK_TEXT(t->session_error(session), "call 1 (scale) reported failure");
  CHECK_EQ(report.used, 0);
  h->shape[0] = 0; /* nothing is launched, and nothing measured */
  CHECK_OK(t, t->session_profile(session, h->inputs, 1, h->outputs, 2, write_report, &report));
  CHECK_EQ(report.used, 0);
  CHECK_EQ(t->session_profile(session, h->inputs, 1, h->outputs, 2, NULL, NULL), PACKAGER_ERROR_ARGUMENT);
  free(h);
  end();
}

int main(int argc, char **argv) {
  static const case_t cases[] = {{"streams", streams}, {"host_tensors", host_tensors}, {"sizes", sizes},
                                 {"tensors", tensors}, {"captured", captured},         {"profile", profile}};
  return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
