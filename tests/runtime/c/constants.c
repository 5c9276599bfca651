/* Swapping constants of a session. Argument: the bundle of -DMODEL_CONSTANTS. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>

#include "check.h"

#define SLOT_BYTES 423
enum { W = 0, PERMUTED = 96, PACKED = 192, TWIN = 288, HALF = 384, BYTE = 390, SCALAR = 399, COMPUTED = 407 };

/* One run's output, and the input that it takes. */
typedef struct {
  uint8_t y[2][SLOT_BYTES];
  int32_t pause;
} output_t;

static int32_t run(const packager_bundle_v1_t *t, packager_session_t *session, output_t *output) {
  int64_t one[] = {1}, shape[] = {2, SLOT_BYTES};
  const DLTensor pause = {&output->pause, {kDLCPU, 0}, 1, {kDLInt, 32, 1}, one, NULL, 0};
  DLTensor y = {output->y, {kDLCPU, 0}, 2, {kDLUInt, 8, 1}, shape, NULL, 0};
  const DLTensor *inputs[] = {&pause};
  DLTensor *outputs[] = {&y};
  return t->session_run(session, inputs, 1, outputs, 1, NULL);
}

static output_t run_checked(const packager_bundle_v1_t *t, packager_session_t *session) {
  output_t output = {{{0}}, 0};
  CHECK_OK(t, run(t, session, &output));
  CHECK_EQ(memcmp(output.y[0], output.y[1], SLOT_BYTES), 0);
  return output;
}

static float float_at(const output_t *output, int offset, int index) {
  float value;
  memcpy(&value, output->y[0] + offset + index * (int)sizeof value, sizeof value);
  return value;
}

/* Values for the model's constants: w and twin count from w and twin on, half from half on, and so on. */
typedef struct {
  float w[24], twin[24];
  uint16_t half[5];
  int8_t byte[9];
  double scalar;
  int64_t matrix[2], five[1], square[2], none[1];
  DLTensor tw, ttwin, thalf, tbyte, tscalar, tempty;
} values_t;

static void values_init(values_t *v, int from) {
  memset(v, 0, sizeof *v);
  for (int i = 0; i < 24; ++i) v->w[i] = (float)(from + i);
  for (int i = 0; i < 24; ++i) v->twin[i] = (float)(from + i);
  for (int i = 0; i < 5; ++i) v->half[i] = (uint16_t)(from + i);
  for (int i = 0; i < 9; ++i) v->byte[i] = (int8_t)(from + i);
  v->scalar = from + 0.5;
  v->matrix[0] = 4;
  v->matrix[1] = 6;
  v->five[0] = 5;
  v->square[0] = v->square[1] = 3;
  const DLDevice cpu = {kDLCPU, 0};
  const DLDataType float32 = {kDLFloat, 32, 1};
  v->tw = (DLTensor){v->w, cpu, 2, float32, v->matrix, NULL, 0};
  v->ttwin = (DLTensor){v->twin, cpu, 2, float32, v->matrix, NULL, 0};
  v->thalf = (DLTensor){v->half, cpu, 1, {kDLFloat, 16, 1}, v->five, NULL, 0};
  v->tbyte = (DLTensor){v->byte, cpu, 2, {kDLInt, 8, 1}, v->square, NULL, 0};
  v->tscalar = (DLTensor){&v->scalar, cpu, 0, {kDLFloat, 64, 1}, NULL, NULL, 0};
  v->tempty = (DLTensor){NULL, cpu, 1, float32, v->none, NULL, 0};
}

static int32_t set(const packager_bundle_v1_t *t, packager_session_t *session, const char *name,
                   const DLTensor *value) {
  return t->session_set_constants(session, &name, &value, 1);
}

static int32_t set_w_and_twin(const packager_bundle_v1_t *t, packager_session_t *session, values_t *v) {
  const char *const names[] = {"w", "twin"};
  const DLTensor *const values[] = {&v->tw, &v->ttwin};
  return t->session_set_constants(session, names, values, 2);
}

/* w counts from `from` on in all the forms that the code reads. */
static void check_w(const output_t *output, int from) {
  for (int i = 0; i < 24; ++i) CHECK_EQ(float_at(output, W, i), from + i);
  for (int j = 0; j < 6; ++j) {
    for (int i = 0; i < 4; ++i) CHECK_EQ(float_at(output, PERMUTED, j * 4 + i), from + i * 6 + j);
  }
  for (int block = 0; block < 3; ++block) {
    for (int row = 0; row < 4; ++row) {
      for (int i = 0; i < 2; ++i) {
        CHECK_EQ(float_at(output, PACKED, (block * 4 + row) * 2 + i), from + row * 6 + block * 2 + i);
      }
    }
  }
}

static void check_twin(const output_t *output, int from) {
  for (int i = 0; i < 24; ++i) CHECK_EQ(float_at(output, TWIN, i), from + i);
}

static void check_others(const output_t *output, int from) {
  uint16_t half[3];
  memcpy(half, output->y[0] + HALF, sizeof half);
  for (int i = 0; i < 3; ++i) CHECK_EQ(half[i], from + 4 - 2 * i);
  for (int i = 0; i < 9; ++i) CHECK_EQ((int8_t)output->y[0][BYTE + i], from + i % 3 * 3 + i / 3);
  double scalar;
  memcpy(&scalar, output->y[0] + SCALAR, sizeof scalar);
  CHECK(scalar == from + 0.5);
  for (int i = 0; i < 4; ++i) CHECK_EQ(float_at(output, COMPUTED, i), 9);
}

/* All constants are those of the bundle. */
static void check_built_in(const packager_bundle_v1_t *t, packager_session_t *session) {
  const output_t output = run_checked(t, session);
  check_w(&output, 0);
  check_twin(&output, 0);
  check_others(&output, 0);
}

static void table(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  static const char *const names[] = {"w", "twin", "half", "byte", "scalar", "empty"};
  CHECK_EQ(t->num_constants, 6);
  for (int i = 0; i < 6; ++i) CHECK_TEXT(t->constants[i].name, names[i]);
  CHECK_EQ(t->constants[0].ndim, 2);
  CHECK_EQ(t->constants[0].shape[1], 6);
  CHECK_EQ(t->constants[3].dtype.bits, 8);
  CHECK_EQ(dlclose(bundle.handle), 0);
}

static void forms(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  packager_session_t *session = session_open(t, NULL);
  check_built_in(t, session);
  values_t v;
  values_init(&v, 50);
  const char *const names[] = {"scalar", "w", "empty", "byte", "half"};
  const DLTensor *const values[] = {&v.tscalar, &v.tw, &v.tempty, &v.tbyte, &v.thalf};
  CHECK_OK(t, t->session_set_constants(session, names, values, 5));
  memset(&v, 0xff, sizeof v); /* the values have been copied */
  output_t output = run_checked(t, session);
  check_w(&output, 50);
  check_twin(&output, 0);
  check_others(&output, 50);
  output = run_checked(t, session); /* they stay */
  check_w(&output, 50);

  /* Strides and a byte offset are read as those of inputs are. */
  values_init(&v, 70);
  int64_t strides[] = {6, 1};
  v.tw.strides = strides;
  v.tw.data = v.w - 1;
  v.tw.byte_offset = 4;
  CHECK_OK(t, set(t, session, "w", &v.tw));
  output = run_checked(t, session);
  check_w(&output, 70);
  check_others(&output, 50);
  CHECK_OK(t, t->session_set_constants(session, NULL, NULL, 0)); /* nothing to do */
  output = run_checked(t, session);
  check_w(&output, 70);
  CHECK_OK(t, t->session_destroy(session));
  CHECK_EQ(dlclose(bundle.handle), 0);
}

static void restoring(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  packager_session_t *session = session_open(t, NULL);
  values_t v;
  values_init(&v, 10);
  CHECK_OK(t, set_w_and_twin(t, session, &v));
  CHECK_OK(t, set(t, session, "w", NULL)); /* before any run has seen the new data */
  output_t output = run_checked(t, session);
  check_w(&output, 0);
  check_twin(&output, 10);
  CHECK_OK(t, set(t, session, "twin", NULL));
  CHECK_OK(t, set(t, session, "twin", NULL));
  check_built_in(t, session);
  const char *const names[] = {"twin", "w"};
  const DLTensor *const values[] = {NULL, &v.tw}; /* one restored, the other swapped, in one call */
  CHECK_OK(t, set(t, session, "twin", &v.ttwin));
  CHECK_OK(t, t->session_set_constants(session, names, values, 2));
  output = run_checked(t, session);
  check_w(&output, 10);
  check_twin(&output, 0);
  CHECK_OK(t, t->session_destroy(session));
  CHECK_EQ(dlclose(bundle.handle), 0);
}

/* w and twin share their data in the bundle, and in nothing else. */
static void equal_contents(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  packager_session_t *session = session_open(t, NULL);
  values_t v;
  values_init(&v, 20);
  CHECK_OK(t, set(t, session, "twin", &v.ttwin));
  output_t output = run_checked(t, session);
  check_w(&output, 0);
  check_twin(&output, 20);
  values_init(&v, 30);
  CHECK_OK(t, set(t, session, "w", &v.tw));
  output = run_checked(t, session);
  check_w(&output, 30);
  check_twin(&output, 20);
  CHECK_OK(t, t->session_destroy(session));
  CHECK_EQ(dlclose(bundle.handle), 0);
}

/* A good value for twin comes first: it must not be taken either. */
static void refuse(const packager_bundle_v1_t *t, packager_session_t *session, const char *name, const DLTensor *value,
                   int32_t status, const char *message) {
  values_t good;
  values_init(&good, 99);
  const char *const names[] = {"twin", name};
  const DLTensor *const values[] = {&good.ttwin, value};
  CHECK_EQ(t->session_set_constants(session, names, values, 2), status);
  CHECK_TEXT(t->thread_error(), message);
  check_built_in(t, session);
}

static void refusals(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  packager_session_t *session = session_open(t, NULL);
  values_t v;
  values_init(&v, 1);
  const char *name = "w";
  const DLTensor *value = &v.tw;
  CHECK_EQ(t->session_set_constants(NULL, &name, &value, 1), PACKAGER_ERROR_ARGUMENT);
  CHECK_TEXT(t->thread_error(), "session_set_constants: session is NULL");
  CHECK_EQ(t->session_set_constants(session, &name, &value, -1), PACKAGER_ERROR_ARGUMENT);
  CHECK_TEXT(t->thread_error(), "number of constants is -1");
  CHECK_EQ(t->session_set_constants(session, NULL, &value, 1), PACKAGER_ERROR_ARGUMENT);
  CHECK_TEXT(t->thread_error(), "session_set_constants: names is NULL");
  CHECK_EQ(t->session_set_constants(session, &name, NULL, 1), PACKAGER_ERROR_ARGUMENT);
  CHECK_TEXT(t->thread_error(), "session_set_constants: values is NULL");

  refuse(t, session, NULL, &v.tw, PACKAGER_ERROR_ARGUMENT, "the name of constant 1 is NULL");
  const char *unknown =
      "there is no constant 'wx' that can be swapped: the model has none, or computed with it at build "
      "time";
  refuse(t, session, "wx", &v.tw, PACKAGER_ERROR_CONSTANT, unknown);
  refuse(t, session, "wx", NULL, PACKAGER_ERROR_CONSTANT, unknown);
  refuse(t, session, "twin", &v.tw, PACKAGER_ERROR_ARGUMENT, "constant 'twin' is given twice");
  v.tw.ndim = 1;
  refuse(t, session, "w", &v.tw, PACKAGER_ERROR_RANK, "constant 'w': rank is 1, expected 2");
  v.tw.ndim = 2;
  v.tw.shape = NULL;
  refuse(t, session, "w", &v.tw, PACKAGER_ERROR_ARGUMENT, "constant 'w': shape is NULL");
  int64_t shape[] = {6, 4}, strides[] = {1, 4};
  v.tw.shape = shape;
  refuse(t, session, "w", &v.tw, PACKAGER_ERROR_SHAPE, "constant 'w': axis 0 is 6, expected 4");
  v.tw.shape = v.matrix;
  v.tw.strides = strides;
  refuse(t, session, "w", &v.tw, PACKAGER_ERROR_LAYOUT,
         "constant 'w': stride of axis 1 is 4, expected 1 (compact row-major)");
  v.tw.strides = NULL;
  v.tw.dtype.code = kDLInt;
  refuse(t, session, "w", &v.tw, PACKAGER_ERROR_DTYPE, "constant 'w': dtype is int32, expected float32");
  v.tw.dtype.code = kDLFloat;
  v.tw.device.device_type = kDLCUDA;
  refuse(t, session, "w", &v.tw, PACKAGER_ERROR_DEVICE, "constant 'w': device type is 2, expected 1 (CPU)");
  v.tw.device.device_type = kDLCPU;
  v.tw.byte_offset = 2;
  refuse(t, session, "w", &v.tw, PACKAGER_ERROR_ALIGNMENT,
         "constant 'w': data (with its byte_offset of 2) is not aligned to 4 bytes");
  v.tw.byte_offset = 0;
  v.tw.data = NULL;
  refuse(t, session, "w", &v.tw, PACKAGER_ERROR_ARGUMENT, "constant 'w': data is NULL");
  CHECK_TEXT(t->session_error(session), ""); /* a run may be writing to it */
  CHECK_OK(t, t->session_destroy(session));
  CHECK_EQ(dlclose(bundle.handle), 0);
}

/* Each session has its own, also those that are made later. */
static void sessions(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  packager_session_t *first = session_open(t, NULL), *second = session_open(t, NULL);
  values_t v;
  values_init(&v, 40);
  CHECK_OK(t, set(t, first, "w", &v.tw));
  check_built_in(t, second);
  packager_session_t *third = session_open(t, NULL);
  check_built_in(t, third);
  const output_t output = run_checked(t, first);
  check_w(&output, 40);
  CHECK_OK(t, t->session_destroy(first));
  check_built_in(t, second);
  CHECK_OK(t, t->session_destroy(second));
  CHECK_OK(t, t->session_destroy(third));
  CHECK_EQ(dlclose(bundle.handle), 0);
}

/* An allocator that counts, fails once `left` allocations have been made, and waits when it is told to. */
typedef struct {
  int live, most, left;
  uint64_t bytes;
  sem_t *entered, *resume;
} counting_t;

static void *allocate(void *context, uint64_t size, uint64_t alignment) {
  counting_t *counting = context;
  void *memory;
  if (counting->entered) {
    sem_post(counting->entered);
    sem_wait(counting->resume);
  }
  if (counting->left-- <= 0 || posix_memalign(&memory, alignment, size)) return NULL;
  memset(memory, 0xcc, size);
  counting->bytes += size;
  if (++counting->live > counting->most) counting->most = counting->live;
  return memory;
}

static void release(void *context, void *memory) {
  --((counting_t *)context)->live;
  free(memory);
}

static packager_session_t *session_counted(const packager_bundle_v1_t *t, counting_t *counting) {
  packager_session_options_t options = {
      .struct_size = sizeof options, .allocate = allocate, .release = release, .allocator_context = counting};
  return session_open(t, &options);
}

/* How many buffers a slot has: w is read by three slots. */
static void buffers(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  counting_t counting = {.left = 1000};
  packager_session_t *session = session_counted(t, &counting);
  CHECK_EQ(counting.live, 1);
  values_t v;
  for (int i = 1; i < 10; ++i) { /* a run after each: two per slot are enough */
    values_init(&v, i);
    CHECK_OK(t, set(t, session, "w", &v.tw));
    CHECK_EQ(counting.live, 1 + (i == 1 ? 3 : 6));
    const output_t output = run_checked(t, session);
    check_w(&output, i);
  }
  for (int i = 10; i < 20; ++i) { /* without runs a third is needed, and no fourth */
    values_init(&v, i);
    CHECK_OK(t, set(t, session, "w", &v.tw));
    CHECK_EQ(counting.live, 1 + (i == 10 ? 6 : 9));
  }
  const output_t output = run_checked(t, session);
  check_w(&output, 19);
  check_twin(&output, 0);
  CHECK_EQ(counting.live, 10);
  CHECK_OK(t, t->session_destroy(session));
  CHECK_EQ(counting.live, 0);
  CHECK_EQ(dlclose(bundle.handle), 0);
}

/* Whichever allocation of a call fails, the call changes nothing and leaves nothing behind. */
static void flaky_allocator(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  for (int runs = 0; runs < 2; ++runs) { /* without or with a run that uses the swapped ones */
    for (int fails_at = 0; fails_at < 4; ++fails_at) {
      counting_t counting = {.left = 1000};
      packager_session_t *session = session_counted(t, &counting);
      values_t v;
      values_init(&v, 60);
      CHECK_OK(t, set_w_and_twin(t, session, &v));
      if (runs) run_checked(t, session);
      int live = counting.live;
      counting.left = fails_at;
      values_init(&v, 80);
      CHECK_EQ(set_w_and_twin(t, session, &v), PACKAGER_ERROR_MEMORY);
      CHECK_TEXT(t->thread_error(), "could not allocate 96 bytes for a constant");
      CHECK_EQ(counting.live, live);
      output_t output = run_checked(t, session);
      check_w(&output, 60);
      check_twin(&output, 60);
      counting.left = 1000;
      CHECK_OK(t, set_w_and_twin(t, session, &v));
      output = run_checked(t, session);
      check_w(&output, 80);
      check_twin(&output, 80);
      CHECK_OK(t, t->session_destroy(session));
      CHECK_EQ(counting.live, 0);
    }
  }
  CHECK_EQ(dlclose(bundle.handle), 0);
}

static void many(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  counting_t counting = {.left = 100};
  packager_session_t *session = session_counted(t, &counting);
  values_t v;
  uint64_t bytes = 0;
  for (int i = 0; i < 1000; ++i) {
    values_init(&v, i);
    CHECK_OK(t, i % 7 == 3 ? set(t, session, "w", NULL) : set_w_and_twin(t, session, &v));
    if (i % 3) {
      const output_t output = run_checked(t, session);
      check_w(&output, i % 7 == 3 ? 0 : i);
    }
    if (i == 20) bytes = counting.bytes;
  }
  CHECK_EQ(counting.bytes, bytes); /* nothing more is allocated once every slot has its buffers */
  CHECK_OK(t, t->session_destroy(session));
  CHECK_EQ(counting.live, 0);
  CHECK_EQ(dlclose(bundle.handle), 0);
}

#define GENERATIONS 400

typedef struct {
  const packager_bundle_v1_t *t;
  packager_session_t *session;
  atomic_int published, done, runs;
} shared_t;

/* Every run sees one generation of both constants in all forms, never one older than those already set. */
static void *runner(void *argument) {
  shared_t *shared = argument;
  int seen = 0;
  while (!atomic_load(&shared->done)) {
    int published = atomic_load(&shared->published);
    output_t output = {{{0}}, 2000};
    CHECK_OK(shared->t, run(shared->t, shared->session, &output));
    CHECK_EQ(memcmp(output.y[0], output.y[1], SLOT_BYTES), 0);
    int generation = (int)float_at(&output, W, 0);
    check_w(&output, generation);
    check_twin(&output, generation);
    CHECK(generation >= seen);
    CHECK(generation >= published);
    seen = generation;
    atomic_fetch_add_explicit(&shared->runs, 1, memory_order_relaxed); /* orders nothing, or it would hide races */
  }
  return NULL;
}

static void while_running(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  shared_t shared = {t, session_open(t, NULL), 0, 0, 0};
  pthread_t thread;
  CHECK_EQ(pthread_create(&thread, NULL, runner, &shared), 0);
  values_t v;
  for (int i = 1; i <= GENERATIONS; ++i) {
    values_init(&v, i);
    CHECK_OK(t, set_w_and_twin(t, shared.session, &v));
    atomic_store(&shared.published, i);
    /* Every other time, let runs take it over: then tables and buffers are used again that runs have just left. */
    int runs = atomic_load_explicit(&shared.runs, memory_order_relaxed);
    while (i % 2 && atomic_load_explicit(&shared.runs, memory_order_relaxed) < runs + 2) sched_yield();
  }
  atomic_store(&shared.done, 1);
  CHECK_EQ(pthread_join(thread, NULL), 0);
  const output_t output = run_checked(t, shared.session);
  check_w(&output, GENERATIONS);
  CHECK_OK(t, t->session_destroy(shared.session));
  CHECK_EQ(dlclose(bundle.handle), 0);
}

/* Sets both constants to numbers that no other writer uses; being refused as busy is fine. */
static void *writer(void *argument) {
  shared_t *shared = argument;
  values_t v;
  for (int i = 0; i < GENERATIONS; ++i) {
    values_init(&v, 1000 + 10 * i);
    int32_t status = set_w_and_twin(shared->t, shared->session, &v);
    if (status) CHECK_EQ(status, PACKAGER_ERROR_BUSY);
  }
  return NULL;
}

static void two_writers(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  shared_t shared = {t, session_open(t, NULL), 0, 0, 0};
  pthread_t threads[2];
  for (int i = 0; i < 2; ++i) CHECK_EQ(pthread_create(&threads[i], NULL, writer, &shared), 0);
  for (int i = 0; i < GENERATIONS; ++i) {
    const output_t output = run_checked(t, shared.session);
    int generation = (int)float_at(&output, W, 0);
    check_w(&output, generation);
    check_twin(&output, generation);
  }
  for (int i = 0; i < 2; ++i) CHECK_EQ(pthread_join(threads[i], NULL), 0);
  CHECK_OK(t, t->session_destroy(shared.session));
  CHECK_EQ(dlclose(bundle.handle), 0);
}

static void *swap_once(void *argument) {
  shared_t *shared = argument;
  values_t v;
  values_init(&v, 5);
  CHECK_OK(shared->t, set(shared->t, shared->session, "twin", &v.ttwin));
  return NULL;
}

/* While one thread is in the middle of setting constants: runs go on, nobody else sets, the session stays. */
static void busy(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  sem_t entered, resume;
  CHECK_EQ(sem_init(&entered, 0, 0), 0);
  CHECK_EQ(sem_init(&resume, 0, 0), 0);
  counting_t counting = {.left = 1000};
  shared_t shared = {t, session_counted(t, &counting), 0, 0, 0};
  counting.entered = &entered;
  counting.resume = &resume;
  pthread_t thread;
  CHECK_EQ(pthread_create(&thread, NULL, swap_once, &shared), 0);
  CHECK_EQ(sem_wait(&entered), 0);
  values_t v;
  values_init(&v, 7);
  CHECK_EQ(set(t, shared.session, "w", &v.tw), PACKAGER_ERROR_BUSY);
  CHECK_TEXT(t->thread_error(), "session_set_constants: another thread is setting constants of the session");
  CHECK_EQ(t->session_destroy(shared.session), PACKAGER_ERROR_BUSY);
  CHECK_TEXT(t->thread_error(), "session_destroy: the session's constants are being set by another thread");
  check_built_in(t, shared.session);
  CHECK_EQ(sem_post(&resume), 0);
  CHECK_EQ(pthread_join(thread, NULL), 0);
  const output_t output = run_checked(t, shared.session);
  check_w(&output, 0);
  check_twin(&output, 5);
  CHECK_OK(t, t->session_destroy(shared.session));
  CHECK_EQ(counting.live, 0);
  CHECK_EQ(dlclose(bundle.handle), 0);
}

int main(int argc, char **argv) {
  static const case_t cases[] = {{"table", table},
                                 {"forms", forms},
                                 {"restoring", restoring},
                                 {"equal_contents", equal_contents},
                                 {"refusals", refusals},
                                 {"sessions", sessions},
                                 {"buffers", buffers},
                                 {"flaky_allocator", flaky_allocator},
                                 {"many", many},
                                 {"while_running", while_running},
                                 {"two_writers", two_writers},
                                 {"busy", busy}};
  return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
