/* Sessions of a bundle that calls a library: y = value * x + 1 with it, y = 2 * x + 1 without. */
#define _GNU_SOURCE
#include <pthread.h>

#include "check.h"

typedef struct {
  char text[3][2048]; /* the last message of each level */
  int count[3];
} log_t;

static void keep(void *context, int32_t level, const char *message) {
  log_t *log = context;
  snprintf(log->text[level], sizeof log->text[level], "%s", message);
  ++log->count[level];
}

static void run(const packager_bundle_v1_t *t, packager_session_t *session, float factor) {
  static_t s;
  static_init(&s);
  CHECK_OK(t, static_run(t, session, &s));
  for (int i = 0; i < 6; ++i) CHECK(s.y[i] == factor * s.x[i] + 1);
}

/* Arguments: bundle, a part of the warning. */
static void missing(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  static const uint8_t with[] = {0, 1}, without[] = {0, 0};
  for (int i = 0; i < 3; ++i) {
    log_t log = {.count = {0}};
    packager_session_options_t options = {
        .struct_size = sizeof options, .log = keep, .log_context = &log, .library_path = i ? ":/nowhere:" : NULL};
    packager_session_t *session = session_open(t, &options);
    CHECK_EQ(log.count[PACKAGER_LOG_WARNING], 1);
    CHECK_HAS(log.text[PACKAGER_LOG_WARNING], arguments[1]);
    run(t, session, 2);
    CHECK_OK(t, t->session_destroy(session));
    options.num_selected = 2, options.selection = with;
    CHECK_EQ(t->session_create(&options, &session), PACKAGER_ERROR_LIBRARY);
    CHECK(session == NULL);
    CHECK_HAS(t->thread_error(), "the selection needs a library: ");
    CHECK_HAS(t->thread_error(), arguments[1]);
    options.selection = without;
    session = session_open(t, &options);
    CHECK_EQ(log.count[PACKAGER_LOG_WARNING], 1);
    run(t, session, 2);
    CHECK_OK(t, t->session_destroy(session));
  }
  CHECK_EQ(dlclose(bundle.handle), 0);
}

/* Arguments: bundle, library_path, factor, a part of what is said, or "". */
static void found(char **arguments) {
  for (int i = 0; i < 2; ++i) { /* the library stays when the bundle is unloaded */
    bundle_t bundle = bundle_open(arguments[0]);
    const packager_bundle_v1_t *t = bundle.table;
    for (int again = 0; again < 2; ++again) {
      log_t log = {.count = {0}};
      packager_session_options_t options = {.struct_size = sizeof options,
                                            .log = keep,
                                            .log_context = &log,
                                            .library_path = i || again ? NULL : arguments[1]};
      packager_session_t *session = session_open(t, &options);
      CHECK_EQ(log.count[PACKAGER_LOG_WARNING], 0);
      CHECK_EQ(log.count[PACKAGER_LOG_INFO], *arguments[3] ? 2 : 1);
      run(t, session, (float)atoi(arguments[2]));
      CHECK_OK(t, t->session_destroy(session));
    }
    CHECK_EQ(dlclose(bundle.handle), 0);
  }
}

typedef struct {
  const packager_bundle_v1_t *table;
  const char *path;
  pthread_barrier_t *start;
} thread_t;

static void *create_and_run(void *argument) {
  const thread_t *thread = argument;
  packager_session_options_t options = {.struct_size = sizeof options, .library_path = thread->path};
  pthread_barrier_wait(thread->start);
  for (int i = 0; i < 20; ++i) {
    packager_session_t *session = session_open(thread->table, &options);
    run(thread->table, session, 7);
    CHECK_OK(thread->table, thread->table->session_destroy(session));
  }
  return NULL;
}

/* Arguments: bundle, library_path. */
static void threads(char **arguments) {
  enum { THREADS = 8 };
  bundle_t bundle = bundle_open(arguments[0]);
  pthread_barrier_t start;
  pthread_barrier_init(&start, NULL, THREADS);
  thread_t thread = {bundle.table, arguments[1], &start};
  pthread_t handles[THREADS];
  for (int i = 0; i < THREADS; ++i) CHECK_EQ(pthread_create(&handles[i], NULL, create_and_run, &thread), 0);
  for (int i = 0; i < THREADS; ++i) pthread_join(handles[i], NULL);
  pthread_barrier_destroy(&start);
  CHECK_EQ(dlclose(bundle.handle), 0);
}

int main(int argc, char **argv) {
  static const case_t cases[] = {{"missing", missing}, {"found", found}, {"threads", threads}};
  return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
