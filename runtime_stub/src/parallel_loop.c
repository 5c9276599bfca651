/* parallel_loop.c: parallel loops. Fork-join with a static partition into one chunk per thread, and work stealing: a
 * thread takes its chunk piece by piece, half of the rest each time, and then pieces of other chunks, because cores
 * differ in speed, and a worker may be asleep or have no core. Workers spin briefly for the next loop, then sleep.
 * During a run they spin longer: the next loop follows after a serial call, and waking a sleeping thread can take as
 * long as such a call.
 *
 * One loop owns the pool at a time. A loop that finds it taken runs in its own thread instead of waiting: the cores
 * are busy already. Its iterations may have teams of their own, for nested loops. */
#define _GNU_SOURCE
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "pool.h"

#define SPINS 1000              /* about 20 to 50 us */
#define LINGER_NS 1000000       /* after them, while a run is under way */
#define SPINS_BETWEEN_YIELDS 32 /* other threads may have the core meanwhile */
#define SMALLEST_PIECE 8        /* pieces are not smaller than this part of a chunk */
#define HELPED 3                /* chunks that a thread steals from: scanning all is slow with many threads */

static inline void pause_cpu(void) {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb" ::: "memory"); /* `yield` does nothing on most cores; this takes as long as a pause */
#endif
}

static void futex_wait(atomic_uint *word, unsigned expected) {
  syscall(SYS_futex, word, FUTEX_WAIT_PRIVATE, expected, NULL, NULL, 0);
}

static void futex_wake(atomic_uint *word) { syscall(SYS_futex, word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0); }

int64_t pk_now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return (int64_t)time.tv_sec * 1000000000 + time.tv_nsec;
}

/* Whether to keep spinning: after `spins` spins until a deadline, which is set at the first call. */
static int linger(int spins, int64_t *until) {
  if (spins % SPINS_BETWEEN_YIELDS) return 1;
  int64_t now = pk_now();
  if (!*until) *until = now + LINGER_NS;
  syscall(SYS_sched_yield);
  return now < *until;
}

static int64_t chunk_begin(const pk_loop_t *loop, int32_t chunk) {
  int64_t rest = loop->extent % loop->chunks;
  return loop->extent / loop->chunks * chunk + (chunk < rest ? chunk : rest);
}

/* Of several failures keeps that of the lowest iterations. */
static void record_failure(pk_loop_t *loop, int64_t begin, int32_t error) {
  long long failure = (begin < INT32_MAX ? begin : INT32_MAX) << 32 | (uint32_t)error;
  long long lowest = atomic_load_explicit(&loop->failure, memory_order_relaxed);
  while (failure < lowest && !atomic_compare_exchange_weak_explicit(&loop->failure, &lowest, failure,
                                                                    memory_order_relaxed, memory_order_relaxed)) {
  }
}

static void run_part(pk_loop_t *loop, int64_t begin, int64_t end) {
  int32_t error = loop->task(loop->arguments, begin, end);
  if (error) record_failure(loop, begin, error);
}

static int32_t loop_error(const pk_loop_t *loop) {
  long long failure = atomic_load_explicit(&loop->failure, memory_order_relaxed);
  return failure == LLONG_MAX ? 0 : (int32_t)(uint32_t)failure;
}

void pk_post(pk_worker_t *worker, unsigned post) {
  if (atomic_exchange_explicit(&worker->post, post, memory_order_acq_rel) == PK_POST_PARKED) futex_wake(&worker->post);
}

static unsigned wait_for_post(pk_worker_t *worker) {
  unsigned post;
  int64_t until = 0;
  for (int i = 0; i < SPINS || (atomic_load_explicit(&worker->pool->runs, memory_order_relaxed) && linger(i, &until));
       ++i) {
    post = atomic_load_explicit(&worker->post, memory_order_acquire);
    if (post != PK_POST_IDLE) return post;
    pause_cpu();
  }
  post = PK_POST_IDLE;
  if (!atomic_compare_exchange_strong_explicit(&worker->post, &post, PK_POST_PARKED, memory_order_acq_rel,
                                               memory_order_acquire)) {
    return post;
  }
  while ((post = atomic_load_explicit(&worker->post, memory_order_acquire)) == PK_POST_PARKED) {
    futex_wait(&worker->post, PK_POST_PARKED);
  }
  return post;
}

void pk_run_begins(const pk_executor_t *executor) {
  if (executor->pool) atomic_fetch_add_explicit(&executor->pool->runs, 1, memory_order_relaxed);
}

void pk_run_ends(const pk_executor_t *executor) {
  if (executor->pool) atomic_fetch_sub_explicit(&executor->pool->runs, 1, memory_order_relaxed);
}

/* Claims a posted chunk: WORK -> BUSY by the worker, or WORK -> IDLE by a leader that withdraws it. One succeeds. */
static int claim(pk_worker_t *worker, unsigned state) {
  unsigned post = PK_POST_WORK;
  return atomic_compare_exchange_strong_explicit(&worker->post, &post, state, memory_order_acquire,
                                                 memory_order_relaxed);
}

/* The worker that a chunk after the first is for. */
static pk_worker_t *worker_of(const pk_team_t *team, int32_t chunk) {
  return &team->pool->worker[team->first + chunk * team->apart - 1];
}

/* Start of the unclaimed rest of a chunk. */
static atomic_llong *rest_of(pk_team_t *team, int32_t chunk) {
  return chunk ? &worker_of(team, chunk)->rest : &team->rest;
}

/* Takes a piece of a chunk and runs it. Returns 0 if there is none. */
static int run_piece(pk_team_t *team, int32_t chunk) {
  pk_loop_t *loop = team->loop;
  atomic_llong *rest = rest_of(team, chunk);
  int64_t begin = chunk_begin(loop, chunk), end = chunk_begin(loop, chunk + 1), size;
  int64_t least = (end - begin + SMALLEST_PIECE - 1) / SMALLEST_PIECE;
  long long at = atomic_load_explicit(rest, memory_order_relaxed);
  do {
    if (at >= end) return 0;
    size = (end - at + 1) / 2;
    if (size < least) size = least < end - at ? least : end - at;
  } while (!atomic_compare_exchange_weak_explicit(rest, &at, at + size, memory_order_relaxed, memory_order_relaxed));
  run_part(loop, at, at + size);
  return 1;
}

/* Runs a thread's own chunk, and then steals from some others. */
static void run_share(pk_team_t *team, int32_t own, int32_t helped) {
  int32_t chunks = team->loop->chunks;
  for (int32_t i = 0; i <= helped && i < chunks; ++i) {
    while (run_piece(team, (own + i) % chunks)) {
    }
  }
}

void *pk_worker_main(void *argument) {
  pk_worker_t *worker = argument;
  while (wait_for_post(worker) != PK_POST_STOP) {
    if (!claim(worker, PK_POST_BUSY)) continue;
    pk_team_t *team = worker->team;
    run_share(team, worker->chunk, HELPED);
    /* Before `pending`: once that is zero the next loop may post. */
    atomic_store_explicit(&worker->post, PK_POST_IDLE, memory_order_relaxed);
    unsigned before = atomic_fetch_sub_explicit(&team->pending, 1, memory_order_acq_rel);
    if (before == (PK_PENDING_PARKED | 1)) futex_wake(&team->pending);
  }
  return NULL;
}

/* All pieces are claimed: withdraws the chunks of workers that have not started. */
static void dismiss(pk_team_t *team, int32_t chunks) {
  for (int32_t chunk = 1; chunk < chunks; ++chunk) {
    if (!claim(worker_of(team, chunk), PK_POST_IDLE)) continue;
    atomic_fetch_sub_explicit(&team->pending, 1, memory_order_relaxed);
  }
}

static void wait_for_workers(pk_team_t *team) {
  int64_t until = 0;
  for (int i = 0; i < SPINS || linger(i, &until); ++i) {
    if (atomic_load_explicit(&team->pending, memory_order_acquire) == 0) return;
    pause_cpu();
  }
  unsigned pending = atomic_fetch_or_explicit(&team->pending, PK_PENDING_PARKED, memory_order_acq_rel);
  for (pending |= PK_PENDING_PARKED; pending != PK_PENDING_PARKED;
       pending = atomic_load_explicit(&team->pending, memory_order_acquire)) {
    futex_wait(&team->pending, pending);
  }
}

static int32_t run_in_team(pk_team_t *team, pk_loop_t *loop) {
  team->loop = loop;
  atomic_store_explicit(&team->pending, (unsigned)loop->chunks - 1, memory_order_relaxed);
  for (int32_t chunk = 0; chunk < loop->chunks; ++chunk) {
    atomic_store_explicit(rest_of(team, chunk), chunk_begin(loop, chunk), memory_order_relaxed);
  }
  for (int32_t chunk = 1; chunk < loop->chunks; ++chunk) {
    pk_worker_t *worker = worker_of(team, chunk);
    worker->team = team;
    worker->chunk = chunk;
    pk_post(worker, PK_POST_WORK);
  }
  run_share(team, 0, loop->chunks);
  dismiss(team, loop->chunks);
  wait_for_workers(team);
  return loop_error(loop);
}

static void let_go(pk_pool_t *pool) {
  atomic_fetch_and_explicit(&pool->state, ~(unsigned)PK_POOL_HELD, memory_order_release);
}

/* Tries to take the pool. Returns its number of workers; 0 if another loop holds it, or it has none. */
static int32_t hold(pk_pool_t *pool) {
  unsigned free = 0;
  if (!atomic_compare_exchange_strong_explicit(&pool->state, &free, PK_POOL_HELD, memory_order_acquire,
                                               memory_order_relaxed)) {
    return 0;
  }
  int32_t workers = atomic_load_explicit(&pool->workers, memory_order_relaxed);
  if (workers == 0) let_go(pool);
  return workers;
}

/* Runs a loop in all threads of a held pool, or in every `apart`th of them, and releases the pool. */
static int32_t run_in_all(pk_pool_t *pool, pk_loop_t *loop, int32_t apart) {
  pool->all.pool = pool;
  pool->all.first = 0;
  pool->all.apart = apart;
  int32_t error = run_in_team(&pool->all, loop);
  let_go(pool);
  return error;
}

static int32_t run_in_pool(pk_pool_t *pool, pk_loop_t *loop) {
  int32_t workers = hold(pool);
  if (workers == 0) return loop->task(loop->arguments, 0, loop->extent);
  if (loop->chunks > workers + 1) loop->chunks = workers + 1;
  return run_in_all(pool, loop, 1);
}

/* Iterations that have a team each. */
typedef struct {
  pk_pool_t *pool;
  pk_team_fn *task;
  const void *arguments;
  int32_t size; /* threads of a team */
} teams_t;

static int32_t run_with_team(const void *arguments, int64_t begin, int64_t end) {
  const teams_t *teams = arguments;
  (void)end; /* a chunk is one iteration */
  return teams->task(teams->arguments, &teams->pool->teams[begin].executor, teams->size, begin);
}

int32_t pk_teams_for(const pk_executor_t *executor, int32_t threads, pk_team_fn *task, const void *arguments,
                     int32_t extent) {
  pk_pool_t *pool = executor->pool;
  int32_t most = 1 + hold(pool), error = 0;
  teams_t teams = {pool, task, arguments, (threads < most ? threads : most) / extent};
  if (most == 1 || teams.size == 0) {
    if (most > 1) let_go(pool);
    for (int32_t i = 0; !error && i < extent; ++i) error = task(arguments, executor, threads, i);
    return error;
  }
  for (int32_t i = 0; i < extent; ++i) {
    pk_team_t *team = &pool->teams[i];
    team->pool = pool;
    team->first = i * teams.size;
    team->apart = 1;
    team->executor = (pk_executor_t){.pool = pool, .team = team};
  }
  pk_loop_t loop = {run_with_team, &teams, extent, extent, 0, LLONG_MAX};
  return run_in_all(pool, &loop, teams.size);
}

/* One index of the host program's parallel_for. */
static void run_index(void *arguments, int32_t index) {
  pk_loop_t *loop = arguments;
  if (index < 0 || index >= loop->chunks) {
    record_failure(loop, 0, -1);
    return;
  }
  run_part(loop, chunk_begin(loop, index), chunk_begin(loop, index + 1));
  atomic_fetch_add_explicit(&loop->done, 1, memory_order_relaxed);
}

static int32_t run_in_host(const pk_executor_t *executor, pk_loop_t *loop) {
  executor->parallel_for(executor->context, run_index, loop, loop->chunks);
  int32_t error = loop_error(loop);
  if (!error && atomic_load_explicit(&loop->done, memory_order_relaxed) != loop->chunks) error = -1;
  return error;
}

int32_t pk_parallel_for(const pk_executor_t *executor, int32_t threads, pk_task_fn *task, const void *arguments,
                        int64_t extent) {
  pk_loop_t loop = {
      .task = task,
      .arguments = arguments,
      .extent = extent,
      .chunks = extent < threads ? (int32_t)extent : threads,
      .failure = LLONG_MAX,
  };
  if (loop.chunks < 2) return task(arguments, 0, extent);
  if (executor->parallel_for) return run_in_host(executor, &loop);
  return executor->team ? run_in_team(executor->team, &loop) : run_in_pool(executor->pool, &loop);
}
