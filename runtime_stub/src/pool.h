/* pool.h: the thread pool: pool.c starts and stops workers, parallel_loop.c gives them work. */
#ifndef PK_POOL_H_
#define PK_POOL_H_

#include <pthread.h>

#include "runtime.h"

/* One parallel loop; lives on the stack of the thread that runs it. */
typedef struct {
  pk_task_fn *task;
  const void *arguments;
  int64_t extent;
  int32_t chunks;
  atomic_int done;      /* chunks run, counted for the host program's parallel_for only */
  atomic_llong failure; /* (begin << 32) | error of the first part that failed, LLONG_MAX: none */
} pk_loop_t;

/* States of pk_worker_t.post, which is a futex. WORK is a chunk that waits for the worker, BUSY one that it runs. */
enum { PK_POST_IDLE, PK_POST_WORK, PK_POST_BUSY, PK_POST_PARKED, PK_POST_STOP };
/* Bits of pk_pool.state. */
enum { PK_POOL_HELD = 1, PK_POOL_CLOSED = 2 };
/* Bit of pk_team_t.pending, which is a futex: the leader sleeps on it. */
#define PK_PENDING_PARKED 0x80000000u

/* Threads that run loops together: one that leads, and each `apart`th worker from `first` on. */
struct pk_team {
  _Alignas(64) atomic_uint pending; /* workers that have not finished their share */
  pk_loop_t *loop;                  /* read by workers between post and pending */
  atomic_llong rest;                /* start of the unclaimed rest of the leader's chunk */
  pk_pool_t *pool;
  int32_t first, apart;
  pk_executor_t executor; /* for loops in an iteration that has this team */
};

typedef struct {
  _Alignas(64) atomic_uint post;
  int32_t chunk;     /* of the loop of `team`; both are set before each post */
  pk_team_t *team;   /* whose leader posts */
  atomic_llong rest; /* of the chunk, as the team's */
  pk_pool_t *pool;
  pthread_t thread;
} pk_worker_t;

/* In pages that the kernel zeroes in a forked child: there the pool is free and has no workers, as threads do not
 * survive fork(), so that sessions go on without them. */
struct pk_pool {
  _Alignas(64) atomic_uint state; /* who may post work: one loop, or the thread that resizes the pool */
  atomic_int workers;             /* started; the caller is not counted */
  atomic_int runs;                /* under way, of all sessions, that may have a loop for the workers */
  pk_team_t all;                  /* led by who holds the pool */
  pk_worker_t worker[PK_MAX_THREADS - 1];
  pk_team_t teams[PK_MAX_THREADS]; /* of the iterations of the holder's loop */
};

/* Body of a worker: pthread_create's start routine. */
void *pk_worker_main(void *worker);
/* Hands WORK or STOP to a worker, waking it if it is parked. */
void pk_post(pk_worker_t *worker, unsigned post);

#endif /* PK_POOL_H_ */
