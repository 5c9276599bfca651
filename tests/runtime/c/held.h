/* held.h: a pthread_create whose threads do not begin while they are held. */
#ifndef HELD_H_
#define HELD_H_

#include <dlfcn.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

/* In place of the C library's: while `hold`, threads are made, but do not begin. */
typedef struct {
  void *(*body)(void *);
  void *argument;
} held_t;
static atomic_int hold;

static void *begin_later(void *argument) {
  held_t held = *(held_t *)argument;
  free(argument);
  while (atomic_load(&hold)) usleep(100);
  return held.body(held.argument);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *argument) {
  int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);
  *(void **)&create = dlsym(RTLD_NEXT, "pthread_create");
  held_t *held = malloc(sizeof *held);
  *held = (held_t){body, argument};
  return create(thread, attributes, begin_later, held);
}

#endif /* HELD_H_ */
