/* Work that a library enqueues. Arguments: a bundle with -DMODEL_OPAQUE and -DFLAGS=PK_CUDA_PROGRAMMATIC. */
#include "host.h"

static bundle_t bundle;
static const packager_bundle_v1_t *t;
static packager_session_t *session;

#define OPTIONS(...) &(packager_session_options_t){.struct_size = sizeof(packager_session_options_t), __VA_ARGS__}
/* The stream s2 is the session's, s3 captures libraries' work, s4 is the algorithm of n = 4096, s5 captures runs.
 * Constants are m1, the arena is m2. */
#define SCALE(x) "launch scale grid=1,1,1 block=256,1,1 shared=0 m2 " x " m1 8"
#define ADD(y, a, before, stream) \
  before "copy " y " " a " 128 in " stream "\n" before "copy " y " m1+64 16 in " stream "\n"
#define RUN(x, y, echo) \
  SCALE(x) " in s2\n" ADD(y, "m2", "", "s2") "copy " echo " " x " 128 in s2\n" ADD(y, y, "", "s2") SCALE(x) " in s2\n"
#define CHOICE(number) "stream s" number " non-blocking\n"

static void start(const char *path, const packager_session_options_t *options) {
  host_start(1);
  bundle = bundle_open(path);
  t = bundle.table;
  session = session_open(t, options);
}

static void end(void) {
  CHECK_OK(t, t->session_destroy(session));
  host_end();
  CHECK_EQ(dlclose(bundle.handle), 0);
}

/* A session is created with the choice for the largest dims; nothing runs. */
static void prepared(char **arguments) {
  start(arguments[0], NULL);
  const char *log = recorder_take();
  CHECK_HAS(log,
            "stream s2 non-blocking\nwait for s2\nstream s3 non-blocking\nstream s4 non-blocking\n"
            "capture copy m2 m2 65536 in s3\ncapture copy m2 m1+64 16 in s3\n"
            "capture copy m2 m2 65536 in s3\ncapture copy m2 m1+64 16 in s3\n");
  /* What another session has chosen holds. */
  packager_session_t *other = session_open(t, NULL);
  log = recorder_take();
  CHECK_HAS(log, "stream s5 non-blocking\nwait for s5\nstream s6 non-blocking\ncapture copy");
  CHECK(!strstr(log, "s7") && !strstr(log, "launch"));
  CHECK_OK(t, t->session_destroy(other));
  end();
}

/* In the run's stream: the library chooses once for each size; what comes after it does not overlap it. */
static void launched(char **arguments) {
  start(arguments[0], OPTIONS(.graph = PACKAGER_GRAPH_OFF));
  tensors_t *d = tensors_on_device(8); /* m3 to m5 */
  recorder_take();
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_LOG(SCALE("m3") " in s2\n" CHOICE("5") ADD("m4", "m2", "", "s2") "copy m5 m3 128 in s2\n" ADD(
      "m4", "m4", "", "s2") SCALE("m3") " in s2\nwait for s2\n");
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_LOG(RUN("m3", "m4", "m5") "wait for s2\n");
  CHECK_OK(t, t->session_destroy(session));

  session = session_open(t, OPTIONS(.launch_blocking = 1));
  recorder_take();
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  const char *log = recorder_take();
  CHECK_HAS(log, "copy m4 m6+64 16 in s7\nwait for s7\n");
  tensors_free_device(d);
  end();
}

#define CAPTURE(x, y, echo) \
  "capture " SCALE(x) " in s6\n" ADD(y, "m2", "capture ", "s3") "add a graph of 2 nodes\n"       \
  "capture copy " echo " " x " 128 in s6\n" ADD(y, y, "capture ", "s3") "add a graph of 2 nodes\n" \
  "capture " SCALE(x) " in s6\n"

/* In a graph it is one node, which is changed where its problem is another. */
static void graphs(char **arguments) {
  start(arguments[0], OPTIONS(.graph = PACKAGER_GRAPH_AUTO));
  tensors_t *d = tensors_on_device(8), *e = tensors_on_device(8); /* m3 to m5, m6 to m8 */
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  recorder_take();
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_LOG(CHOICE("6") CAPTURE("m3", "m4", "m5") "graph x1 of 5 nodes\nlaunch x1 in s2\n" RUN("m3", "m4",
                                                                                               "m5") "wait for s2\n");
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_LOG("launch x1 in s2\n" RUN("m3", "m4", "m5") "wait for s2\n");
  e->inputs[0] = &d->tx;
  e->outputs[1] = &d->techo;
  CHECK_OK(t, tensors_run(t, session, e, NULL));
  const char *log = recorder_take();
  CHECK_HAS(log, ADD("m7", "m2", "capture ", "s3") "change n");
  CHECK_HAS(log, ADD("m7", "m7", "capture ", "s3") "change n");
  CHECK_HAS(log, " of x1 to a graph of 2 nodes\nlaunch x1 in s2\n" RUN("m3", "m7", "m5") "wait for s2\n");
  e->outputs[1] = &e->techo; /* the library's problems are as they were */
  CHECK_OK(t, tensors_run(t, session, e, NULL));
  log = recorder_take();
  CHECK_HAS(log, "to copy m8 m3 128\nlaunch x1 in s2\n");
  CHECK(!strstr(log, "capture"));
  /* A change that the driver refuses: the graph is made anew. */
  recorder_fail("cuGraphExecChildGraphNodeSetParams:1:910");
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  recorder_fail("");
  log = recorder_take();
  CHECK_HAS(log, "graph x2 of 5 nodes\nlaunch x2 in s2\n" RUN("m3", "m4", "m5"));
  /* Another size is another graph. */
  d->shape[0] = 7;
  for (int i = 0; i < 2; ++i) CHECK_OK(t, tensors_run(t, session, d, NULL));
  log = recorder_take();
  CHECK_HAS(log, "add a graph of 3 nodes\n");
  CHECK_HAS(log, "graph x3 of 5 nodes\n");
  d->shape[0] = 0; /* nothing to do for the library */
  for (int i = 0; i < 3; ++i) CHECK_OK(t, tensors_run(t, session, d, NULL));
  tensors_free_device(d);
  tensors_free_device(e);
  end();
}

/* A part of the host program's graph: the library enqueues in its stream. */
static void captured(char **arguments) {
  start(arguments[0], NULL);
  tensors_t *d = tensors_on_device(8);
  void *stream, *graph;
  CHECK_EQ(cu_stream_create(&stream, 1), 0); /* s5 */
  CHECK_EQ(cu_begin_capture(stream, 0), 0);
  recorder_take();
  CHECK_OK(t, tensors_run(t, session, d, stream));
  const char *log = recorder_take();
  CHECK_HAS(log, CHOICE("6") ADD("m4", "m2", "capture ", "s5"));
  CHECK_EQ(cu_end_capture(stream, &graph), 0);
  CHECK_EQ(cu_graph_destroy(graph), 0);
  CHECK_EQ(cu_stream_destroy(stream), 0);
  tensors_free_device(d);
  end();
}

static int32_t measured;
static void count_report(void *context, const char *symbol, int64_t begin, int64_t duration) {
  (void)context, (void)begin, (void)duration;
  measured += !strcmp(symbol, "add") || !strcmp(symbol, "again");
}

static void profile(char **arguments) {
  start(arguments[0], OPTIONS(.graph = PACKAGER_GRAPH_OFF));
  tensors_t *d = tensors_on_device(8);
  CHECK_OK(t, t->session_profile(session, d->inputs, 1, d->outputs, 2, count_report, NULL));
  CHECK_EQ(measured, 2);
  tensors_free_device(d);
  end();
}

/* The session says what failed, and goes on. */
static void failing(char **arguments) {
  for (int mode = PACKAGER_GRAPH_AUTO; mode <= PACKAGER_GRAPH_OFF; ++mode) {
    start(arguments[0], OPTIONS(.graph = mode));
    tensors_t *d = tensors_on_device(32);
    for (int i = 0; i < 3; ++i) {
      d->shape[0] = 17;
      CHECK_EQ(tensors_run(t, session, d, NULL), PACKAGER_ERROR_KERNEL);
      CHECK_TEXT(t->session_error(session), "call 2 (add): the library that it calls failed with status 9");
      d->shape[0] = 8;
      CHECK_OK(t, tensors_run(t, session, d, NULL));
      tensors_check_echo(d);
    }
    tensors_free_device(d);
    end();
  }
}

/* Whatever the driver refuses: nothing is left over, and the session goes on. */
static void faults(char **arguments) {
  static const char *const functions[] = {"cuStreamCreate",           "cuStreamBeginCapture",
                                          "cuStreamEndCapture",       "cuMemcpyDtoDAsync",
                                          "cuGraphAddChildGraphNode", "cuStreamUpdateCaptureDependencies",
                                          "cuStreamGetCaptureInfo",   "cuGraphExecChildGraphNodeSetParams"};
  for (size_t i = 0; i < sizeof functions / sizeof *functions; ++i) {
    int failures = 0;
    for (int nth = 1;; ++nth) {
      start(arguments[0], OPTIONS(.graph = PACKAGER_GRAPH_ON));
      tensors_t *d = tensors_on_device(8), *e = tensors_on_device(8);
      char rule[80];
      snprintf(rule, sizeof rule, "%s:%d:2", functions[i], nth);
      recorder_fail(rule);
      int32_t status = tensors_run(t, session, d, NULL);
      if (!status) status = tensors_run(t, session, e, NULL);
      recorder_fail("");
      const int gone = strstr(recorder_take(), "gives 2") != NULL; /* a graph that cannot be changed is made anew */
      failures += gone;
      for (int n = 0; n < 2; ++n) {
        CHECK_OK(t, tensors_run(t, session, d, NULL));
        tensors_check_echo(d);
      }
      tensors_free_device(d);
      tensors_free_device(e);
      end();
      CHECK(gone || !status);
      if (!gone) break;
    }
    if (!failures) FAIL("%s is not called", functions[i]);
  }
}

/* No session where the library cannot choose. Argument: a bundle with -DLIBRARY_FAILS=4096. */
static void unprepared(char **arguments) {
  host_start(0);
  bundle = bundle_open(arguments[0]);
  for (int i = 0; i < 2; ++i) {
    CHECK_EQ(bundle.table->session_create(NULL, &session), PACKAGER_ERROR_KERNEL);
    CHECK_TEXT(bundle.table->thread_error(), "call 2 (add): the library that it calls failed with status 3");
    host_check_context();
    CHECK_TEXT(recorder_live(), "");
  }
  CHECK_EQ(dlclose(bundle.handle), 0);
}

int main(int argc, char **argv) {
  static const case_t cases[] = {{"prepared", prepared}, {"launched", launched},    {"graphs", graphs},
                                 {"captured", captured}, {"profile", profile},      {"failing", failing},
                                 {"faults", faults},     {"unprepared", unprepared}};
  return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
