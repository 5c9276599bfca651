/* Drives real bundles: sessions in threads, pool sizes, loads and unloads, two models at once.
 *
 *     soak threads BUNDLE ROWS [OUTPUT]      soak pair BUNDLE OTHER ROWS
 *     soak cycles BUNDLE COUNT MEASURE       soak wait BUNDLE ROWS
 *     soak choices BUNDLE ROWS VECTORS DIGITS...   of a vector, THREADS vectors at a time
 *
 * Models of one float32 input, whose first extent is symbolic, and one float32 output. */
#define _GNU_SOURCE
#include <dirent.h>
#include <malloc.h>
#include <pthread.h>
#include <unistd.h>

#include "check.h"

enum { THREADS = 8, RUNS = 25 };

/* A model's tensors for one batch. */
typedef struct {
  float *input, *output;
  size_t output_bytes;
  int64_t input_shape[8], output_shape[8];
  DLTensor x, y;
} tensors_t;

static size_t count(const int64_t *shape, int32_t ndim) {
  size_t product = 1;
  for (int32_t i = 0; i < ndim; ++i) product *= (size_t)shape[i];
  return product;
}

static DLTensor describe(float *data, int64_t *shape, const packager_tensor_info_t *info) {
  return (DLTensor){data, {kDLCPU, 0}, info->ndim, info->dtype, shape, NULL, 0};
}

static tensors_t tensors_new(const packager_bundle_v1_t *t, packager_session_t *session, int64_t rows) {
  tensors_t tensors = {0};
  const packager_tensor_info_t *info = &t->inputs[0];
  for (int32_t i = 0; i < info->ndim; ++i) tensors.input_shape[i] = info->shape[i];
  CHECK_EQ(tensors.input_shape[0], PACKAGER_DIM_SYMBOLIC);
  tensors.input_shape[0] = rows;
  size_t values = count(tensors.input_shape, info->ndim);
  tensors.input = malloc(values * sizeof(float));
  CHECK(tensors.input != NULL);
  uint32_t state = 12345; /* values in 0..1 from a linear congruential generator */
  for (size_t i = 0; i < values; ++i)
    tensors.input[i] = (float)((state = state * 1664525u + 1013904223u) >> 8) / 16777216.0f;
  tensors.x = describe(tensors.input, tensors.input_shape, info);
  const DLTensor *x = &tensors.x;
  CHECK_OK(t, t->session_output_shape(session, &x, 1, 0, tensors.output_shape));
  tensors.output_bytes = count(tensors.output_shape, t->outputs[0].ndim) * sizeof(float);
  tensors.output = malloc(tensors.output_bytes);
  CHECK(tensors.output != NULL);
  tensors.y = describe(tensors.output, tensors.output_shape, &t->outputs[0]);
  return tensors;
}

static void tensors_free(tensors_t *tensors) {
  free(tensors->input);
  free(tensors->output);
}

/* The tensors point into themselves, so they are described again where they are. */
static void run(const packager_bundle_v1_t *t, packager_session_t *session, tensors_t *tensors) {
  tensors->x.shape = tensors->input_shape;
  tensors->y.shape = tensors->output_shape;
  const DLTensor *x = &tensors->x;
  DLTensor *y = &tensors->y;
  memset(tensors->output, 0xff, tensors->output_bytes);
  CHECK_OK(t, t->session_run(session, &x, 1, &y, 1, NULL));
}

typedef struct {
  const packager_bundle_v1_t *t;
  int64_t rows;
  const tensors_t *expected;
  pthread_barrier_t *start;
  const uint8_t *digits; /* [num_digits], or NULL for those of the bundle: the same bits */
  int32_t num_digits;
} job_t;

/* Alternatives add up in another order. */
static int is_close(const tensors_t *got, const tensors_t *expected) {
  for (size_t i = 0; i < expected->output_bytes / sizeof(float); ++i) {
    float difference = got->output[i] - expected->output[i];
    if (!(difference < 1e-4f && difference > -1e-4f)) return 0;
  }
  return 1;
}

static void *run_many(void *argument) {
  const job_t *job = argument;
  packager_session_options_t options = {.struct_size = sizeof options};
  options.selection = job->digits;
  options.num_selected = job->num_digits;
  packager_session_t *session = session_open(job->t, &options);
  tensors_t tensors = tensors_new(job->t, session, job->rows);
  pthread_barrier_wait(job->start);
  for (int i = 0; i < RUNS; ++i) {
    run(job->t, session, &tensors);
    if (job->digits)
      CHECK(is_close(&tensors, job->expected));
    else
      CHECK(!memcmp(tensors.output, job->expected->output, tensors.output_bytes));
  }
  CHECK_OK(job->t, job->t->session_destroy(session));
  tensors_free(&tensors);
  return NULL;
}

/* THREADS threads with a session each, which all start at once; thread i runs jobs[i % kinds]. */
static void run_threads(job_t *jobs, int kinds) {
  pthread_barrier_t start;
  pthread_t threads[THREADS];
  pthread_barrier_init(&start, NULL, THREADS);
  for (int i = 0; i < kinds; ++i) jobs[i].start = &start;
  for (int i = 0; i < THREADS; ++i) CHECK_EQ(pthread_create(&threads[i], NULL, run_many, &jobs[i % kinds]), 0);
  for (int i = 0; i < THREADS; ++i) CHECK_EQ(pthread_join(threads[i], NULL), 0);
  pthread_barrier_destroy(&start);
}

static tensors_t run_alone(const packager_bundle_v1_t *t, int64_t rows) {
  packager_session_t *session = session_open(t, NULL);
  tensors_t tensors = tensors_new(t, session, rows);
  run(t, session, &tensors);
  CHECK_OK(t, t->session_destroy(session));
  return tensors;
}

/* The same bits for every size of the pool, alone and in 8 threads. Input and output are written for the caller. */
static void threads_case(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  int64_t rows = atoll(arguments[1]);
  tensors_t expected = run_alone(t, rows);
  for (int32_t threads = 1; threads <= 4; threads *= 2) {
    CHECK_OK(t, t->set_threads(threads));
    tensors_t got = run_alone(t, rows);
    CHECK(!memcmp(got.output, expected.output, expected.output_bytes));
    tensors_free(&got);
    job_t job = {.t = t, .rows = rows, .expected = &expected};
    run_threads(&job, 1);
  }
  if (arguments[2]) {
    FILE *file = fopen(arguments[2], "wb");
    CHECK(file != NULL);
    size_t values = count(expected.input_shape, t->inputs[0].ndim);
    CHECK_EQ(fwrite(expected.input, sizeof(float), values, file), values);
    CHECK_EQ(fwrite(expected.output, 1, expected.output_bytes, file), expected.output_bytes);
    CHECK_EQ(fclose(file), 0);
  }
  tensors_free(&expected);
  CHECK_EQ(dlclose(bundle.handle), 0);
}

/* Vectors of digits, THREADS of them at the same time, give equal outputs. */
static void choices(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  int64_t rows = atoll(arguments[1]);
  int vectors = atoi(arguments[2]);
  tensors_t expected = run_alone(t, rows);
  CHECK_OK(t, t->set_threads(2));
  uint32_t state = 1;
  for (int done = 0; done < vectors; done += THREADS) {
    static uint8_t digits[THREADS][64];
    job_t jobs[THREADS];
    for (int i = 0; i < THREADS; ++i) {
      int32_t places = 0;
      for (; arguments[3 + places]; ++places) {
        CHECK(places < 64);
        digits[i][places] =
            (uint8_t)(((state = state * 1664525u + 1013904223u) >> 16) % (uint32_t)atoi(arguments[3 + places]));
      }
      jobs[i] = (job_t){t, rows, &expected, NULL, digits[i], places};
    }
    run_threads(jobs, THREADS);
  }
  tensors_free(&expected);
  CHECK_EQ(dlclose(bundle.handle), 0);
}

/* Two models, each with a pool, whose sessions run at the same time. */
static void pair(char **arguments) {
  bundle_t bundles[2] = {bundle_open(arguments[0]), bundle_open(arguments[1])};
  CHECK(bundles[0].table != bundles[1].table);
  tensors_t expected[2];
  job_t jobs[2];
  for (int i = 0; i < 2; ++i) {
    const packager_bundle_v1_t *t = bundles[i].table;
    expected[i] = run_alone(t, atoll(arguments[2]));
    CHECK_OK(t, t->set_threads(2 + i));
    jobs[i] = (job_t){.t = t, .rows = atoll(arguments[2]), .expected = &expected[i]};
  }
  run_threads(jobs, 2);
  for (int i = 0; i < 2; ++i) tensors_free(&expected[i]);
  CHECK_EQ(dlclose(bundles[0].handle), 0);
  expected[1] = run_alone(bundles[1].table, 3); /* the other one is not disturbed */
  tensors_free(&expected[1]);
  CHECK_EQ(dlclose(bundles[1].handle), 0);
}

static int count_lines(const char *path) {
  FILE *file = fopen(path, "r");
  CHECK(file != NULL);
  int lines = 0;
  for (int c; (c = fgetc(file)) != EOF;) lines += c == '\n';
  fclose(file);
  return lines;
}

static int count_threads(void) {
  DIR *folder = opendir("/proc/self/task");
  CHECK(folder != NULL);
  int threads = -2;
  while (readdir(folder)) ++threads;
  closedir(folder);
  return threads;
}

/* A joined thread may stand in /proc for a moment. */
static void wait_for_threads(int expected) {
  for (int i = 0; i < 2000 && count_threads() != expected; ++i) usleep(1000);
  CHECK_EQ(count_threads(), expected);
}

static void one_cycle(const char *path) {
  bundle_t bundle = bundle_open(path);
  const packager_bundle_v1_t *t = bundle.table;
  CHECK_OK(t, t->set_threads(2));
  tensors_t tensors = run_alone(t, 8);
  tensors_free(&tensors);
  CHECK_EQ(dlclose(bundle.handle), 0);
  CHECK(!is_mapped(path));
}

static void *do_nothing(void *argument) { return argument; }

/* Everything that a cycle takes it gives back. MEASURE is 0 under sanitizers, whose own use of memory grows. */
static void cycles(char **arguments) {
  pthread_t thread;
  CHECK_EQ(pthread_create(&thread, NULL, do_nothing, NULL), 0); /* a sanitizer adds a thread to the first */
  pthread_join(thread, NULL);
  int total = atoi(arguments[1]), warm = total / 10 + 2;
  for (int i = 0; i < warm; ++i) one_cycle(arguments[0]);
  int files = count_files(), maps = count_lines("/proc/self/maps"), tasks = 1 + (count_threads() > 1);
  wait_for_threads(tasks);
  size_t heap = mallinfo2().uordblks;
  for (int i = 0; i < total; ++i) one_cycle(arguments[0]);
  wait_for_threads(tasks);
  CHECK_EQ(count_files(), files);
  if (!atoi(arguments[2])) return;
  CHECK_EQ(count_lines("/proc/self/maps"), maps);
  CHECK_EQ(mallinfo2().uordblks, heap);
}

/* Runs once and stays, with the bundle loaded, until stdin is closed. */
static void wait_case(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  packager_session_t *session = session_open(t, NULL);
  tensors_t tensors = tensors_new(t, session, atoll(arguments[1]));
  run(t, session, &tensors);
  puts("ready");
  fflush(stdout);
  while (getchar() != EOF) continue;
  CHECK_OK(t, t->session_destroy(session));
  tensors_free(&tensors);
  CHECK_EQ(dlclose(bundle.handle), 0);
}

int main(int argc, char **argv) {
  static const case_t cases[] = {
      {"threads", threads_case}, {"pair", pair}, {"cycles", cycles}, {"wait", wait_case}, {"choices", choices}};
  return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
