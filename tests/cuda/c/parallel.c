/* Sessions in several threads, and a thread that sets constants of one that runs. Argument: the dynamic bundle. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>

#include "host.h"

#define THREADS 4
#define RUNS 100

static const packager_bundle_v1_t *t;
static atomic_int running;

typedef struct {
  packager_session_t *session;
  int number;
} worker_t;

/* Tensors in host memory, of sizes that change; on two devices, and with graphs or without. */
static void *run_sessions(void *argument) {
  const worker_t *worker = argument;
  tensors_t *h = tensors_new(64);
  for (int i = 0; i < RUNS; ++i) {
    h->shape[0] = 1 + (i + worker->number) % 5;
    memset(h->echo, 0, sizeof h->echo);
    CHECK_OK(t, t->session_run(worker->session, h->inputs, 1, h->outputs, 2, NULL));
    tensors_check_echo(h);
    CHECK_EQ(recorder_depth(), 0);
    if (worker->number == 0 || i % 10) continue;
    packager_session_options_t options = {.struct_size = sizeof options, .device_index = i / 10 % 2};
    packager_session_t *other = session_open(t, &options);
    CHECK_OK(t, t->session_run(other, h->inputs, 1, h->outputs, 2, NULL));
    CHECK_OK(t, t->session_destroy(other));
  }
  free(h);
  --running;
  return NULL;
}

static void threads(char **arguments) {
  host_start(0);
  bundle_t bundle = bundle_open(arguments[0]);
  t = bundle.table;
  pthread_t ids[THREADS];
  worker_t workers[THREADS];
  running = THREADS;
  for (int i = 0; i < THREADS; ++i) {
    packager_session_options_t options = {.struct_size = sizeof options, .device_index = i % 2, .graph = i % 3};
    workers[i] = (worker_t){session_open(t, &options), i};
  }
  for (int i = 0; i < THREADS; ++i) CHECK_EQ(pthread_create(&ids[i], NULL, run_sessions, &workers[i]), 0);
  float data[] = {1, 2, 3, 4};
  int64_t four[] = {4};
  const DLTensor value = {data, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, four, NULL, 0};
  const DLTensor *values[] = {&value};
  const char *names[] = {"w"};
  while (running > 0) {
    CHECK_OK(t, t->session_set_constants(workers[0].session, names, values, 1));
    ++data[0];
  }
  for (int i = 0; i < THREADS; ++i) {
    CHECK_EQ(pthread_join(ids[i], NULL), 0);
    CHECK_OK(t, t->session_destroy(workers[i].session));
  }
  host_end();
  CHECK_EQ(dlclose(bundle.handle), 0);
}

int main(int argc, char **argv) {
  static const case_t cases[] = {{"threads", threads}};
  return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
