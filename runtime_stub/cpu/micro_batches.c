/* micro_batches.c: runs of a model that was compiled for a part of its batch. Each thread takes micro-batches one by
 * one, in a lane of the arena of its own. When fewer are left than there are threads, each gets a team of threads. */
#include "micro_batches.h"

#include <stdatomic.h>

/* Micro-batches that have one thread each; `next` is the first that none has taken. */
typedef struct {
  const packager_session_t *session;
  int64_t end;
  atomic_llong *next;
} apart_t;

/* Takes micro-batches one by one, all in the lane of this iteration. */
static int32_t run_lane(const void *arguments, int64_t begin, int64_t end) {
  const apart_t *apart = arguments;
  pk_run_fn *run = pk_run_of(apart->session);
  pk_call_t call = apart->session->call;
  (void)end; /* a part of the loop is one iteration */
  call.threads = 1;
  call.arena += (uint64_t)begin * apart->session->entry->lane_bytes;
  int32_t failed = 0;
  while (!failed && (call.batch = atomic_fetch_add_explicit(apart->next, 1, memory_order_relaxed)) < apart->end) {
    failed = run(&call);
  }
  return failed;
}

static int32_t run_apart(packager_session_t *session, int64_t batches) {
  atomic_llong next = 0;
  const apart_t apart = {session, batches, &next};
  int64_t threads = session->call.threads;
  return pk_for(&session->call, run_lane, &apart, batches < threads ? batches : threads);
}

/* The micro-batches from `first` on, which have a team of threads and a lane each. */
typedef struct {
  const packager_session_t *session;
  int64_t first;
} rest_t;

static int32_t run_with_team(const void *arguments, const pk_executor_t *executor, int32_t threads, int64_t index) {
  const rest_t *rest = arguments;
  pk_call_t call = rest->session->call;
  call.executor = executor;
  call.threads = threads;
  call.batch = rest->first + index;
  call.arena += (uint64_t)index * rest->session->entry->lane_bytes;
  return pk_run_of(rest->session)(&call);
}

/* One after the other, each by all threads. */
static int32_t run_together(packager_session_t *session, int64_t first, int64_t batches) {
  pk_call_t *call = &session->call;
  int64_t *times = call->times;
  int32_t failed = 0;
  for (call->batch = first; !failed && call->batch < batches; ++call->batch) {
    failed = pk_run_of(session)(call);
    if (times) call->times += session->entry->num_calls;
  }
  call->times = times;
  return failed;
}

/* How many of `rest` micro-batches, fewer than there are threads, to compute at once. A tenth of one is not shared out
 * in a team: by n threads it takes (9 + n) / 10n of the time. The host program's threads have no teams. */
static int64_t choose_teams(int64_t rest, int64_t threads, int has_teams) {
  int64_t chosen = 1, least = INT64_MAX;
  for (int64_t teams = rest; teams > 0; --teams) {
    int64_t size = has_teams || teams == 1 ? threads / teams : 1;
    int64_t time = (rest + teams - 1) / teams * (9 + size) * 1000 / size;
    if (time < least) chosen = teams, least = time;
  }
  return chosen;
}

int32_t pk_run_batches(packager_session_t *session) {
  const pk_call_t *call = &session->call;
  int64_t batches = pk_count_batches(session), threads = call->threads;
  if (threads < 2 || call->times) return run_together(session, 0, batches);
  int has_teams = !session->executor.parallel_for;
  int64_t rest = batches % threads, teams = choose_teams(rest, threads, has_teams);
  if (teams > 1 && teams == rest && (!has_teams || 2 * rest > threads)) rest = 0; /* one thread each, as before */
  int32_t failed = rest < batches ? run_apart(session, batches - rest) : 0;
  if (teams == 1) return failed ? failed : run_together(session, batches - rest, batches);
  for (rest_t left = {session, batches - rest}; !failed && left.first < batches; left.first += teams) {
    int64_t count = batches - left.first < teams ? batches - left.first : teams;
    failed = pk_teams_for(call->executor, call->threads, run_with_team, &left, (int32_t)count);
  }
  return failed;
}
