/* Runs of a model that was compiled for a part of its batch. Arguments: the bundle of MODEL_BATCHES, and that of which
 * the batch is a dim. */
#define _GNU_SOURCE
#include <pthread.h>

#include "check.h"
#include "held.h"

#define ROWS 10

static bundle_t bundle;
static const packager_bundle_v1_t *t;

typedef struct {
  float x[4 * ROWS], shift, y[2 * ROWS];
  int64_t x_shape[2], one[1], y_shape[2];
  DLTensor tx, tshift, ty;
  const DLTensor *inputs[2];
  DLTensor *outputs[1];
} batch_t;

static batch_t *batch_new(void) {
  batch_t *b = calloc(1, sizeof *b);
  CHECK(b != NULL);
  for (int i = 0; i < 4 * ROWS; ++i) b->x[i] = (float)(i % 13);
  b->shift = 3;
  b->x_shape[0] = b->y_shape[0] = ROWS;
  b->x_shape[1] = 4;
  b->one[0] = 1;
  b->y_shape[1] = 2;
  const DLDevice cpu = {kDLCPU, 0};
  const DLDataType float32 = {kDLFloat, 32, 1};
  b->tx = (DLTensor){b->x, cpu, 2, float32, b->x_shape, NULL, 0};
  b->tshift = (DLTensor){&b->shift, cpu, 1, float32, b->one, NULL, 0};
  b->ty = (DLTensor){b->y, cpu, 2, float32, b->y_shape, NULL, 0};
  b->inputs[0] = &b->tx;
  b->inputs[1] = &b->tshift;
  b->outputs[0] = &b->ty;
  return b;
}

static int32_t run(packager_session_t *session, batch_t *b) {
  memset(b->y, 0xff, sizeof b->y);
  return t->session_run(session, b->inputs, 2, b->outputs, 1, NULL);
}

/* Checks the sums, and that the first rows were computed by one thread each, the others by so many; 0: by any. */
static void check(const batch_t *b, int apart, int threads) {
  for (int row = 0; row < b->x_shape[0]; ++row) {
    float sum = 0;
    for (int i = 0; i < 4; ++i) sum += b->x[4 * row + i] * b->x[4 * row + i];
    CHECK(b->y[2 * row] == sum + b->shift);
    if (row < apart || threads) CHECK_EQ(b->y[2 * row + 1], row < apart ? 1 : threads);
  }
}

static void open_bundle(char **arguments) {
  bundle = bundle_open(arguments[0]);
  t = bundle.table;
}

static void lanes(char **arguments) {
  open_bundle(arguments);
  /* What is left over has the threads in equal teams, all at once or one part after the other. */
  static const int expected[][3] = {{1, 0, 1},  {2, 10, 0}, {3, 9, 3},   {4, 8, 2},   {5, 10, 0},
                                    {7, 7, 2},  {9, 9, 9},  {11, 10, 0}, {12, 10, 0}, {15, 0, 3},
                                    {20, 0, 2}, {29, 0, 2}, {30, 0, 3},  {4, 8, 2}};
  batch_t *b = batch_new();
  for (size_t i = 0; i < sizeof expected / sizeof *expected; ++i) {
    CHECK_OK(t, t->set_threads(expected[i][0]));
    packager_session_t *session = session_open(t, NULL);
    for (int repeat = 0; repeat < 20; ++repeat) {
      CHECK_OK(t, run(session, b));
      check(b, expected[i][1], expected[i][2]);
    }
    CHECK_OK(t, t->session_destroy(session));
  }
  free(b);
}

static void failing(char **arguments) {
  open_bundle(arguments);
  batch_t *b = batch_new();
  for (int threads = 1; threads <= 21; threads = threads < 4 ? threads + 1 : threads + 17) {
    CHECK_OK(t, t->set_threads(threads));
    packager_session_t *session = session_open(t, NULL);
    for (int row = 0; row < ROWS; ++row) {
      float was = b->x[4 * row];
      b->x[4 * row] = -777;
      CHECK_EQ(run(session, b), PACKAGER_ERROR_KERNEL);
      CHECK_TEXT(t->session_error(session), "call 2 (sum) reported failure");
      b->x[4 * row] = was;
      CHECK_OK(t, run(session, b));
    }
    CHECK_OK(t, t->session_destroy(session));
  }
  free(b);
}

/* As many micro-batches as the dim says, and nothing is written behind them. */
static void dims(char **arguments) {
  open_bundle(arguments + 1);
  CHECK_OK(t, t->set_threads(3));
  packager_session_t *session = session_open(t, NULL);
  batch_t *b = batch_new();
  static const int expected[][2] = {{10, 9}, {1, 0}, {5, 3}, {3, 3}, {2, 0}, {10, 9}};
  for (size_t i = 0; i < sizeof expected / sizeof *expected; ++i) {
    const int n = expected[i][0];
    b->x_shape[0] = b->y_shape[0] = n;
    CHECK_OK(t, run(session, b));
    check(b, expected[i][1], 3);
    for (int j = 2 * n; j < 2 * ROWS; ++j) CHECK(b->y[j] != b->y[j]); /* NaN, as it was */
  }
  b->x_shape[0] = ROWS + 1;
  CHECK_EQ(run(session, b), PACKAGER_ERROR_SHAPE);
  CHECK_OK(t, t->session_destroy(session));
  free(b);
}

typedef struct {
  int count;
  int64_t end;
} profile_t;

static void report(void *context, const char *symbol, int64_t start, int64_t duration) {
  profile_t *profile = context;
  CHECK_TEXT(symbol, profile->count % 2 ? "sum" : "square");
  CHECK(duration >= 0);
  CHECK_EQ(start, profile->end); /* one after the other */
  profile->end = start + duration;
  ++profile->count;
}

static void profile(char **arguments) {
  open_bundle(arguments);
  batch_t *b = batch_new();
  for (int threads = 1; threads <= 3; threads += 2) {
    CHECK_OK(t, t->set_threads(threads));
    packager_session_t *session = session_open(t, NULL);
    profile_t found = {0, 0};
    CHECK_OK(t, t->session_profile(session, b->inputs, 2, b->outputs, 1, report, &found));
    CHECK_EQ(found.count, 2 * ROWS);
    check(b, 0, threads);
    CHECK_OK(t, run(session, b)); /* is not measured */
    check(b, threads > 1 ? 9 : 0, threads);
    CHECK_OK(t, t->session_destroy(session));
  }
  free(b);
}

/* Neither leaders nor members of teams have begun, then some come amid a run. */
static void absent_workers(char **arguments) {
  open_bundle(arguments);
  batch_t *b = batch_new();
  CHECK_OK(t, t->set_threads(21));
  atomic_store(&hold, 1);
  packager_session_t *session = session_open(t, NULL);
  for (int i = 0; i < 20; ++i) {
    if (i == 10) atomic_store(&hold, 0);
    CHECK_OK(t, run(session, b));
    check(b, 0, 2);
  }
  CHECK_OK(t, t->session_destroy(session));
  free(b);
}

static void host_for(void *context, void (*task)(void *, int32_t), void *arguments, int32_t tasks) {
  for (int32_t i = *(int32_t *)context; i < tasks; ++i) task(arguments, i);
}

static void hook(char **arguments) {
  open_bundle(arguments);
  int32_t skip = 0;
  packager_session_options_t options = {
      .struct_size = sizeof options, .max_threads = 3, .parallel_for = host_for, .parallel_for_context = &skip};
  packager_session_t *session = session_open(t, &options);
  batch_t *b = batch_new();
  CHECK_OK(t, run(session, b));
  check(b, 9, 3);
  skip = 1; /* leaves a task out */
  CHECK_EQ(run(session, b), PACKAGER_ERROR_KERNEL);
  CHECK_TEXT(t->session_error(session), "parallel_for did not run all parts of the batch");
  skip = 0;
  CHECK_OK(t, run(session, b));
  CHECK_OK(t, t->session_destroy(session));
  free(b);
}

static void *use_session(void *argument) {
  packager_session_t *session = session_open(t, NULL);
  batch_t *b = argument;
  for (int repeat = 0; repeat < 100; ++repeat) {
    CHECK_OK(t, run(session, b));
    check(b, 8, 0); /* teams, or none while another session has the pool */
  }
  CHECK_OK(t, t->session_destroy(session));
  return NULL;
}

/* Sessions share the pool, but no lanes. */
static void sessions(char **arguments) {
  open_bundle(arguments);
  CHECK_OK(t, t->set_threads(4));
  pthread_t threads[4];
  batch_t *batches[4];
  for (int i = 0; i < 4; ++i) {
    batches[i] = batch_new();
    batches[i]->shift = (float)i;
    CHECK_EQ(pthread_create(&threads[i], NULL, use_session, batches[i]), 0);
  }
  for (int i = 0; i < 4; ++i) {
    pthread_join(threads[i], NULL);
    free(batches[i]);
  }
}

int main(int argc, char **argv) {
  static const case_t cases[] = {
      {"lanes", lanes}, {"failing", failing},  {"dims", dims}, {"profile", profile}, {"absent_workers", absent_workers},
      {"hook", hook},   {"sessions", sessions}};
  return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
