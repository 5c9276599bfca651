/* batches.c: runs of a model that was compiled for a part of its batch. A thread takes micro-batches of its own, in a
 * lane of the arena that is its own meanwhile. What is left over when all have had equally many has a team of threads
 * each. */
#include "batches.h"

/* Micro-batches [begin, end) in one thread, all in the lane of the first. */
static int32_t run_lane(const void *arguments, int64_t begin, int64_t end) {
  const packager_session_t *session = arguments;
  pk_run_fn *run = pk_run_of(session);
  pk_call_t call = session->call;
  call.threads = 1;
  call.arena += (uint64_t)begin * session->entry->lane_bytes;
  int32_t failed = 0;
  for (call.batch = begin; !failed && call.batch < end; ++call.batch) failed = run(&call);
  return failed;
}

/* The micro-batches from `first` on. */
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
static int32_t run_in_turn(packager_session_t *session, int64_t first, int64_t batches) {
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

int32_t pk_run_batches(packager_session_t *session) {
  const pk_call_t *call = &session->call;
  int64_t batches = pk_count_batches(session);
  if (call->threads < 2 || call->times) return run_in_turn(session, 0, batches);
  int64_t left = batches % call->threads;
  /* The host program's threads have no teams: one thread each, if there is something for most of them. */
  int is_host = session->executor.parallel_for != NULL;
  if (is_host && 2 * left > call->threads) left = 0;
  rest_t rest = {session, batches - left};
  int32_t failed = rest.first > 0 ? pk_for(call, run_lane, session, rest.first) : 0;
  if (failed || left == 0) return failed;
  if (left == 1 || is_host) return run_in_turn(session, rest.first, batches);
  return pk_teams_for(call->executor, call->threads, run_with_team, &rest, (int32_t)left);
}
