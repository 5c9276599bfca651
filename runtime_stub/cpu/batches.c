/* batches.c: runs of a model that was compiled for a part of its batch. A thread takes micro-batches of its own, in a
 * lane of the arena that is its own meanwhile; what is too little for all threads they compute together, one after the
 * other. */
#include "batches.h"

/* Together threads are slower than so many hundredths of what they are apart. */
#define TOGETHER_PERCENT 60

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

/* How many micro-batches are computed by one thread each. */
static int64_t count_apart(int64_t batches, int32_t threads) {
  if (threads < 2) return 0;
  int64_t rest = batches % threads;
  return rest * 100 < (int64_t)threads * TOGETHER_PERCENT ? batches - rest : batches;
}

int32_t pk_run_batches(packager_session_t *session) {
  pk_call_t *call = &session->call;
  int64_t batches = pk_count_batches(session);
  int64_t apart = call->times ? 0 : count_apart(batches, call->threads);
  int32_t failed = apart > 0 ? pk_for(call, run_lane, session, apart) : 0;
  int64_t *times = call->times;
  for (call->batch = apart; !failed && call->batch < batches; ++call->batch) {
    failed = pk_run_of(session)(call);
    if (times) call->times += session->entry->num_calls;
  }
  call->times = times;
  return failed;
}
