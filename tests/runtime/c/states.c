/* What a session keeps between its runs, and entries. Argument: the bundle of MODEL_STATES, whose run adds x[4] to
 * sum[4], which begins as zeros, multiplies scale[2], which begins as 3 and 5, by 2, and gives y[4] = sum, as it was
 * before. */
#include <pthread.h>

#include "check.h"

enum { SUM, SCALE, EMPTY };

typedef struct {
  float x[4], y[4];
  int64_t shape[1];
  DLTensor tx, ty;
  const DLTensor *inputs[1];
  DLTensor *outputs[1];
} tensors_t;

static void init(tensors_t *t, float first) {
  const DLDataType float32 = {kDLFloat, 32, 1};
  for (int i = 0; i < 4; ++i) t->x[i] = first + (float)i;
  t->shape[0] = 4;
  t->tx = (DLTensor){t->x, {kDLCPU, 0}, 1, float32, t->shape, NULL, 0};
  t->ty = (DLTensor){t->y, {kDLCPU, 0}, 1, float32, t->shape, NULL, 0};
  t->inputs[0] = &t->tx;
  t->outputs[0] = &t->ty;
}

static int32_t run(const packager_bundle_v1_t *b, packager_session_t *s, tensors_t *t) {
  return b->session_run(s, t->inputs, 1, t->outputs, 1, NULL);
}

/* A view of `count` numbers, of the type of state `state`. */
static DLTensor view(void *data, int32_t state, int64_t *count) {
  const DLDataType types[] = {{kDLFloat, 32, 1}, {kDLFloat, 64, 1}, {kDLFloat, 32, 1}};
  return (DLTensor){data, {kDLCPU, 0}, 1, types[state], count, NULL, 0};
}

static void expect(const packager_bundle_v1_t *b, packager_session_t *s, float sum, double scale) {
  float sums[4] = {-1, -1, -1, -1};
  double scales[2] = {-1, -1};
  int64_t four = 4, two = 2;
  DLTensor first = view(sums, SUM, &four), second = view(scales, SCALE, &two);
  CHECK_OK(b, b->session_get_state(s, SUM, &first));
  CHECK_OK(b, b->session_get_state(s, SCALE, &second));
  for (int i = 0; i < 4; ++i) CHECK(sums[i] == sum);
  CHECK(scales[0] == 3 * scale && scales[1] == 5 * scale);
}

static void same(tensors_t *t, float x) {
  for (int i = 0; i < 4; ++i) t->x[i] = x;
}

static void table(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  CHECK_EQ(t->num_states, 3);
  CHECK_EQ(t->state_bytes, 128);
  CHECK_TEXT(t->states[SUM].name, "sum");
  CHECK_EQ(t->states[SCALE].dtype.bits, 64);
  CHECK_EQ(t->states[SCALE].max_shape[0], 2);
  CHECK_EQ(t->num_inputs, 1);
  CHECK_EQ(t->num_outputs, 1);
}

static void steps(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *b = bundle.table;
  packager_session_t *s = session_open(b, NULL);
  tensors_t t;
  init(&t, 0);
  same(&t, 2);
  expect(b, s, 0, 1);
  for (int i = 0; i < 5; ++i) {
    CHECK_OK(b, run(b, s, &t));
    CHECK(t.y[3] == 2 * (float)i);
  }
  expect(b, s, 10, 32);
  CHECK_OK(b, b->session_reset(s));
  expect(b, s, 0, 1);
  CHECK_OK(b, run(b, s, &t));
  expect(b, s, 2, 2);
  CHECK_OK(b, b->session_destroy(s));
}

static void set(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *b = bundle.table;
  packager_session_t *s = session_open(b, NULL);
  tensors_t t;
  init(&t, 0);
  same(&t, 1);
  float given[5] = {0, 7, 7, 7, 7};
  int64_t four = 4, none = 0;
  DLTensor value = view(given, SUM, &four);
  value.byte_offset = 4;
  CHECK_OK(b, b->session_set_state(s, SUM, &value));
  memset(given, 0, sizeof given); /* the value belongs to the caller again */
  expect(b, s, 7, 1);
  CHECK_OK(b, run(b, s, &t));
  expect(b, s, 8, 2);
  DLTensor empty = view(NULL, EMPTY, &none);
  CHECK_OK(b, b->session_get_state(s, EMPTY, &empty));
  CHECK_OK(b, b->session_set_state(s, EMPTY, &empty));
  CHECK_OK(b, b->session_destroy(s));
}

static void sessions(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *b = bundle.table;
  packager_session_t *first = session_open(b, NULL), *second = session_open(b, NULL);
  tensors_t t;
  init(&t, 0);
  same(&t, 1);
  for (int i = 0; i < 3; ++i) CHECK_OK(b, run(b, first, &t));
  CHECK_OK(b, run(b, second, &t));
  expect(b, first, 3, 8);
  expect(b, second, 1, 2);
  CHECK_OK(b, b->session_reset(first));
  expect(b, first, 0, 1);
  expect(b, second, 1, 2);
  CHECK_OK(b, b->session_destroy(first));
  expect(b, second, 1, 2);
  CHECK_OK(b, b->session_destroy(second));
}

static void refuse(const packager_bundle_v1_t *b, packager_session_t *s, int32_t state, DLTensor *value, int32_t status,
                   const char *message) {
  CHECK_EQ(b->session_get_state(s, state, value), status);
  CHECK_TEXT(b->session_error(s), message);
  CHECK_EQ(b->session_set_state(s, state, value), status);
  CHECK_TEXT(b->session_error(s), message);
  CHECK_TEXT(b->thread_error(), message);
}

static void refusals(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *b = bundle.table;
  packager_session_t *s = session_open(b, NULL);
  _Alignas(8) char memory[64] = {0};
  int64_t four = 4, five = 5, gap = 2;
  DLTensor good = view(memory, SUM, &four), bad = good;
  const char *numbers = "there is no state 3, the bundle has 3 of them, from 0 on";
  refuse(b, s, 3, &good, PACKAGER_ERROR_ARGUMENT, numbers);
  CHECK_EQ(b->session_get_state(s, -1, &good), PACKAGER_ERROR_ARGUMENT);
  refuse(b, s, SUM, NULL, PACKAGER_ERROR_ARGUMENT, "state 'sum': the tensor is NULL");
  refuse(b, s, SCALE, &good, PACKAGER_ERROR_DTYPE, "state 'scale': dtype is float32, expected float64");
  bad.shape = &five;
  refuse(b, s, SUM, &bad, PACKAGER_ERROR_SHAPE, "state 'sum': axis 0 is 5, expected 4");
  bad = good;
  bad.ndim = 2;
  refuse(b, s, SUM, &bad, PACKAGER_ERROR_RANK, "state 'sum': rank is 2, expected 1");
  bad = good;
  bad.strides = &gap;
  refuse(b, s, SUM, &bad, PACKAGER_ERROR_LAYOUT, "state 'sum': stride of axis 0 is 2, expected 1 (compact row-major)");
  bad = good;
  bad.byte_offset = 1;
  refuse(b, s, SUM, &bad, PACKAGER_ERROR_ALIGNMENT,
         "state 'sum': data (with its byte_offset of 1) is not aligned to 4 bytes");
  bad = good;
  bad.data = NULL;
  refuse(b, s, SUM, &bad, PACKAGER_ERROR_ARGUMENT, "state 'sum': data is NULL");
  bad = good;
  bad.device.device_type = kDLCUDA;
  refuse(b, s, SUM, &bad, PACKAGER_ERROR_DEVICE, "state 'sum': device type is 2, expected 1 (CPU)");
  expect(b, s, 0, 1);
  CHECK_EQ(b->session_reset(NULL), PACKAGER_ERROR_ARGUMENT);
  CHECK_TEXT(b->thread_error(), "session_reset: session is NULL");
  CHECK_EQ(b->session_get_state(NULL, SUM, &good), PACKAGER_ERROR_ARGUMENT);
  CHECK_EQ(b->session_set_state(NULL, SUM, &good), PACKAGER_ERROR_ARGUMENT);
  CHECK_OK(b, b->session_destroy(s));
}

static void count_report(void *context, const char *symbol, int64_t start, int64_t duration) {
  CHECK_TEXT(symbol, "add");
  CHECK(start >= 0 && duration >= 0);
  ++*(int *)context;
}

static void profile(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *b = bundle.table;
  packager_session_t *s = session_open(b, NULL);
  tensors_t t;
  init(&t, 0);
  same(&t, 1);
  int calls = 0;
  CHECK_OK(b, b->session_profile(s, t.inputs, 1, t.outputs, 1, count_report, &calls));
  CHECK_EQ(calls, 1);
  expect(b, s, 1, 2);
  CHECK_OK(b, b->session_destroy(s));
}

/* Two threads on one session: what one of them does not get is told as busy, and nothing else happens. */
typedef struct {
  const packager_bundle_v1_t *b;
  packager_session_t *s;
  int done, refused;
} shared_t;

static void *count_runs(void *argument) {
  shared_t *shared = argument;
  tensors_t t;
  init(&t, 0);
  same(&t, 1);
  for (int i = 0; i < 2000; ++i) {
    int32_t status = run(shared->b, shared->s, &t);
    CHECK(status == PACKAGER_OK || status == PACKAGER_ERROR_BUSY);
    shared->done += !status;
  }
  return NULL;
}

static void *count_reads(void *argument) {
  shared_t *shared = argument;
  for (int i = 0; i < 2000; ++i) {
    float sums[4];
    int64_t four = 4;
    DLTensor value = view(sums, SUM, &four);
    int32_t status = shared->b->session_get_state(shared->s, SUM, &value);
    CHECK(status == PACKAGER_OK || status == PACKAGER_ERROR_BUSY);
    shared->refused += status != 0;
    if (!status) CHECK(sums[0] == sums[1] && sums[1] == sums[2] && sums[2] == sums[3]);
  }
  return NULL;
}

static void busy(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  shared_t writer = {bundle.table, session_open(bundle.table, NULL), 0, 0}, reader = writer;
  pthread_t threads[2];
  CHECK_EQ(pthread_create(&threads[0], NULL, count_runs, &writer), 0);
  CHECK_EQ(pthread_create(&threads[1], NULL, count_reads, &reader), 0);
  for (int i = 0; i < 2; ++i) CHECK_EQ(pthread_join(threads[i], NULL), 0);
  float sums[4];
  int64_t four = 4;
  DLTensor value = view(sums, SUM, &four);
  CHECK_OK(bundle.table, bundle.table->session_get_state(writer.s, SUM, &value));
  CHECK_EQ(sums[0], writer.done);
  CHECK_OK(bundle.table, bundle.table->session_destroy(writer.s));
}

/* Tensors of the second entry. */
typedef struct {
  float x[16], first[8], last[1];
  int64_t rows[2], firsts[1], one[1];
  DLTensor tx, tfirst, tlast;
  const DLTensor *inputs[1];
  DLTensor *outputs[2];
} tell_t;

static void init_tell(tell_t *t, int64_t n) {
  const DLDataType float32 = {kDLFloat, 32, 1};
  memset(t, 0, sizeof *t);
  for (int i = 0; i < 16; ++i) t->x[i] = (float)i;
  t->rows[0] = t->firsts[0] = n;
  t->rows[1] = 2;
  t->one[0] = 1;
  t->tx = (DLTensor){t->x, {kDLCPU, 0}, 2, float32, t->rows, NULL, 0};
  t->tfirst = (DLTensor){t->first, {kDLCPU, 0}, 1, float32, t->firsts, NULL, 0};
  t->tlast = (DLTensor){t->last, {kDLCPU, 0}, 1, float32, t->one, NULL, 0};
  t->inputs[0] = &t->tx;
  t->outputs[0] = &t->tfirst;
  t->outputs[1] = &t->tlast;
}

static int32_t run_tell(const packager_bundle_v1_t *b, packager_session_t *s, tell_t *t) {
  return b->entries[1]->session_run(s, t->inputs, 1, t->outputs, 2, NULL);
}

/* One session, by turns with an entry of static shapes and one with a dim. */
static void entries(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *b = bundle.table, *second = b->entries[1];
  CHECK_EQ(b->num_entries, 2);
  CHECK(b->entries[0] == b && second->entries == b->entries);
  CHECK_TEXT(second->name, "tell");
  CHECK_TEXT(second->inputs[0].name, "rows");
  packager_session_t *s = session_open(second, NULL);
  tensors_t add;
  tell_t tell;
  init(&add, 0);
  same(&add, 2);
  for (int64_t step = 1; step <= 6; ++step) {
    CHECK_OK(b, run(b, s, &add));
    init_tell(&tell, 7 - step);
    int64_t shape[1] = {-1};
    CHECK_OK(b, second->session_output_shape(s, tell.inputs, 1, 0, shape));
    CHECK_EQ(shape[0], 7 - step);
    CHECK_OK(b, run_tell(b, s, &tell));
    for (int64_t i = 0; i < 7 - step; ++i) CHECK(tell.first[i] == (float)(2 * i + 2 * step));
    CHECK(tell.last[0] == (float)(2 * (7 - step) - 1));
  }
  expect(b, s, 12, 64);
  expect(second, s, 12, 64);
  CHECK_OK(b, b->session_destroy(s));
}

static void note(void *context, const char *symbol, int64_t start, int64_t duration) {
  (void)start;
  (void)duration;
  strcat(strcat(context, symbol), " ");
}

/* Messages and profiles are those of the entry that runs. */
static void entry_names(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *b = bundle.table, *second = b->entries[1];
  packager_session_t *s = session_open(b, NULL);
  tensors_t add;
  tell_t tell;
  init(&add, 0);
  init_tell(&tell, 2);
  CHECK_EQ(b->session_run(s, tell.inputs, 1, tell.outputs, 2, NULL), PACKAGER_ERROR_RANK);
  CHECK_TEXT(b->session_error(s), "input 'x': rank is 2, expected 1");
  CHECK_EQ(second->session_run(s, add.inputs, 1, add.outputs, 1, NULL), PACKAGER_ERROR_RANK);
  CHECK_TEXT(b->session_error(s), "input 'rows': rank is 1, expected 2");
  tell.rows[0] = tell.firsts[0] = 7;
  CHECK_EQ(run_tell(b, s, &tell), PACKAGER_ERROR_SHAPE);
  CHECK_TEXT(b->session_error(s), "input 'rows': dim n = 7 is outside 1..6");
  CHECK_EQ(second->session_output_shape(s, tell.inputs, 1, 2, NULL), PACKAGER_ERROR_ARGUMENT);
  CHECK_TEXT(b->session_error(s), "there is no output 2, expected 0..1");
  init_tell(&tell, 2);
  tell.x[2] = -1;
  CHECK_EQ(run_tell(b, s, &tell), PACKAGER_ERROR_KERNEL);
  CHECK_TEXT(b->session_error(s), "call 2 (tell) reported failure");
  CHECK_OK(b, run(b, s, &add));
  init_tell(&tell, 2);
  char symbols[64] = "";
  CHECK_OK(b, second->session_profile(s, tell.inputs, 1, tell.outputs, 2, note, symbols));
  CHECK_TEXT(symbols, "gather tell ");
  symbols[0] = 0;
  CHECK_OK(b, b->session_profile(s, add.inputs, 1, add.outputs, 1, note, symbols));
  CHECK_TEXT(symbols, "add ");
  CHECK_OK(b, b->session_destroy(s));
}

int main(int argc, char **argv) {
  static const case_t cases[] = {
      {"table", table},       {"steps", steps},       {"set", set},
      {"sessions", sessions}, {"refusals", refusals}, {"profile", profile},
      {"busy", busy},         {"entries", entries},   {"entry_names", entry_names},
  };
  return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
