/* check.h: what the test programs share: assertions, loading a bundle, tensors for the two models of model.c. */
#ifndef CHECK_H_
#define CHECK_H_

#include <dlfcn.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "packager.h"

#define FAIL(...) \
  (fprintf(stderr, "%s:%d: ", __FILE__, __LINE__), fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), abort())
#define CHECK(condition) ((condition) ? (void)0 : FAIL("not true: %s", #condition))
#define CHECK_EQ(got, expected)                                                                      \
  do {                                                                                               \
    long long got_ = (long long)(got), expected_ = (long long)(expected);                            \
    if (got_ != expected_) FAIL("%s is %lld, expected %s = %lld", #got, got_, #expected, expected_); \
  } while (0)
#define CHECK_TEXT(got, expected)                                                          \
  do {                                                                                     \
    const char *got_ = (got);                                                              \
    if (strcmp(got_, expected)) FAIL("%s is\n  %s\nexpected\n  %s", #got, got_, expected); \
  } while (0)
#define CHECK_HAS(text, part) (strstr(text, part) ? (void)0 : FAIL("'%s' is not in: %s", part, text))
/* For calls that must succeed: prints the message if not. */
#define CHECK_OK(bundle, call)                                                                        \
  do {                                                                                                \
    int32_t status_ = (call);                                                                         \
    if (status_) FAIL("%s: %s: %s", #call, (bundle)->status_name(status_), (bundle)->thread_error()); \
  } while (0)

typedef struct {
  void *handle;
  const packager_bundle_v1_t *table;
} bundle_t;

static inline bundle_t bundle_open(const char *path) {
  bundle_t bundle = {dlopen(path, RTLD_NOW | RTLD_LOCAL), NULL};
  if (!bundle.handle) FAIL("%s", dlerror());
  packager_bundle_v1_fn *entry;
  *(void **)&entry = dlsym(bundle.handle, PACKAGER_ENTRY_SYMBOL);
  CHECK(entry != NULL);
  bundle.table = entry();
  CHECK_EQ(bundle.table->abi_version, PACKAGER_ABI_VERSION);
  CHECK_EQ(bundle.table->struct_size, sizeof *bundle.table);
  return bundle;
}

static inline packager_session_t *session_open(const packager_bundle_v1_t *bundle,
                                               const packager_session_options_t *options) {
  packager_session_t *session;
  CHECK_OK(bundle, bundle->session_create(options, &session));
  CHECK(session != NULL);
  return session;
}

/* Is a file mapped whose path contains this? */
static inline int is_mapped(const char *name) {
  char line[4096];
  FILE *file = fopen("/proc/self/maps", "r");
  CHECK(file != NULL);
  int found = 0;
  while (fgets(line, sizeof line, file)) found |= strstr(line, name) != NULL;
  fclose(file);
  return found;
}

static inline int count_files(void) {
  int count = 0;
  for (int file = 0; file < 256; ++file) count += fcntl(file, F_GETFD) != -1;
  return count;
}

/* Tensors of the dynamic model for one n. */
#define MAX_N 4096
typedef struct {
  float a[4 * MAX_N], b[4 * MAX_N], sum[4 * MAX_N];
  int64_t grid[2 * MAX_N + 1];
  int64_t a_shape[2], b_shape[2], sum_shape[2], grid_shape[1];
  DLTensor ta, tb, tsum, tgrid;
  const DLTensor *inputs[2];
  DLTensor *outputs[2];
} dynamic_t;

static inline dynamic_t *dynamic_new(int64_t n) {
  dynamic_t *d = calloc(1, sizeof *d);
  CHECK(d != NULL && n <= MAX_N);
  for (int64_t i = 0; i < 4 * n; ++i) {
    d->a[i] = (float)(i % 100);
    d->b[i] = (float)(i % 7);
  }
  d->a_shape[0] = d->b_shape[0] = d->sum_shape[0] = n;
  d->a_shape[1] = d->b_shape[1] = d->sum_shape[1] = 4;
  d->grid_shape[0] = 2 * n + 1;
  const DLDevice cpu = {kDLCPU, 0};
  const DLDataType float32 = {kDLFloat, 32, 1}, int64 = {kDLInt, 64, 1};
  d->ta = (DLTensor){d->a, cpu, 2, float32, d->a_shape, NULL, 0};
  d->tb = (DLTensor){d->b, cpu, 2, float32, d->b_shape, NULL, 0};
  d->tsum = (DLTensor){d->sum, cpu, 2, float32, d->sum_shape, NULL, 0};
  d->tgrid = (DLTensor){d->grid, cpu, 1, int64, d->grid_shape, NULL, 0};
  d->inputs[0] = &d->ta;
  d->inputs[1] = &d->tb;
  d->outputs[0] = &d->tsum;
  d->outputs[1] = &d->tgrid;
  return d;
}

static inline int32_t dynamic_run(const packager_bundle_v1_t *bundle, packager_session_t *session, dynamic_t *d) {
  return bundle->session_run(session, d->inputs, 2, d->outputs, 2, NULL);
}

static inline void dynamic_check(const dynamic_t *d) {
  int64_t n = d->a_shape[0];
  for (int64_t i = 0; i < 4 * n; ++i) {
    if (d->sum[i] != d->a[i] * (float)(i % 4 + 1) + d->b[i]) FAIL("sum[%" PRId64 "] is %g", i, (double)d->sum[i]);
  }
  for (int64_t i = 0; i < 2 * n + 1; ++i) CHECK_EQ(d->grid[i], i);
}

/* Runs and checks values; outputs are cleared first. */
static inline void dynamic_run_checked(const packager_bundle_v1_t *bundle, packager_session_t *session, dynamic_t *d) {
  memset(d->sum, 0xff, sizeof(float) * 4 * (size_t)d->a_shape[0]);
  memset(d->grid, 0xff, sizeof(int64_t) * (size_t)(2 * d->a_shape[0] + 1));
  CHECK_OK(bundle, dynamic_run(bundle, session, d));
  dynamic_check(d);
}

/* Makes the constant w of the dynamic model first, first + 1, first + 2, first + 3; in the bundle, first is 1. */
static inline int32_t dynamic_set_weights(const packager_bundle_v1_t *bundle, packager_session_t *session,
                                          float first) {
  float data[4] = {first, first + 1, first + 2, first + 3};
  int64_t shape[1] = {4};
  const DLTensor value = {data, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, shape, NULL, 0};
  const char *name = "w";
  const DLTensor *values = &value;
  return bundle->session_set_constants(session, &name, &values, 1);
}

/* Tensors of the static model. */
typedef struct {
  float x[6], y[6];
  int64_t shape[2];
  DLTensor tx, ty;
  const DLTensor *inputs[1];
  DLTensor *outputs[1];
} static_t;

static inline void static_init(static_t *s) {
  const DLDevice cpu = {kDLCPU, 0};
  const DLDataType float32 = {kDLFloat, 32, 1};
  memset(s, 0, sizeof *s);
  for (int i = 0; i < 6; ++i) s->x[i] = (float)i;
  s->shape[0] = 2;
  s->shape[1] = 3;
  s->tx = (DLTensor){s->x, cpu, 2, float32, s->shape, NULL, 0};
  s->ty = (DLTensor){s->y, cpu, 2, float32, s->shape, NULL, 0};
  s->inputs[0] = &s->tx;
  s->outputs[0] = &s->ty;
}

static inline int32_t static_run(const packager_bundle_v1_t *bundle, packager_session_t *session, static_t *s) {
  return bundle->session_run(session, s->inputs, 1, s->outputs, 1, NULL);
}

static inline void static_check(const static_t *s) {
  for (int i = 0; i < 6; ++i) CHECK(s->y[i] == 2 * s->x[i] + 1);
}

/* A test program is a table of cases; main() runs the one named by argv[1] with the arguments after it. */
typedef struct {
  const char *name;
  void (*run)(char **arguments);
} case_t;

static inline int run_case(const case_t *cases, size_t count, int argc, char **argv) {
  for (size_t i = 0; argc > 1 && i < count; ++i) {
    if (strcmp(cases[i].name, argv[1])) continue;
    cases[i].run(argv + 2);
    return 0;
  }
  fprintf(stderr, "no such case\n");
  return 2;
}

#endif /* CHECK_H_ */
