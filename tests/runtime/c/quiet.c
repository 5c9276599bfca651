/* session_run does nothing but compute: no allocation, no system call, little overhead. Arguments: dynamic bundle,
 * static bundle. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stdatomic.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "check.h"

/* The program's allocator stands before libc's for the bundle too. */
void *__libc_malloc(size_t size);
void *__libc_calloc(size_t count, size_t size);
void *__libc_realloc(void *memory, size_t size);
void *__libc_memalign(size_t alignment, size_t size);
void __libc_free(void *memory);

static atomic_long calls;

void *malloc(size_t size) {
  atomic_fetch_add(&calls, 1);
  return __libc_malloc(size);
}

void *calloc(size_t count, size_t size) {
  atomic_fetch_add(&calls, 1);
  return __libc_calloc(count, size);
}

void *realloc(void *memory, size_t size) {
  atomic_fetch_add(&calls, 1);
  return __libc_realloc(memory, size);
}

void free(void *memory) {
  atomic_fetch_add(&calls, 1);
  __libc_free(memory);
}

int posix_memalign(void **memory, size_t alignment, size_t size) {
  atomic_fetch_add(&calls, 1);
  *memory = __libc_memalign(alignment, size);
  return *memory ? 0 : ENOMEM;
}

static void no_allocation(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  CHECK_OK(t, t->set_threads(2));
  long before = calls;
  packager_session_t *session = session_open(t, NULL);
  CHECK(calls > before); /* the counter counts */
  dynamic_t *d = dynamic_new(500);
  int64_t shape[2];
  for (int i = 0; i < 100; ++i) {
    CHECK_EQ(dynamic_set_weights(t, session, 1), PACKAGER_OK); /* new constants for each run */
    before = calls;
    CHECK_EQ(dynamic_run(t, session, d), PACKAGER_OK);
    CHECK_EQ(t->session_output_shape(session, d->inputs, 2, 1, shape), PACKAGER_OK);
    CHECK_EQ(calls, before);
  }
  dynamic_check(d);
  CHECK_OK(t, t->session_destroy(session));
}

static void allow_write_and_exit_only(void) {
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 2, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 1, 0),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
  CHECK_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  CHECK_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

/* Any other system call kills the process. argv[2] = "control" makes one, to see that it does. */
static void no_system_call(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  packager_session_t *session = session_open(t, NULL);
  dynamic_t *d = dynamic_new(500);
  int64_t shape[2];
  allow_write_and_exit_only();
  for (int i = 0; i < 100; ++i) {
    if (dynamic_run(t, session, d) || t->session_output_shape(session, d->inputs, 2, 1, shape)) _exit(1);
  }
  if (!strcmp(arguments[2], "control")) getppid();
  _exit(0);
}

static double now_ns(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (double)time.tv_sec * 1e9 + (double)time.tv_nsec;
}

/* Nanoseconds per run of the static model, whose kernels take a few; the best of many batches, as the machine is
 * shared. argv[2] is the limit. */
static void overhead(char **arguments) {
  bundle_t bundle = bundle_open(arguments[1]);
  const packager_bundle_v1_t *t = bundle.table;
  packager_session_t *session = session_open(t, NULL);
  static_t s;
  static_init(&s);
  double best = 1e9;
  for (int batch = 0; batch < 200; ++batch) {
    double begin = now_ns();
    for (int i = 0; i < 1000; ++i) CHECK_EQ(static_run(t, session, &s), PACKAGER_OK);
    double each = (now_ns() - begin) / 1000;
    if (each < best) best = each;
  }
  static_check(&s);
  printf("%.0f ns\n", best);
  if (best > atof(arguments[2])) FAIL("one run takes %.0f ns", best);
  CHECK_OK(t, t->session_destroy(session));
}

int main(int argc, char **argv) {
  static const case_t cases[] = {
      {"no_allocation", no_allocation}, {"no_system_call", no_system_call}, {"overhead", overhead}};
  return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
