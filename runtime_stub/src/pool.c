/* pool.c: the bundle's workers: started for the first session, joined with the last, so that a bundle whose
 * sessions are gone can be unloaded. */
#define _GNU_SOURCE
#include "pool.h"

#include <inttypes.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18
#endif

/* glibc 2.34 moved these two into libc.so.6 under a new version; the old version is in libpthread.so.0 before that
 * and in libc.so.6 since. A shared library asks for the old version, weakly: so it needs neither a new glibc nor
 * libpthread.so.0, and finds NULL in a program of old glibc that is not linked with -lpthread. An archive leaves the
 * choice to the final link. */
#ifdef PK_SHARED
#ifdef __aarch64__
#define OLD_GLIBC "GLIBC_2.17"
#else
#define OLD_GLIBC "GLIBC_2.2.5"
#endif
extern int pk_pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*start)(void *),
                             void *argument) __attribute__((weak, visibility("default")));
extern int pk_pthread_join(pthread_t thread, void **result) __attribute__((weak, visibility("default")));
__asm__(".symver pk_pthread_create, pthread_create@" OLD_GLIBC);
__asm__(".symver pk_pthread_join, pthread_join@" OLD_GLIBC);
static int have_pthread(void) { return pk_pthread_create && pk_pthread_join; }
#else
#define pk_pthread_create pthread_create
#define pk_pthread_join pthread_join
static int have_pthread(void) { return 1; }
#endif

/* All under pk_lock(). */
static pk_pool_t *pool;
static int32_t sessions;
static atomic_int configured = 1; /* threads, the caller included; read by runs without the lock */

static int32_t fail_without_pthread(void) {
  return pk_fail(NULL, PACKAGER_ERROR_THREADS,
                 "this program has no pthread_create: link it with -lpthread, or give the session a parallel_for");
}

static void stop_workers(int32_t from) {
  int32_t count = atomic_load_explicit(&pool->workers, memory_order_relaxed);
  for (int32_t i = from; i < count; ++i) pk_post(&pool->worker[i], PK_POST_STOP);
  for (int32_t i = from; i < count; ++i) {
    pk_pthread_join(pool->worker[i].thread, NULL);
    memset(&pool->worker[i], 0, sizeof pool->worker[i]);
  }
  atomic_store_explicit(&pool->workers, from, memory_order_relaxed);
}

static int start_worker(int32_t index) {
  pk_worker_t *worker = &pool->worker[index];
  worker->pool = pool;
  return pk_pthread_create(&worker->thread, NULL, pk_worker_main, worker);
}

/* Starts or stops workers until there are `count`; on failure there are as many as before. */
static int32_t resize(int32_t count) {
  int32_t before = atomic_load_explicit(&pool->workers, memory_order_relaxed);
  if (count <= before) {
    if (count < before) stop_workers(count);
    return PACKAGER_OK;
  }
  if (!have_pthread()) return fail_without_pthread();
  sigset_t all, old;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, &old); /* inherited: the host program's signals are not for workers */
  int error = 0;
  for (int32_t i = before; i < count && !(error = start_worker(i)); ++i) {
    atomic_store_explicit(&pool->workers, i + 1, memory_order_relaxed);
  }
  sigprocmask(SIG_SETMASK, &old, NULL);
  if (!error) return PACKAGER_OK;
  int32_t started = atomic_load_explicit(&pool->workers, memory_order_relaxed);
  stop_workers(before);
  return pk_fail(NULL, PACKAGER_ERROR_THREADS, "could not start worker %" PRId32 " of %" PRId32 ": %s", started + 1,
                 count, strerror(error));
}

/* Resizes while no loop uses the pool; meanwhile loops run in their own threads. */
static int32_t close_and_resize(int32_t count) {
  if (count == atomic_load_explicit(&pool->workers, memory_order_relaxed)) return PACKAGER_OK;
  atomic_fetch_or_explicit(&pool->state, PK_POOL_CLOSED, memory_order_relaxed);
  while (atomic_load_explicit(&pool->state, memory_order_acquire) & PK_POOL_HELD) {
    nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
  }
  int32_t status = resize(count);
  atomic_fetch_and_explicit(&pool->state, ~(unsigned)PK_POOL_CLOSED, memory_order_release);
  return status;
}

int32_t pk_pool_acquire(pk_pool_t **acquired) {
  if (!pool) {
    void *pages = mmap(NULL, sizeof *pool, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (pages == MAP_FAILED)
      return pk_fail(NULL, PACKAGER_ERROR_MEMORY, "could not map memory for the thread pool: %m");
    madvise(pages, sizeof *pool, MADV_WIPEONFORK); /* Linux 4.14; without it only forked children lose */
    pool = pages;
  }
  int32_t status = close_and_resize(atomic_load_explicit(&configured, memory_order_relaxed) - 1);
  if (!status) {
    ++sessions;
  } else if (sessions == 0) {
    munmap(pool, sizeof *pool);
    pool = NULL;
  }
  *acquired = pool;
  return status;
}

void pk_pool_release(void) {
  if (--sessions > 0) return;
  stop_workers(0);
  munmap(pool, sizeof *pool);
  pool = NULL;
}

int32_t pk_set_threads(int32_t threads) {
  if (threads < 0 || threads > PK_MAX_THREADS) {
    return pk_fail(NULL, PACKAGER_ERROR_ARGUMENT, "set_threads: %" PRId32 " threads, expected 0..%d", threads,
                   PK_MAX_THREADS);
  }
  if (threads == 0) threads = 1;
  if (threads > 1 && !have_pthread()) return fail_without_pthread();
  pk_lock();
  int32_t status = pool ? close_and_resize(threads - 1) : PACKAGER_OK;
  if (!status) atomic_store_explicit(&configured, threads, memory_order_relaxed);
  pk_unlock();
  return status;
}

int32_t pk_executor_threads(const pk_executor_t *executor) {
  if (executor->pool) return 1 + atomic_load_explicit(&executor->pool->workers, memory_order_relaxed);
  return executor->parallel_for ? atomic_load_explicit(&configured, memory_order_relaxed) : 1;
}
