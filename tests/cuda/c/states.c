/* States of a CUDA bundle. Argument: the bundle of MODEL_STATES, whose n is 8 and whose second entry is swap. */
#include "host.h"

enum { LAST, FIXED };

static bundle_t bundle;
static const packager_bundle_v1_t *t;
static packager_session_t *session;

static void start(char **arguments, int32_t graph) {
  host_start(1);
  bundle = bundle_open(arguments[0]);
  t = bundle.table;
  packager_session_options_t options = {.struct_size = sizeof options, .graph = graph};
  session = session_open(t, &options);
}

static void end(void) {
  CHECK_OK(t, t->session_destroy(session));
  host_end();
  CHECK_EQ(dlclose(bundle.handle), 0);
}

static DLTensor view(void *data, int32_t device) {
  static int64_t four = 4;
  return (DLTensor){data, {device, 0}, 1, {kDLFloat, 32, 1}, &four, NULL, 0};
}

static void expect(int32_t state, float first, float step) {
  float values[4] = {-1, -1, -1, -1};
  DLTensor value = view(values, kDLCPU);
  CHECK_OK(t, t->session_get_state(session, state, &value));
  host_check_context();
  for (int i = 0; i < 4; ++i) CHECK(values[i] == first + step * (float)i);
}

static void life(char **arguments) {
  start(arguments, PACKAGER_GRAPH_OFF);
  host_check_context();
  const char *log = recorder_take();
  CHECK_HAS(log, "set m2 16 to 0 in s2\n");
  CHECK_HAS(recorder_live(), "2 memory, 1 pooled memory");
  expect(LAST, 0, 0);
  expect(FIXED, 1, 1);
  packager_session_t *first = session;
  session = session_open(t, NULL);
  CHECK_HAS(recorder_live(), "3 memory, 2 pooled memory");
  expect(FIXED, 1, 1);
  CHECK_OK(t, t->session_destroy(first));
  CHECK_HAS(recorder_live(), "2 memory, 1 pooled memory");
  end();
}

static void values(char **arguments) {
  start(arguments, PACKAGER_GRAPH_OFF);
  float given[4] = {5, 6, 7, 8};
  DLTensor host = view(given, kDLCPU), pinned = view(given, kDLCUDAHost);
  recorder_take();
  CHECK_OK(t, t->session_set_state(session, LAST, &host));
  CHECK_LOG(
      "upload m2 16 in s2\n"
      "wait for s2\n");
  host_check_context();
  expect(LAST, 5, 1);
  float *memory = device_new(16);
  for (int i = 0; i < 4; ++i) memory[i] = 2 * (float)i; /* the recorder's device memory is the host's */
  DLTensor device = view(memory, kDLCUDA);
  CHECK_OK(t, t->session_set_state(session, FIXED, &device));
  expect(FIXED, 0, 2);
  CHECK_OK(t, t->session_set_state(session, FIXED, &pinned));
  expect(FIXED, 5, 1);
  CHECK_OK(t, t->session_get_state(session, FIXED, &device));
  CHECK(memory[0] == 5 && memory[3] == 8);
  CHECK_OK(t, t->session_reset(session));
  host_check_context();
  expect(LAST, 0, 0);
  expect(FIXED, 1, 1);
  device.device.device_id = 1;
  CHECK_EQ(t->session_get_state(session, FIXED, &device), PACKAGER_ERROR_DEVICE);
  CHECK_TEXT(t->session_error(session), "state 'fixed': on CUDA device 1, expected device 0, the session's");
  recorder_fail("cuMemcpyHtoDAsync:1:1");
  CHECK_EQ(t->session_set_state(session, LAST, &host), PACKAGER_ERROR_DRIVER);
  CHECK_HAS(t->session_error(session), "a state cannot be copied to the device");
  host_check_context();
  device_free(memory);
  end();
}

/* Each run tells what the run before held, also where it was not waited for. */
static void steps(void *stream) {
  tensors_t *d = tensors_on_device(8);
  float *x = d->tx.data, *echo = d->techo.data;
  CHECK_OK(t, t->session_reset(session));
  for (int step = 1; step <= 5; ++step) {
    for (int i = 0; i < 4; ++i) x[i] = (float)step;
    CHECK_OK(t, tensors_run(t, session, d, stream));
    CHECK(echo[0] == (float)(step - 1));
    expect(LAST, (float)step, 0);
  }
  expect(FIXED, 1, 1);
  tensors_free_device(d);
}

static void runs(char **arguments) {
  start(arguments, PACKAGER_GRAPH_OFF);
  steps(NULL);
  void *stream;
  CHECK_EQ(cu_stream_create(&stream, 1), 0);
  steps(stream);
  CHECK_EQ(cu_stream_destroy(stream), 0);
  end();
}

/* A graph is made once: states do not move. */
static void graphs(char **arguments) {
  start(arguments, PACKAGER_GRAPH_ON);
  recorder_take();
  steps(NULL);
  const char *log = recorder_take();
  const char *made = strstr(log, "graph x");
  CHECK(made != NULL);
  CHECK(strstr(made + 1, "graph x") == NULL);
  CHECK(strstr(log, "change") == NULL);
  end();
}

static void report(void *context, const char *symbol, int64_t start_ns, int64_t duration) {
  (void)start_ns;
  (void)duration;
  *(int *)context += !strcmp(symbol, "hold");
}

/* A profile is one run. */
static void profile(char **arguments) {
  start(arguments, PACKAGER_GRAPH_AUTO);
  tensors_t *d = tensors_on_device(8);
  float *x = d->tx.data, *echo = d->techo.data;
  for (int i = 0; i < 4; ++i) x[i] = 3;
  int calls = 0;
  CHECK_OK(t, t->session_profile(session, d->inputs, 1, d->outputs, 2, report, &calls));
  CHECK_EQ(calls, 1);
  CHECK(echo[0] == 0);
  expect(LAST, 3, 0);
  tensors_free_device(d);
  end();
}

/* Two entries by turns: each has a graph of its own, which is made once, and tensors on the host have a place. */
static void entries(char **arguments) {
  start(arguments, PACKAGER_GRAPH_ON);
  const packager_bundle_v1_t *swap = t->entries[1];
  CHECK_TEXT(swap->name, "swap");
  tensors_t *d = tensors_on_device(8), *h = tensors_new(8);
  float *x = d->tx.data, *echo = d->techo.data, given[4], old[4];
  DLTensor tnew = view(given, kDLCPU), told = view(old, kDLCPU);
  const DLTensor *inputs[] = {&tnew};
  DLTensor *outputs[] = {&told};
  recorder_take();
  for (int step = 1; step <= 4; ++step) {
    for (int i = 0; i < 4; ++i) x[i] = (float)(10 * step);
    for (int i = 0; i < 4; ++i) given[i] = (float)(10 * step + 1);
    CHECK_OK(t, tensors_run(t, session, d, NULL));
    CHECK(echo[0] == (float)(step > 1 ? 10 * (step - 1) + 1 : 0));
    CHECK_OK(t, swap->session_run(session, inputs, 1, outputs, 1, NULL));
    host_check_context();
    CHECK(old[3] == (float)(10 * step));
    expect(LAST, (float)(10 * step + 1), 0);
  }
  int made = 0;
  for (const char *log = strstr(recorder_take(), "graph x"); log; log = strstr(log + 1, "graph x")) ++made;
  CHECK_EQ(made, 2);
  CHECK_OK(t, tensors_run(t, session, h, NULL));
  CHECK_EQ(swap->session_run(session, h->inputs, 1, h->outputs, 2, NULL), PACKAGER_ERROR_RANK);
  CHECK_TEXT(t->session_error(session), "input 'new': rank is 2, expected 1");
  free(h);
  tensors_free_device(d);
  end();
}

int main(int argc, char **argv) {
  static const case_t cases[] = {{"life", life},     {"values", values},   {"runs", runs},
                                 {"graphs", graphs}, {"profile", profile}, {"entries", entries}};
  return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
