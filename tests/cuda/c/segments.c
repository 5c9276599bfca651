/* Runs of which segments become graphs, between what the host reads: see split.h. Argument: the bundle. */
#include "host.h"

static bundle_t bundle;
static const packager_bundle_v1_t *t;
static packager_session_t *session;

static void start(const char *path, int32_t graph) {
  host_start(1);
  bundle = bundle_open(path);
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

static void decide(tensors_t *d, int64_t taken, int64_t count) {
  const int64_t numbers[] = {taken, count};
  memcpy(d->tx.data, numbers, sizeof numbers);
}

#define COMPUTE(x, y)                                                  \
  "launch scale grid=1,1,1 block=256,1,1 shared=0 m2 " x " m1 8 in " S \
  "\nlaunch add grid=8,1,1 block=128,1,1 shared=100000 " y " m2 m1+64 8 in " S "\n"
#define CAPTURE(x, y)                                            \
  "capture launch scale grid=1,1,1 block=256,1,1 shared=0 m2 " x \
  " m1 8 in s3\n"                                                \
  "capture launch add grid=8,1,1 block=128,1,1 shared=100000 " y " m2 m1+64 8 in s3\n"
#define READ(x) "download " x " 8 in s2\ndownload " x "+8 8 in s2\nwait for s2\n"
#define KEEP(echo, x) "copy " echo " " x " 128 in s2\n"
#define S "s2"

/* A segment is captured as it comes the second time, that in a loop within the first run; there is one for each value
 * that was read of those that it has as keys. The host waits once for what it reads. */
static void automatic(char **arguments) {
  start(arguments[0], PACKAGER_GRAPH_AUTO);
  tensors_t *d = tensors_on_device(8);
  decide(d, 1, 0);
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_LOG(COMPUTE("m3", "m4") READ("m3") KEEP("m5", "m3") COMPUTE("m3", "m4") "wait for s2\n");
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_LOG("stream s3 non-blocking\n" CAPTURE("m3", "m4") "graph x1 of 2 nodes\nlaunch x1 in s2\n" COMPUTE(
      "m3", "m4") READ("m3") "capture copy m5 m3 128 in s3\n" CAPTURE("m3", "m4") "graph x2 of 3 nodes\n"
                                                                                  "launch x2 in s2\n" KEEP(
          "m5", "m3") COMPUTE("m3", "m4") "wait for s2\n");
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_LOG("launch x1 in s2\n" COMPUTE("m3", "m4") READ("m3") "launch x2 in s2\n" KEEP("m5", "m3")
                COMPUTE("m3", "m4") "wait for s2\n");
  /* The other branch: a graph of its own, from its second run on. */
  decide(d, 0, 0);
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_LOG("launch x1 in s2\n" COMPUTE("m3", "m4") READ("m3") COMPUTE("m3", "m4") "wait for s2\n");
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_HAS(recorder_take(), "graph x3 of 2 nodes\nlaunch x3 in s2\n");
  /* A body is captured in its second iteration. */
  decide(d, 0, 3);
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  const char *log = recorder_take();
  CHECK_HAS(log, "launch x3 in s2\n");
  CHECK_HAS(log, "graph x4 of 2 nodes\nlaunch x4 in s2\n");
  CHECK(!strstr(log, "graph x5"));
  /* The segment with a launch for each of `count`: of one for which it was not seen. */
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_HAS(recorder_take(), "graph x5 of 3 nodes\nlaunch x5 in s2\n");
  decide(d, 1, 0);
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_LOG("launch x1 in s2\n" COMPUTE("m3", "m4") READ("m3") "launch x2 in s2\n" KEEP("m5", "m3")
                COMPUTE("m3", "m4") "wait for s2\n");
  /* Too many for a graph. */
  decide(d, 1, 4097);
  for (int i = 0; i < 3; ++i) {
    CHECK_OK(t, tensors_run(t, session, d, NULL));
    CHECK(!strstr(recorder_take(), "capture"));
  }
  tensors_free_device(d);
  end();
}

/* Other pointers: what differs in a segment is changed as it is launched. */
static void pointers(char **arguments) {
  start(arguments[0], PACKAGER_GRAPH_ON);
  tensors_t *d = tensors_on_device(8), *e = tensors_on_device(8); /* m3 to m5, m6 to m8 */
  decide(d, 1, 2);
  decide(e, 1, 2);
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  recorder_take();
  for (int i = 0; i < 2; ++i) {
    CHECK_OK(t, tensors_run(t, session, e, NULL));
    CHECK_EQ(memcmp(e->techo.data, e->tx.data, 128), 0);
    const char *log = recorder_take();
    CHECK(!strstr(log, "capture"));
    CHECK_EQ(strstr(log, "change n1 of x1 to launch scale grid=1,1,1 block=256,1,1 shared=0 m2 m6 m1 8\n") != NULL,
             i == 0);
    CHECK_EQ(strstr(log, "change n3 of x2 to copy m8 m6 128\n") != NULL, i == 0);
    CHECK_EQ(strstr(log, "change n6 of x3 to copy m8 m6 128\n") != NULL, i == 0);
  }
  tensors_t *h = tensors_new(8);
  h->x[0] = h->x[1] = h->x[2] = h->x[3] = 0; /* not taken, no iteration */
  for (int i = 0; i < 2; ++i) CHECK_OK(t, tensors_run(t, session, h, NULL));
  free(h);
  tensors_free_device(d);
  tensors_free_device(e);
  end();
}

/* 16 graphs for each segment of the run; one that is in use in the run is waited for before it goes. */
static void graphs_of_a_session(char **arguments) {
  start(arguments[0], PACKAGER_GRAPH_ON);
  tensors_t *d = tensors_on_device(64);
  decide(d, 1, 1);
  for (int n = 1; n <= 40; ++n) {
    d->shape[0] = n;
    if (n == 13) continue; /* scale fails */
    CHECK_OK(t, tensors_run(t, session, d, NULL));
  }
  CHECK_HAS(recorder_live(), "64 graph, ");
  tensors_free_device(d);
  end();
}

/* A segment that cannot be captured is launched from then on, others are not; or graphs were asked for. */
static void refused(char **arguments) {
  start(arguments[0], PACKAGER_GRAPH_AUTO);
  tensors_t *d = tensors_on_device(8);
  decide(d, 1, 0);
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  recorder_fail("cuGraphInstantiate:2:2");
  for (int run = 0; run < 3; ++run) {
    CHECK_OK(t, tensors_run(t, session, d, NULL));
    const char *log = recorder_take();
    CHECK_HAS(log, "launch x1 in s2\n");
    CHECK(!strstr(log, "launch x2"));
  }
  CHECK_OK(t, t->session_destroy(session));
  packager_session_options_t options = {.struct_size = sizeof options, .graph = PACKAGER_GRAPH_ON};
  session = session_open(t, &options);
  recorder_fail("cuGraphInstantiate:2:2");
  CHECK_EQ(tensors_run(t, session, d, NULL), PACKAGER_ERROR_MEMORY);
  CHECK_HAS(t->session_error(session), "a graph cannot be made of the run: CUDA_ERROR_OUT_OF_MEMORY (out of memory); ");
  recorder_fail("cuLaunchKernel:2:1");
  CHECK_EQ(tensors_run(t, session, d, NULL), PACKAGER_ERROR_KERNEL);
  CHECK_TEXT(t->session_error(session), "call 5 (add): CUDA_ERROR_INVALID_VALUE (invalid argument)");
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  decide(d, 2, 0);
  CHECK_EQ(tensors_run(t, session, d, NULL), PACKAGER_ERROR_SHAPE);
  CHECK_HAS(t->session_error(session), "taken of If is 2, expected 0..1");
  decide(d, 1, 1);
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  d->shape[0] = 13;
  CHECK_EQ(tensors_run(t, session, d, NULL), PACKAGER_ERROR_KERNEL);
  CHECK_TEXT(t->session_error(session), "call 1 (scale) reported failure");
  d->shape[0] = 8;
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  tensors_free_device(d);
  end();
}

/* The host program's graph cannot wait. */
static void captured(char **arguments) {
  start(arguments[0], PACKAGER_GRAPH_AUTO);
  tensors_t *d = tensors_on_device(8);
  decide(d, 1, 0);
  void *stream, *graph;
  CHECK_EQ(cu_stream_create(&stream, 1), 0);
  CHECK_EQ(cu_begin_capture(stream, 0), 0);
  CHECK_EQ(tensors_run(t, session, d, stream), PACKAGER_ERROR_ARGUMENT);
  CHECK_TEXT(t->session_error(session),
             "the stream is being captured, but the run has to wait for taken of If, which it computes");
  CHECK_EQ(cu_end_capture(stream, &graph), 0);
  CHECK_EQ(cu_graph_destroy(graph), 0);
  CHECK_EQ(cu_stream_destroy(stream), 0);
  tensors_free_device(d);
  end();
}

static void count_calls(void *context, const char *name, int64_t start_ns, int64_t duration_ns) {
  (void)name, (void)start_ns, (void)duration_ns;
  ++*(int *)context;
}

/* A profile has each launch by itself. */
static void profile(char **arguments) {
  start(arguments[0], PACKAGER_GRAPH_ON);
  tensors_t *d = tensors_on_device(8);
  decide(d, 1, 0);
  int calls = 0;
  CHECK_OK(t, t->session_profile(session, d->inputs, 1, d->outputs, 2, count_calls, &calls));
  CHECK_EQ(calls, 5);
  tensors_free_device(d);
  end();
}

/* Whatever call fails in the second run, which captures: there is a message, and the next run works. */
static void faults(char **arguments) {
  static const char *const functions[] = {
      "cuLaunchKernel",       "cuMemcpyDtoDAsync",  "cuMemcpyDtoHAsync",      "cuStreamSynchronize", "cuMemHostAlloc",
      "cuStreamBeginCapture", "cuStreamEndCapture", "cuStreamGetCaptureInfo", "cuGraphInstantiate",  "cuGraphLaunch"};
  int failures = 0;
  for (size_t i = 0; i < sizeof functions / sizeof *functions; ++i) {
    for (int nth = 1, failed = 1; failed; ++nth) {
      start(arguments[0], PACKAGER_GRAPH_ON);
      tensors_t *d = tensors_on_device(8);
      decide(d, 1, 2);
      char rule[80];
      snprintf(rule, sizeof rule, "%s:%d:2", functions[i], nth);
      recorder_fail(rule);
      failed = tensors_run(t, session, d, NULL) != 0;
      recorder_fail("");
      CHECK(failed || nth > 1);
      failures += failed;
      if (failed) CHECK_HAS(t->session_error(session), "CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
      memset(d->techo.data, 0, 128);
      CHECK_OK(t, tensors_run(t, session, d, NULL));
      CHECK_EQ(memcmp(d->techo.data, d->tx.data, 128), 0);
      tensors_free_device(d);
      end();
    }
  }
  CHECK(failures > 20);
}

int main(int argc, char **argv) {
  static const case_t cases[] = {
      {"automatic", automatic}, {"pointers", pointers}, {"graphs_of_a_session", graphs_of_a_session},
      {"refused", refused},     {"captured", captured}, {"profile", profile},
      {"faults", faults}};
  return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
