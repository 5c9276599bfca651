/* Runs that become graphs. Arguments: the dynamic bundle, the static one. */
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

#define SCALE(x, w) "launch scale grid=1,1,1 block=256,1,1 shared=0 m2 " x " " w " 8"
#define ADD(y, b) "launch add grid=8,1,1 block=128,1,1 shared=100000 " y " m2 " b " 8"
#define KEEP(echo, x) "copy " echo " " x " 128"
#define IN(stream) " in " stream "\n"
#define RUN(x, y, echo, stream) SCALE(x, "m1") IN(stream) ADD(y, "m1+64") IN(stream) KEEP(echo, x) IN(stream)
#define CAPTURE(x, y, echo, stream) \
  "capture " SCALE(x, "m1") IN(stream) "capture " ADD(y, "m1+64") IN(stream) "capture " KEEP(echo, x) IN(stream)

/* The second run of a shape captures; others replay. */
static void automatic(char **arguments) {
  start(arguments[0], PACKAGER_GRAPH_AUTO);
  tensors_t *d = tensors_on_device(8);
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_LOG(RUN("m3", "m4", "m5", "s2") "wait for s2\n");
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_LOG("stream s3 non-blocking\n" CAPTURE(
      "m3", "m4", "m5",
      "s3") "graph x1 of 3 nodes\n"
            "launch x1 in s2\n" RUN("m3", "m4", "m5", "s2") "wait for s2\n");
  memset(d->techo.data, 0, 128);
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_LOG("launch x1 in s2\n" RUN("m3", "m4", "m5", "s2") "wait for s2\n");
  tensors_check_echo(d);
  /* Other streams replay the same graph. */
  CHECK_OK(t, tensors_run(t, session, d, (void *)1));
  CHECK_LOG("launch x1 in default1\n" RUN("m3", "m4", "m5", "default1") "record e1 in default1\n");
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_LOG(
      "s2 waits for e1\n"
      "launch x1 in s2\n" RUN("m3", "m4", "m5", "s2") "wait for s2\n");
  tensors_free_device(d);
  end();
}

/* Other pointers: what differs is changed, and only that. */
static void pointers(char **arguments) {
  start(arguments[1], PACKAGER_GRAPH_ON);
  tensors_t *d = tensors_on_device(8), *e = tensors_on_device(8); /* m3 to m5, m6 to m8 */
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_LOG("stream s3 non-blocking\n" CAPTURE(
      "m3", "m4", "m5",
      "s3") "graph x1 of 3 nodes\n"
            "launch x1 in s2\n" RUN("m3", "m4", "m5", "s2") "wait for s2\n");
  CHECK_OK(t, tensors_run(t, session, e, NULL));
  CHECK_LOG("change n1 of x1 to " SCALE("m6", "m1") "\n"
            "change n2 of x1 to " ADD("m7", "m1+64") "\n"
            "change n3 of x1 to " KEEP("m8", "m6") "\n"
            "launch x1 in s2\n" RUN("m6", "m7", "m8", "s2") "wait for s2\n");
  CHECK_OK(t, tensors_run(t, session, e, NULL));
  CHECK_LOG("launch x1 in s2\n" RUN("m6", "m7", "m8", "s2") "wait for s2\n");
  e->outputs[1] = &d->techo;
  CHECK_OK(t, tensors_run(t, session, e, NULL));
  CHECK_LOG("change n3 of x1 to " KEEP(
      "m5",
      "m6") "\n"
            "launch x1 in s2\n" RUN("m6", "m7", "m5", "s2") "wait for s2\n");
  e->outputs[0] = &d->ty;
  CHECK_OK(t, tensors_run(t, session, e, NULL));
  CHECK_LOG("change n2 of x1 to " ADD(
      "m4",
      "m1+64") "\n"
               "launch x1 in s2\n" RUN("m6", "m4", "m5", "s2") "wait for s2\n");

  /* Constants are pointers, too. */
  float data[] = {1, 2, 3, 4};
  int64_t four[] = {4};
  const DLTensor value = {data, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, four, NULL, 0};
  const DLTensor *values[] = {&value};
  const char *names[] = {"w"};
  CHECK_OK(t, t->session_set_constants(session, names, values, 1));
  recorder_take();
  CHECK_OK(t, tensors_run(t, session, e, NULL));
  const char *log = recorder_take();
  CHECK_HAS(log, "change n1 of x1 to " SCALE("m6", "m9") "\nlaunch x1 in s2\n" SCALE("m6", "m9") " in s2\n");

  /* Tensors in host memory: the graph has their places on the device. */
  tensors_t *h = tensors_new(8);
  for (int i = 0; i < 3; ++i) {
    memset(h->echo, 0, sizeof h->echo);
    CHECK_OK(t, tensors_run(t, session, h, NULL));
    tensors_check_echo(h);
    log = recorder_take();
    CHECK_EQ(strstr(log, "change") != NULL, i == 0);
    CHECK_HAS(log, "launch x1 in s2\n");
  }
  /* A change that the driver refuses: the graph is made anew. */
  recorder_fail("cuGraphExecMemcpyNodeSetParams:1:910");
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  tensors_check_echo(d);
  log = recorder_take();
  CHECK_HAS(log, "cuGraphExecMemcpyNodeSetParams gives 910\ncapture launch scale");
  CHECK_HAS(log, "graph x2 of 3 nodes\nlaunch x2 in s2\n");
  free(h);
  tensors_free_device(d);
  tensors_free_device(e);
  end();
}

/* Each shape has a graph; of more than 16 the one goes that was not used for longest. */
static void shapes(char **arguments) {
  start(arguments[0], PACKAGER_GRAPH_ON);
  tensors_t *d = tensors_on_device(64);
  char expected[64];
  for (int round = 0; round < 2; ++round) {
    for (int n = 1; n <= 12; ++n) {
      d->shape[0] = n;
      CHECK_OK(t, tensors_run(t, session, d, NULL));
      snprintf(expected, sizeof expected, "launch x%d in s2\n", n);
      const char *log = recorder_take();
      CHECK_HAS(log, expected);
      CHECK_EQ(strstr(log, "capture") != NULL, round == 0);
    }
  }
  for (int n = 21; n <= 26; ++n) { /* 5 and 6 of these take the places of 1 and 2 */
    d->shape[0] = n;
    CHECK_OK(t, tensors_run(t, session, d, (void *)1));
    const char *log = recorder_take();
    CHECK_EQ(strstr(log, "wait for e1\n") != NULL, n >= 25); /* which may be going on, as far as the session knows */
    CHECK_HAS(log, "capture");
  }
  CHECK_HAS(recorder_live(), "16 graph, 48 node, 16 exec");
  d->shape[0] = 3;
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_HAS(recorder_take(), "launch x3 in s2\n");
  d->shape[0] = 1;
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_HAS(recorder_take(), "capture");
  d->shape[0] = 0; /* without a node */
  for (int i = 0; i < 2; ++i) {
    CHECK_OK(t, tensors_run(t, session, d, NULL));
    CHECK_LOG("wait for s2\n");
  }
  d->shape[0] = 64; /* the number of nodes is that of the shape's run */
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_HAS(recorder_take(), "of 3 nodes");
  tensors_free_device(d);
  end();
}

/* What cannot be captured is launched, unless graphs were asked for. */
static void refused(char **arguments) {
  start(arguments[0], PACKAGER_GRAPH_AUTO);
  tensors_t *d = tensors_on_device(8);
  static const char *const faults[] = {"cuStreamBeginCapture:1:1", "cuGraphInstantiate:1:2",
                                       "cuStreamGetCaptureInfo:1:1", "cuStreamEndCapture:1:1"};
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  for (int i = 0; i < 4; ++i) {
    d->shape[0] = i + 1;
    CHECK_OK(t, tensors_run(t, session, d, NULL));
    recorder_fail(faults[i]);
    for (int run = 0; run < 3; ++run) {
      CHECK_OK(t, tensors_run(t, session, d, NULL));
      const char *log = recorder_take();
      CHECK_HAS(log, "launch scale");
      CHECK(!strstr(log, "launch x"));
    }
  }
  CHECK(!strstr(recorder_live(), "graph") && !strstr(recorder_live(), "exec"));
  CHECK_OK(t, t->session_destroy(session));
  packager_session_options_t options = {.struct_size = sizeof options, .graph = PACKAGER_GRAPH_ON};
  session = session_open(t, &options);
  recorder_fail("cuGraphInstantiate:1:2");
  CHECK_EQ(tensors_run(t, session, d, NULL), PACKAGER_ERROR_MEMORY);
  CHECK_HAS(t->session_error(session), "a graph cannot be made of the run: CUDA_ERROR_OUT_OF_MEMORY (out of memory); ");
  recorder_fail("cuLaunchKernel:2:1");
  CHECK_EQ(tensors_run(t, session, d, NULL), PACKAGER_ERROR_KERNEL);
  CHECK_TEXT(t->session_error(session), "call 2 (add): CUDA_ERROR_INVALID_VALUE (invalid argument)");
  CHECK(!strstr(recorder_live(), "graph"));
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  CHECK_HAS(recorder_live(), "1 graph");
  recorder_take();
  d->shape[0] = 13;
  CHECK_EQ(tensors_run(t, session, d, NULL), PACKAGER_ERROR_KERNEL);
  CHECK_TEXT(t->session_error(session), "call 1 (scale) reported failure");
  d->shape[0] = 8;
  CHECK_OK(t, tensors_run(t, session, d, NULL));
  tensors_free_device(d);
  end();
}

int main(int argc, char **argv) {
  static const case_t cases[] = {
      {"automatic", automatic}, {"pointers", pointers}, {"shapes", shapes}, {"refused", refused}};
  return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
