/* What session_create depends on besides its arguments: the CPU, the weights file, libpthread. */
#include "check.h"

/* Arguments: bundle, status, message; twice, because a failure leaves nothing behind. */
static void refused(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  int files = count_files();
  for (int i = 0; i < 2; ++i) {
    packager_session_t *session;
    CHECK_EQ(bundle.table->session_create(NULL, &session), atoi(arguments[1]));
    CHECK(session == NULL);
    CHECK_TEXT(bundle.table->thread_error(), arguments[2]);
    CHECK_EQ(count_files(), files);
    CHECK(!is_mapped(".safetensors"));
  }
  CHECK_EQ(dlclose(bundle.handle), 0);
}

/* Arguments: a bundle with weights 1, 2, 3, 4, the name of its weights file or "". */
static void works(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  const char *weights = arguments[1];
  int files = count_files();
  packager_session_t *first = session_open(t, NULL), *second = session_open(t, NULL);
  CHECK(!*weights || is_mapped(weights));
  CHECK_EQ(count_files(), files);
  CHECK_OK(t, t->session_destroy(first));
  dynamic_t *d = dynamic_new(10);
  dynamic_run_checked(t, second, d);
  CHECK_OK(t, t->session_destroy(second));
  CHECK(!*weights || !is_mapped(weights));
  first = session_open(t, NULL); /* mapped again */
  second = session_open(t, NULL);
  CHECK_OK(t, dynamic_set_weights(t, first, 10));
  CHECK_OK(t, dynamic_run(t, first, d));
  for (int i = 0; i < 40; ++i) CHECK(d->sum[i] == d->a[i] * (float)(i % 4 + 10) + d->b[i]);
  dynamic_run_checked(t, second, d);
  CHECK_OK(t, t->session_destroy(second));
  CHECK_OK(t, dynamic_set_weights(t, first, 1));
  dynamic_run_checked(t, first, d);
  CHECK_OK(t, t->session_destroy(first));
  free(d);
  CHECK_EQ(dlclose(bundle.handle), 0);
}

static packager_session_t *at_level(const packager_bundle_v1_t *t, const char *name) {
  packager_session_options_t options = {.struct_size = sizeof options, .cpu_level = name};
  return session_open(t, &options);
}

static void computes(const packager_bundle_v1_t *t, packager_session_t *session, const char *level, float bias) {
  CHECK_TEXT(t->session_cpu_level(session), level);
  float x[6] = {0, 1, 2, 3, 4, 5}, y[6];
  int64_t shape[] = {2, 3};
  DLTensor input = {x, {kDLCPU, 0}, 2, {kDLFloat, 32, 1}, shape, NULL, 0}, output = input;
  output.data = y;
  const DLTensor *inputs[] = {&input};
  DLTensor *outputs[] = {&output};
  CHECK_OK(t, t->session_run(session, inputs, 1, outputs, 1, NULL));
  for (int i = 0; i < 6; ++i) CHECK(y[i] == 2 * x[i] + bias);
}

/* Arguments: a bundle with levels, all of whose features but avx9999 are here. Sessions differ in their level. */
static void levels(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  packager_session_t *chosen = session_open(t, NULL), *least = at_level(t, "least"), *better = at_level(t, "better");
  for (int i = 0; i < 2; ++i) {
    computes(t, chosen, "better", 2);
    computes(t, least, "least", 1);
    computes(t, better, "better", 2);
  }
  CHECK_OK(t, t->session_destroy(chosen));
  CHECK_OK(t, t->session_destroy(least));
  CHECK_OK(t, t->session_destroy(better));
  CHECK_EQ(dlclose(bundle.handle), 0);
}

/* Arguments: bundle, level, status, message. */
static void no_level(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_session_options_t options = {.struct_size = sizeof options, .cpu_level = arguments[1]};
  packager_session_t *session;
  CHECK_EQ(bundle.table->session_create(&options, &session), atoi(arguments[2]));
  CHECK(session == NULL);
  CHECK_TEXT(bundle.table->thread_error(), arguments[3]);
  CHECK_EQ(dlclose(bundle.handle), 0);
}

/* Arguments: a bundle whose pthread_create is not found, as in a program of old glibc without -lpthread. */
static void no_pthread(char **arguments) {
  static const char message[] =
      "this program has no pthread_create: link it with -lpthread, or give the session a parallel_for";
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  CHECK_EQ(t->set_threads(2), PACKAGER_ERROR_THREADS);
  CHECK_TEXT(t->thread_error(), message);
  CHECK_OK(t, t->set_threads(1));
  packager_session_t *session = session_open(t, NULL);
  dynamic_t *d = dynamic_new(10);
  dynamic_run_checked(t, session, d);
  CHECK_EQ(t->set_threads(2), PACKAGER_ERROR_THREADS);
  dynamic_run_checked(t, session, d);
  CHECK_OK(t, t->session_destroy(session));
  free(d);
  CHECK_EQ(dlclose(bundle.handle), 0);
}

int main(int argc, char **argv) {
  static const case_t cases[] = {
      {"refused", refused}, {"works", works}, {"no_pthread", no_pthread}, {"levels", levels}, {"no_level", no_level}};
  return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
