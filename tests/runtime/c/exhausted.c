/* Workers cannot be started: set_threads and session_create say so, undo what they did, and go on with what is there.
 * pthread_create here stands before libc's, with the limit that a container's pids controller would set. Arguments:
 * the dynamic bundle with external weights, their file's name. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>

#include "check.h"

static int allowed;

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument) {
  int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  *(void **)&real = dlsym(RTLD_NEXT, "pthread_create");
  return allowed-- > 0 ? real(thread, attributes, body, argument) : EAGAIN;
}

int main(int argc, char **argv) {
  CHECK_EQ(argc, 3);
  bundle_t bundle = bundle_open(argv[1]);
  const packager_bundle_v1_t *t = bundle.table;
  packager_session_t *session, *other;
  dynamic_t *d = dynamic_new(100);

  CHECK_OK(t, t->set_threads(4)); /* nothing starts yet */
  allowed = 2;
  CHECK_EQ(t->session_create(NULL, &session), PACKAGER_ERROR_THREADS);
  CHECK(session == NULL);
  CHECK_TEXT(t->thread_error(), "could not start worker 3 of 3: Resource temporarily unavailable");
  CHECK(!is_mapped(argv[2]));
  allowed = 3;
  session = session_open(t, NULL);
  CHECK(is_mapped(argv[2]));
  dynamic_run_checked(t, session, d);
  allowed = 1;
  CHECK_EQ(t->set_threads(8), PACKAGER_ERROR_THREADS);
  CHECK_TEXT(t->thread_error(), "could not start worker 5 of 7: Resource temporarily unavailable");
  dynamic_run_checked(t, session, d);
  allowed = 0;
  other = session_open(t, NULL); /* the size is still 4, whose workers run */
  dynamic_run_checked(t, other, d);
  CHECK_OK(t, t->session_destroy(session));
  CHECK_OK(t, t->session_destroy(other));
  free(d);
  CHECK_EQ(dlclose(bundle.handle), 0);
  return 0;
}
