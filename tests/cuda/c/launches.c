/* Launches that may overlap, and launches whose arguments are filled. Arguments: a bundle with -DFLAGS=1, one with
 * -DMODEL_FILLED. */
#include "host.h"

static bundle_t bundle;
static const packager_bundle_v1_t *t;
static packager_session_t *session;

/* Constants are m1, the arena is m2, the stream s2. */
static void start(const char *path, const packager_session_options_t *options) {
  host_start(1);
  bundle = bundle_open(path);
  t = bundle.table;
  session = session_open(t, options);
  recorder_take();
}

static void end(void) {
  CHECK_OK(t, t->session_destroy(session));
  host_end();
  CHECK_EQ(dlclose(bundle.handle), 0);
}

#define OPTIONS(...) &(packager_session_options_t){.struct_size = sizeof(packager_session_options_t), __VA_ARGS__}
#define SCALE(x) "launch scale grid=1,1,1 block=256,1,1 shared=0 m2 " x " m1 8 in "
#define ADD(overlap, y, a) "launch add grid=8,1,1 block=128,1,1 shared=100000" overlap " " y " " a " m1+64 8"
#define KEEP(echo, x) "copy " echo " " x " 128 in "
/* What fill_add has written: how often it was called, the multiprocessors, two tensor maps. */
#define FILLED(calls, y) " " calls " 132 " y " 2 4 " y " 3 32"
#define P " programmatic"

static void ignore_report(void *context, const char *symbol, int64_t begin, int64_t duration) {
  (void)context, (void)symbol, (void)begin, (void)duration;
}

/* Where the GPU and the kernels' code are of 90 or later, and not where launches are waited for or timed. The first
 * kernel of a run never overlaps what came before. */
static void overlapping(char **arguments) {
  const char *arch = getenv("RECORDER_ARCH"), *ptx = getenv("RECORDER_PTX");
  int overlaps = (!arch || atoi(arch) >= 90) && (!ptx || atoi(ptx) >= 90);
  start(arguments[0], OPTIONS(.graph = PACKAGER_GRAPH_OFF));
  tensors_t *d = tensors_on_device(8); /* m3, m4, m5 */
  for (int i = 0; i < 2; ++i) {
    CHECK_OK(t, tensors_run(t, session, d, NULL));
    CHECK_TEXT(recorder_take(), overlaps ? SCALE("m3") "s2\n" ADD(P, "m4", "m2") " in s2\n" KEEP("m5", "m3") "s2\n"
                                           "wait for s2\n"
                                         : SCALE("m3") "s2\n" ADD("", "m4", "m2") " in s2\n" KEEP("m5", "m3") "s2\n"
                                           "wait for s2\n");
  }
  CHECK_OK(t, tensors_run(t, session, d, (void *)1));
  CHECK_EQ(strstr(recorder_take(), ADD(P, "m4", "m2") " in default1\n") != NULL, overlaps);
  /* A part of the caller's graph. */
  void *stream, *graph;
  CHECK_EQ(cu_stream_create(&stream, 1), 0);
  CHECK_EQ(cu_begin_capture(stream, 0), 0);
  CHECK_OK(t, tensors_run(t, session, d, stream));
  CHECK_EQ(cu_end_capture(stream, &graph), 0);
  const char *log = recorder_take();
  CHECK_HAS(log, "capture " SCALE("m3") "s3\n");
  CHECK_EQ(strstr(log, "capture " ADD(P, "m4", "m2") " in s3\n") != NULL, overlaps);
  CHECK_EQ(cu_graph_destroy(graph), 0);
  CHECK_EQ(cu_stream_destroy(stream), 0);
  CHECK_OK(t, t->session_destroy(session));

  session = session_open(t, OPTIONS(.launch_blocking = 1));
  recorder_take();
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK(!strstr(recorder_take(), P));
  CHECK_OK(t, t->session_destroy(session));

  /* A measured run comes after some that are not; those overlap. */
  session = session_open(t, OPTIONS(.graph = PACKAGER_GRAPH_OFF));
  recorder_take();
  CHECK_OK(t, t->session_profile(session, d->inputs, 1, d->outputs, 2, ignore_report, NULL));
  log = recorder_take();
  int found = 0;
  for (const char *at = log; (at = strstr(at, P)); ++at) ++found;
  CHECK_EQ(found, overlaps ? 4 : 0);
  const char *measured = strstr(log, "record");
  CHECK(measured && strstr(measured, "launch add") && !strstr(measured, P));
  tensors_free_device(d);
  end();
}

/* In graphs of the session's. Nodes are changed as others are, and are what they were. */
static void graphs(char **arguments) {
  start(arguments[0], OPTIONS(.graph = PACKAGER_GRAPH_ON));
  tensors_t *d = tensors_on_device(8), *e = tensors_on_device(8); /* m3 to m5, m6 to m8 */
#define REPLAY(x, y, echo) \
  "launch x1 in s2\n" SCALE(x) "s2\n" ADD(P, y, "m2") " in s2\n" KEEP(echo, x) "s2\nwait for s2\n"
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_LOG("stream s3 non-blocking\n"
            "capture " SCALE("m3") "s3\n"
            "capture " ADD(P, "m4", "m2") " in s3\n"
            "capture " KEEP("m5", "m3") "s3\n"
            "graph x1 of 3 nodes\n" REPLAY("m3", "m4", "m5"));
  e->inputs[0] = &d->tx;
  e->outputs[1] = &d->techo;
  CHECK_OK(t, tensors_run(t, session, e, NULL));
  CHECK_LOG("change n2 of x1 to " ADD(P, "m7", "m2") "\n" REPLAY("m3", "m7", "m5"));
  tensors_free_device(d);
  tensors_free_device(e);
  end();
}

#define RUN(one, two, y)                                                                 \
  SCALE("m3")                                                                            \
  "s2\n" ADD(P, y, "m2") FILLED(one, y) " in s2\n" KEEP("m5", "m3") "s2\n" ADD("", y, y) \
      FILLED(two, y) " in s2\nwait for s2\n"

/* A problem is filled once, at each place; after a copy nothing overlaps. */
static void filled(char **arguments) {
  start(arguments[1], OPTIONS(.graph = PACKAGER_GRAPH_OFF));
  tensors_t *d = tensors_on_device(8), *e = tensors_on_device(8); /* m3 to m5, m6 to m8 */
  for (int i = 0; i < 3; ++i) {
    CHECK_OK(t, tensors_run(t, session, d, NULL));
    CHECK_LOG(RUN("1", "2", "m4"));
  }
  d->outputs[0] = &e->ty;
  for (int i = 0; i < 2; ++i) {
    CHECK_OK(t, tensors_run(t, session, d, NULL));
    CHECK_LOG(RUN("3", "4", "m7"));
  }
  d->outputs[0] = &d->ty; /* the last problem is kept, and no other */
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_LOG(RUN("5", "6", "m4"));
  d->shape[0] = 0; /* of an empty problem as well, which is not launched */
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_LOG("wait for s2\n");
  d->shape[0] = 8;
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_LOG(RUN("9", "10", "m4"));

  /* A session has its own. */
  packager_session_t *other = session_open(t, OPTIONS(.graph = PACKAGER_GRAPH_OFF));
  CHECK_OK(t, tensors_run(t, other, d, NULL));
  CHECK_HAS(recorder_take(), " 11 132 ");
  CHECK_OK(t, t->session_destroy(other));
  recorder_take();
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_LOG(RUN("9", "10", "m4"));
  tensors_free_device(d);
  tensors_free_device(e);
  end();
}

/* Graphs hold what is filled. Where that is to be launched in another way the graph is made anew. */
static void filled_graphs(char **arguments) {
  start(arguments[1], OPTIONS(.graph = PACKAGER_GRAPH_ON));
  tensors_t *d = tensors_on_device(16), *e = tensors_on_device(16); /* m3 to m5, m6 to m8 */
  d->shape[0] = e->shape[0] = 8;
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_HAS(recorder_take(), "graph x1 of 4 nodes\nlaunch x1 in s2\n" RUN("1", "2", "m4"));
  d->outputs[0] = &e->ty;
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_LOG("change n2 of x1 to " ADD(P, "m7", "m2") FILLED("3", "m7") "\n"
            "change n4 of x1 to " ADD("", "m7", "m7") FILLED("4", "m7") "\n"
            "launch x1 in s2\n" RUN("3", "4", "m7"));
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_LOG("launch x1 in s2\n" RUN("3", "4", "m7"));
  e->ty.byte_offset = 16; /* no longer programmatic */
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  const char *log = recorder_take();
  CHECK_HAS(log, "capture " ADD("", "m7+16", "m2") FILLED("5", "m7+16") " in s3\n");
  CHECK_HAS(log, "graph x2 of 4 nodes\nlaunch x2 in s2\n");
  tensors_free_device(d);
  tensors_free_device(e);
  end();
}

/* A problem that the kernel cannot take: it is filled again when it comes again, as is the one before. */
static void refused(char **arguments) {
  for (int mode = PACKAGER_GRAPH_AUTO; mode <= PACKAGER_GRAPH_OFF; ++mode) {
    start(arguments[1], OPTIONS(.graph = mode));
    tensors_t *d = tensors_on_device(32);
    d->shape[0] = 8;
    CHECK_OK(t, tensors_run(t, session, d, NULL));
    d->shape[0] = 17;
    for (int i = 0; i < 3; ++i) {
      CHECK_EQ(tensors_run(t, session, d, NULL), PACKAGER_ERROR_KERNEL);
      CHECK_TEXT(t->session_error(session), "call 2 (add): kernel add cannot take the problem of this run");
    }
    d->shape[0] = 8;
    recorder_take();
    CHECK_OK(t, tensors_run(t, session, d, NULL));
    tensors_check_echo(d);
    CHECK_OK(t, tensors_run(t, session, d, NULL));
    tensors_free_device(d);
    end();
  }
}

/* Whatever the driver refuses, the session goes on. */
static void failing(char **arguments) {
  static const struct {
    const char *function;
    int calls, status;
  } cases[] = {{"cuLaunchKernelEx", 1, PACKAGER_ERROR_MEMORY},
               {"cuLaunchKernel", 2, PACKAGER_ERROR_MEMORY},
               {"cuTensorMapEncodeTiled", 2, PACKAGER_ERROR_KERNEL},
               {"cuTensorMapEncodeIm2col", 2, PACKAGER_ERROR_KERNEL}};
  for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
    for (int nth = 1; nth <= cases[i].calls + 1; ++nth) {
      start(arguments[1], OPTIONS(.graph = PACKAGER_GRAPH_OFF));
      tensors_t *d = tensors_on_device(8);
      memset(d->techo.data, 0, 128);
      char rule[80];
      snprintf(rule, sizeof rule, "%s:%d:2", cases[i].function, nth);
      recorder_fail(rule);
      CHECK_EQ(tensors_run(t, session, d, NULL), nth > cases[i].calls ? PACKAGER_OK : cases[i].status);
      recorder_fail("");
      CHECK_OK(t, tensors_run(t, session, d, NULL));
      tensors_check_echo(d);
      /* What was filled is kept, what was refused is filled anew. */
      const char *last = i > 1 && nth <= cases[i].calls ? " 3 132 " : " 2 132 ";
      CHECK_HAS(recorder_take(), last);
      tensors_free_device(d);
      end();
    }
  }
}

/* There is no memory for the arguments. Argument: a bundle that asks for far too much. */
static void no_memory(char **arguments) {
  start(arguments[0], NULL);
  tensors_t *h = tensors_new(8);
  for (int i = 0; i < 3; ++i) {
    CHECK_EQ(tensors_run(t, session, h, NULL), PACKAGER_ERROR_MEMORY);
    CHECK_TEXT(t->session_error(session),
               "call 2 (add): could not allocate host memory for the arguments of kernel add");
  }
  free(h);
  end();
}

/* A driver that is older than tensor maps and data of edges. */
static void old(char **arguments) {
  start(arguments[1], OPTIONS(.graph = PACKAGER_GRAPH_ON));
  tensors_t *d = tensors_on_device(8);
  for (int i = 0; i < 2; ++i) {
    CHECK_OK(t, tensors_run(t, session, d, NULL));
    CHECK_HAS(recorder_take(), "launch x1 in s2\n" SCALE("m3") "s2\n" ADD(P, "m4", "m2") " 1 132 0 0 0 0 0 0 in s2\n");
  }
  tensors_free_device(d);
  end();
}

/* A module for another GPU is not loaded, and its kernels cannot be launched. Argument: the bundle. */
static void elsewhere(char **arguments) {
  for (int blocking = 0; blocking < 2; ++blocking) {
    start(arguments[0], OPTIONS(.launch_blocking = blocking));
    CHECK_HAS(recorder_live(), "2 context, 1 module, 1 function, ");
    tensors_t *h = tensors_new(8);
    for (int i = 0; i < 3; ++i) {
      CHECK_EQ(tensors_run(t, session, h, NULL), PACKAGER_ERROR_MACHINE);
      CHECK_TEXT(t->session_error(session), "call 2 (add): kernel add is not for Recorder 0, which is of sm_90");
    }
    free(h);
    end();
  }
}

/* Counters are zero when they are first used, of a session alone, and no work of its runs. Argument: the bundle. */
static void counted(char **arguments) {
  start(arguments[0], OPTIONS(.graph = PACKAGER_GRAPH_ON));
  tensors_t *d = tensors_on_device(8); /* m3, m4, m5 */
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  const char *log = recorder_take();
  CHECK_HAS(log, "set m6 65536 to 0 in s1\n");
  CHECK_HAS(log, "graph x1 of 3 nodes\n");
#define COUNTED(counters) "launch add grid=8,1,1 block=128,1,1 shared=100000" P " m4 m2 " counters " 8 in s2\n"
  CHECK_HAS(log, COUNTED("m6"));
  for (int i = 0; i < 2; ++i) {
    CHECK_OK(t, tensors_run(t, session, d, NULL));
    CHECK_LOG("launch x1 in s2\n" SCALE("m3") "s2\n" COUNTED("m6") KEEP("m5", "m3") "s2\nwait for s2\n");
  }
  packager_session_t *other = session_open(t, OPTIONS(.graph = PACKAGER_GRAPH_OFF));
  CHECK_OK(t, tensors_run(t, other, d, NULL));
  log = recorder_take();
  CHECK_HAS(log, " 65536 to 0 in s1\n");
  CHECK(!strstr(log, "set m6"));
  CHECK_OK(t, t->session_destroy(other));
  tensors_free_device(d);
  end();
}

/* Argument: the bundle, of whose first run no counters can be made. */
static void uncounted(char **arguments) {
  start(arguments[0], OPTIONS(.graph = PACKAGER_GRAPH_OFF));
  tensors_t *d = tensors_on_device(8);
  CHECK_EQ(tensors_run(t, session, d, NULL), PACKAGER_ERROR_KERNEL);
  CHECK_HAS(t->session_error(session), "call 2 (add): ");
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  tensors_free_device(d);
  end();
}

int main(int argc, char **argv) {
  static const case_t cases[] = {
      {"overlapping", overlapping}, {"graphs", graphs},   {"filled", filled},       {"filled_graphs", filled_graphs},
      {"refused", refused},         {"failing", failing}, {"no_memory", no_memory}, {"old", old},
      {"elsewhere", elsewhere},     {"counted", counted}, {"uncounted", uncounted}};
  return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
