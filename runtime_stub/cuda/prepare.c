/* prepare.c: before a session's first run, libraries choose what they solve its problems with, and load it: both take
 * longer than a run does, by factors of a hundred.
 *
 * A run of each entry is walked through with the dims at their maxima, in which nothing is enqueued but what libraries
 * enqueue in a graph that is thrown away. A walk ends where the run reads a run-time extent. What comes behind, and
 * other dims, are prepared by the run that first has them.
 */
#include "gpu.h"

/* Nothing reads what these point to. They are device memory all the same, where there is any, because a library may ask
 * the driver about a pointer. */
static void *some_memory(const packager_session_t *session) {
  const pk_cuda_t *cuda = session->call.cuda;
  if (session->call.arena) return session->call.arena;
  return (void *)(uintptr_t)(cuda->gpu->constants ? cuda->gpu->constants : PK_ARENA_ALIGNMENT);
}

/* Returns whether a run may have these dims. */
static int take_maxima(const packager_session_t *session) {
  const pk_entry_t *entry = session->entry;
  int64_t values[2];
  for (int32_t i = 0; i < entry->num_dims; ++i) session->dims[i] = entry->dims[i].max;
  for (int32_t i = 0; i < entry->num_inputs; ++i) session->inputs[i] = some_memory(session);
  for (int32_t i = 0; i < entry->num_outputs; ++i) session->outputs[i] = some_memory(session);
  return !entry->check || !entry->check(session->dims, values);
}

/* Only what a library says counts: primitive functions that refuse the largest dims do so in a run. */
static int32_t walk(packager_session_t *session, const pk_entry_t *entry) {
  const pk_cuda_t *cuda = session->call.cuda;
  pk_enter_entry(session, entry);
  if (!take_maxima(session)) return PACKAGER_OK;
  int32_t failed = pk_call(session, PK_PREPARE);
  return failed && cuda->result && cuda->result != PK_UNKNOWN ? pk_fail_call(session, failed) : PACKAGER_OK;
}

static int32_t walk_all(packager_session_t *session) {
  int32_t status = PACKAGER_OK;
  for (int32_t i = 0; !status && i < pk_model.num_entries; ++i) {
    const pk_entry_t *entry = &pk_model.entries[i];
    if (!entry->variants) status = walk(session, entry);
    for (int32_t n = 0; !status && entry->variants && n < entry->num_variants; ++n) {
      status = walk(session, &entry->variants[n]);
    }
  }
  return status;
}

int32_t pk_prepare(packager_session_t *session) {
  pk_cuda_t *cuda = session->call.cuda;
  CUresult result = pk_gpu_enter(cuda->gpu);
  if (result) return pk_fail_result(NULL, PACKAGER_ERROR_DRIVER, result, "the device's context cannot be made current");
  pk_constants_use(session);
  int32_t status = walk_all(session);
  pk_call_begin(cuda, PK_LAUNCH);
  session->entry = NULL; /* nothing of the walk is left */
  pk_enter_entry(session, pk_model.entries);
  pk_gpu_leave();
  return status;
}
