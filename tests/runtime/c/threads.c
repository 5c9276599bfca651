/* Sessions in several threads, parallel loops, the pool and its size. Arguments: the dynamic bundle. */
#define _GNU_SOURCE
#include <dirent.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.h"
#include "held.h"

static bundle_t bundle;
static const packager_bundle_v1_t *t;
static int32_t (*add_error)(void); /* what the second loop of the model returned last in this thread */

static int count_threads(void) {
  DIR *folder = opendir("/proc/self/task");
  CHECK(folder != NULL);
  int count = -2;
  while (readdir(folder)) ++count;
  closedir(folder);
  return count;
}

static pthread_t start(void *(*body)(void *), void *argument) {
  pthread_t thread;
  CHECK_EQ(pthread_create(&thread, NULL, body, argument), 0);
  return thread;
}

static void *own_number(void *number) {
  *(long *)number = syscall(SYS_gettid);
  return NULL;
}

static void open_bundle(char **arguments) {
  long number;
  pthread_join(start(own_number, &number), NULL); /* a sanitizer adds a thread of its own to the first */
  char joined[64];
  snprintf(joined, sizeof joined, "/proc/self/task/%ld", number);
  for (int i = 0; i < 2000 && access(joined, F_OK) == 0; ++i) usleep(1000); /* it may stand there for a moment */
  bundle = bundle_open(arguments[0]);
  t = bundle.table;
  *(void **)&add_error = dlsym(bundle.handle, "test_add_error");
  CHECK(add_error != NULL);
}

/* A joined thread may stand in /proc for a moment. */
static void wait_for_threads(int expected) {
  for (int i = 0; i < 2000 && count_threads() != expected; ++i) usleep(1000);
  CHECK_EQ(count_threads(), expected);
}

/* Holds a session inside session_run until `leave`: the loop's hook is the host program's code. */
typedef struct {
  packager_session_t *session;
  atomic_int inside, leave;
} gate_t;

static void gate_for(void *context, void (*task)(void *, int32_t), void *arguments, int32_t tasks) {
  gate_t *gate = context;
  atomic_store(&gate->inside, 1);
  while (!atomic_load(&gate->leave)) sched_yield();
  for (int32_t i = 0; i < tasks; ++i) task(arguments, i);
}

static void *run_gated(void *argument) {
  gate_t *gate = argument;
  dynamic_t *d = dynamic_new(10);
  dynamic_run_checked(t, gate->session, d);
  free(d);
  return NULL;
}

static void busy(char **arguments) {
  open_bundle(arguments);
  gate_t gate = {NULL, 0, 0};
  packager_session_options_t options = {
      .struct_size = sizeof options, .max_threads = 2, .parallel_for = gate_for, .parallel_for_context = &gate};
  gate.session = session_open(t, &options);
  pthread_t thread = start(run_gated, &gate);
  while (!atomic_load(&gate.inside)) sched_yield();
  dynamic_t *d = dynamic_new(10);
  int64_t shape[2];
  CHECK_EQ(dynamic_run(t, gate.session, d), PACKAGER_ERROR_BUSY);
  CHECK_TEXT(t->thread_error(), "session_run: the session is in use by another thread");
  CHECK_EQ(t->session_output_shape(gate.session, d->inputs, 2, 0, shape), PACKAGER_ERROR_BUSY);
  CHECK_EQ(t->session_destroy(gate.session), PACKAGER_ERROR_BUSY);
  CHECK_TEXT(t->thread_error(), "session_destroy: the session is in use by another thread");
  atomic_store(&gate.leave, 1);
  pthread_join(thread, NULL);
  CHECK_TEXT(t->session_error(gate.session), ""); /* it did not fail, this thread did */
  dynamic_run_checked(t, gate.session, d);
  CHECK_OK(t, t->session_destroy(gate.session));
  free(d);
}

/* Takes turns with other threads at one session: the flag that refuses them also orders their runs. */
static void *run_in_turns(void *argument) {
  packager_session_t *session = argument;
  dynamic_t *d = dynamic_new(20);
  for (int done = 0; done < 100;) {
    int32_t status = dynamic_run(t, session, d);
    if (status == PACKAGER_ERROR_BUSY) continue;
    CHECK_EQ(status, PACKAGER_OK);
    dynamic_check(d);
    ++done;
  }
  free(d);
  return NULL;
}

static void turns(char **arguments) {
  open_bundle(arguments);
  packager_session_t *session = session_open(t, NULL);
  pthread_t threads[3];
  for (int i = 0; i < 3; ++i) threads[i] = start(run_in_turns, session);
  for (int i = 0; i < 3; ++i) pthread_join(threads[i], NULL);
  CHECK_OK(t, t->session_destroy(session));
}

static void *run_many(void *argument) {
  int64_t seed = (int64_t)(intptr_t)argument;
  packager_session_t *session = session_open(t, NULL);
  for (int i = 0; i < 60; ++i) {
    dynamic_t *d = dynamic_new((seed * 37 + i * 11) % 200);
    dynamic_run_checked(t, session, d);
    d->tb.ndim = (int32_t)seed + 3;
    char expected[64];
    snprintf(expected, sizeof expected, "input 'b': rank is %d, expected 2", (int)seed + 3);
    CHECK_EQ(dynamic_run(t, session, d), PACKAGER_ERROR_RANK);
    CHECK_TEXT(t->thread_error(), expected);
    CHECK_TEXT(t->session_error(session), expected);
    free(d);
  }
  CHECK_OK(t, t->session_destroy(session));
  return NULL;
}

static void run_8_threads(int32_t pool) {
  pthread_t threads[8];
  CHECK_OK(t, t->set_threads(pool));
  for (int i = 0; i < 8; ++i) threads[i] = start(run_many, (void *)(intptr_t)i);
  for (int i = 0; i < 8; ++i) pthread_join(threads[i], NULL);
}

static void eight_sessions(char **arguments) {
  open_bundle(arguments);
  run_8_threads(1);
  run_8_threads(3); /* their loops compete for the pool, and the last of them to leave stops it */
  CHECK_EQ(dlclose(bundle.handle), 0);
}

static void pool_sizes(char **arguments) {
  open_bundle(arguments);
  static const int32_t sizes[] = {0, 1, 2, 4, 3, 1, 4};
  int before = count_threads();
  for (int live = 0; live < 2; ++live) { /* resized between sessions, then under a session */
    packager_session_t *session = live ? session_open(t, NULL) : NULL;
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
      CHECK_OK(t, t->set_threads(sizes[i]));
      if (!live) wait_for_threads(before); /* lazily */
      if (!live) session = session_open(t, NULL);
      wait_for_threads(before + (sizes[i] > 1 ? sizes[i] - 1 : 0));
      static const int64_t extents[] = {0, 1, 2, 3, 4, 5, 97, 4096};
      for (size_t n = 0; n < sizeof extents / sizeof *extents; ++n) {
        dynamic_t *d = dynamic_new(extents[n]);
        for (int run = 0; run < 5; ++run) dynamic_run_checked(t, session, d);
        if (n == 5) usleep(3000); /* long enough for workers to park */
        free(d);
      }
      if (!live) CHECK_OK(t, t->session_destroy(session));
    }
    if (live) CHECK_OK(t, t->session_destroy(session));
    wait_for_threads(before);
  }
  CHECK_EQ(t->set_threads(-1), PACKAGER_ERROR_ARGUMENT);
  CHECK_TEXT(t->thread_error(), "set_threads: -1 threads, expected 0..1024");
  CHECK_EQ(t->set_threads(1025), PACKAGER_ERROR_ARGUMENT);
  CHECK_EQ(dlclose(bundle.handle), 0);
}

/* Sessions that need no workers start none. */
static void no_workers(char **arguments) {
  open_bundle(arguments);
  int before = count_threads();
  gate_t gate = {NULL, 0, 1};
  packager_session_options_t one = {.struct_size = sizeof one, .max_threads = 1};
  packager_session_options_t hook = {
      .struct_size = sizeof hook, .parallel_for = gate_for, .parallel_for_context = &gate};
  CHECK_OK(t, t->set_threads(4));
  packager_session_t *a = session_open(t, &one), *b = session_open(t, &hook);
  dynamic_t *d = dynamic_new(50);
  dynamic_run_checked(t, a, d);
  CHECK(!atomic_load(&gate.inside));
  dynamic_run_checked(t, b, d);
  CHECK(atomic_load(&gate.inside));
  CHECK_EQ(count_threads(), before);
  CHECK_OK(t, t->session_destroy(a));
  CHECK_OK(t, t->session_destroy(b));
  free(d);
}

static atomic_int stop_resizing;
static void *resize(void *argument) {
  (void)argument;
  for (int i = 0; !atomic_load(&stop_resizing); ++i) CHECK_OK(t, t->set_threads(i % 4));
  return NULL;
}

static void resize_while_running(char **arguments) {
  open_bundle(arguments);
  packager_session_t *session = session_open(t, NULL);
  pthread_t resizer = start(resize, NULL);
  run_8_threads(2);
  dynamic_t *d = dynamic_new(300);
  for (int i = 0; i < 200; ++i) dynamic_run_checked(t, session, d);
  atomic_store(&stop_resizing, 1);
  pthread_join(resizer, NULL);
  CHECK_OK(t, t->session_destroy(session));
  free(d);
  CHECK_EQ(dlclose(bundle.handle), 0);
}

static void failing_chunk(char **arguments) {
  open_bundle(arguments);
  const int32_t sizes[] = {1, 4};
  for (int i = 0; i < 2; ++i) {
    CHECK_OK(t, t->set_threads(sizes[i]));
    packager_session_t *session = session_open(t, NULL);
    dynamic_t *d = dynamic_new(100); /* 4 chunks of 25 rows */
    for (int run = 0; run < 50; ++run) {
      d->b[4 * 80] = d->b[4 * 60] = d->b[4 * 30] = -777;
      CHECK_EQ(dynamic_run(t, session, d), PACKAGER_ERROR_KERNEL);
      CHECK_TEXT(t->session_error(session), "call 2 (add) reported failure");
      CHECK_EQ(add_error(), 1030); /* the first row's */
      d->b[4 * 80] = d->b[4 * 60] = d->b[4 * 30] = 1;
      dynamic_run_checked(t, session, d);
    }
    free(d);
    CHECK_OK(t, t->session_destroy(session));
  }
}

/* A loop does not wait for workers that have not begun; what their chunks say counts. */
static void absent_workers(char **arguments) {
  open_bundle(arguments);
  CHECK_OK(t, t->set_threads(4));
  atomic_store(&hold, 1);
  packager_session_t *session = session_open(t, NULL);
  dynamic_t *d = dynamic_new(100); /* 4 chunks of 25 rows */
  for (int run = 0; run < 20; ++run) {
    if (run == 10) atomic_store(&hold, 0); /* from here on they come, some of them amid a loop */
    dynamic_run_checked(t, session, d);
    d->b[4 * 80] = d->b[4 * 60] = d->b[4 * 30] = -777;
    CHECK_EQ(dynamic_run(t, session, d), PACKAGER_ERROR_KERNEL);
    CHECK_EQ(add_error(), 1030);
    d->b[4 * 30] = 1;
    CHECK_EQ(dynamic_run(t, session, d), PACKAGER_ERROR_KERNEL);
    CHECK_EQ(add_error(), 1060);
    d->b[4 * 80] = d->b[4 * 60] = 1;
  }
  CHECK_OK(t, t->session_destroy(session));

  atomic_store(&hold, 1);
  session = session_open(t, NULL);
  dynamic_run_checked(t, session, d);
  atomic_store(&hold, 0);
  CHECK_OK(t, t->session_destroy(session)); /* they find that they are to stop */
  free(d);
  CHECK_EQ(dlclose(bundle.handle), 0);
}

/* A host program's parallel_for: a thread per task, or a wrong one. */
typedef struct {
  int32_t loops, tasks, skip;
  int extra;
} host_t;

typedef struct {
  void (*task)(void *, int32_t);
  void *arguments;
  int32_t index;
} host_task_t;

static void *run_host_task(void *argument) {
  host_task_t *task = argument;
  task->task(task->arguments, task->index);
  return NULL;
}

static void host_for(void *context, void (*task)(void *, int32_t), void *arguments, int32_t tasks) {
  host_t *host = context;
  pthread_t threads[16];
  host_task_t host_tasks[16];
  CHECK(tasks <= 16);
  ++host->loops;
  host->tasks = tasks;
  for (int32_t i = host->skip; i < tasks; ++i) {
    host_tasks[i] = (host_task_t){task, arguments, i};
    threads[i] = start(run_host_task, &host_tasks[i]);
  }
  for (int32_t i = host->skip; i < tasks; ++i) pthread_join(threads[i], NULL);
  if (host->extra) task(arguments, tasks);
}

static void hook(char **arguments) {
  open_bundle(arguments);
  host_t host = {0, 0, 0, 0};
  packager_session_options_t options = {
      .struct_size = sizeof options, .max_threads = 5, .parallel_for = host_for, .parallel_for_context = &host};
  packager_session_t *session = session_open(t, &options);
  dynamic_t *d = dynamic_new(101);
  dynamic_run_checked(t, session, d);
  CHECK_EQ(host.loops, 2);
  CHECK_EQ(host.tasks, 5); /* max_threads, whatever set_threads says */
  d->b[4 * 90] = d->b[4 * 45] = -777;
  CHECK_EQ(dynamic_run(t, session, d), PACKAGER_ERROR_KERNEL);
  CHECK_EQ(add_error(), 1045);
  d->b[4 * 90] = d->b[4 * 45] = 0;
  host.skip = 1; /* leaves a task out */
  CHECK_EQ(dynamic_run(t, session, d), PACKAGER_ERROR_KERNEL);
  host.skip = 0;
  host.extra = 1; /* an index that was not asked for */
  CHECK_EQ(dynamic_run(t, session, d), PACKAGER_ERROR_KERNEL);
  host.extra = 0;
  dynamic_run_checked(t, session, d);
  free(d);
  d = dynamic_new(3);
  dynamic_run_checked(t, session, d);
  CHECK_EQ(host.tasks, 3); /* never more than iterations */
  free(d);
  d = dynamic_new(1);
  host.loops = 0;
  dynamic_run_checked(t, session, d);
  CHECK_EQ(host.loops, 0); /* nothing to split */
  free(d);
  CHECK_OK(t, t->session_destroy(session));

  options.max_threads = 0; /* as many as set_threads says */
  CHECK_OK(t, t->set_threads(3));
  session = session_open(t, &options);
  d = dynamic_new(100);
  dynamic_run_checked(t, session, d);
  CHECK_EQ(host.tasks, 3);
  CHECK_OK(t, t->session_destroy(session));
  free(d);
}

/* With the pool held by one session, another session's loops run in its own thread and do not wait. */
static void contention(char **arguments) {
  open_bundle(arguments);
  int before = count_threads();
  CHECK_OK(t, t->set_threads(4));
  packager_session_t *keep = session_open(t, NULL);
  run_8_threads(4);
  wait_for_threads(before + 3);
  CHECK_OK(t, t->session_destroy(keep));
  wait_for_threads(before);
  CHECK_EQ(dlclose(bundle.handle), 0);
}

/* max_threads bounds a session's loops below the size of the pool: 2 chunks, not 4, whose first pieces have 25 rows. */
static void max_threads(char **arguments) {
  open_bundle(arguments);
  CHECK_OK(t, t->set_threads(4));
  packager_session_options_t options = {.struct_size = sizeof options, .max_threads = 2};
  packager_session_t *session = session_open(t, &options);
  dynamic_t *d = dynamic_new(100);
  memset(d->sum, 0, sizeof d->sum);
  d->b[4 * 12] = -777;
  CHECK_EQ(dynamic_run(t, session, d), PACKAGER_ERROR_KERNEL);
  CHECK_EQ(add_error(), 1012);
  CHECK(d->sum[4 * 13 + 1] == 0); /* of 4 chunks this would be the second piece of the first */
  CHECK(d->sum[4 * 24 + 1] == 0);
  CHECK(d->sum[4 * 25 + 1] != 0);
  CHECK_OK(t, t->session_destroy(session));
  free(d);
}

static atomic_int handled;
static void on_signal(int number) { atomic_store(&handled, number); }

/* Workers leave the host program's signals to its own threads. */
static void signals(char **arguments) {
  open_bundle(arguments);
  struct sigaction action = {.sa_handler = on_signal};
  sigset_t before, after;
  CHECK_EQ(sigaction(SIGUSR1, &action, NULL), 0);
  pthread_sigmask(SIG_SETMASK, NULL, &before);
  CHECK_OK(t, t->set_threads(2));
  packager_session_t *session = session_open(t, NULL);
  pthread_sigmask(SIG_SETMASK, NULL, &after);
  for (int i = 1; i < 32; ++i) CHECK_EQ(sigismember(&after, i), sigismember(&before, i));
  sigset_t usr1;
  sigemptyset(&usr1);
  sigaddset(&usr1, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &usr1, NULL);
  kill(getpid(), SIGUSR1); /* no thread takes it: it stays pending */
  usleep(50000);
  CHECK_EQ(atomic_load(&handled), 0);
  sigset_t pending;
  CHECK_EQ(sigpending(&pending), 0);
  CHECK(sigismember(&pending, SIGUSR1));
  CHECK_OK(t, t->session_destroy(session));
}

/* A forked child has no workers: its sessions go on in one thread, and a new session starts workers of its own. */
static void forked_child(char **arguments) {
  open_bundle(arguments);
  CHECK_OK(t, t->set_threads(3));
  packager_session_t *session = session_open(t, NULL);
  dynamic_t *d = dynamic_new(300);
  dynamic_run_checked(t, session, d);
  pid_t child = fork();
  CHECK(child >= 0);
  if (child == 0) {
    alarm(10);
    for (int i = 0; i < 10; ++i) dynamic_run_checked(t, session, d);
    CHECK_EQ(count_threads(), 1);
    packager_session_t *second = session_open(t, NULL);
    CHECK_EQ(count_threads(), 3);
    for (int i = 0; i < 10; ++i) dynamic_run_checked(t, session, d);
    for (int i = 0; i < 10; ++i) dynamic_run_checked(t, second, d);
    CHECK_OK(t, t->session_destroy(second));
    CHECK_OK(t, t->session_destroy(session));
    CHECK_EQ(dlclose(bundle.handle), 0);
    _exit(0);
  }
  int status;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
  dynamic_run_checked(t, session, d);
  CHECK_OK(t, t->session_destroy(session));
  free(d);
}

int main(int argc, char **argv) {
  static const case_t cases[] = {{"busy", busy},
                                 {"turns", turns},
                                 {"eight_sessions", eight_sessions},
                                 {"pool_sizes", pool_sizes},
                                 {"no_workers", no_workers},
                                 {"resize_while_running", resize_while_running},
                                 {"failing_chunk", failing_chunk},
                                 {"absent_workers", absent_workers},
                                 {"hook", hook},
                                 {"contention", contention},
                                 {"max_threads", max_threads},
                                 {"signals", signals},
                                 {"forked_child", forked_child}};
  return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
