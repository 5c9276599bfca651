/* run.c: one run: its stream, its dependencies, synchronization, error messages. */
#include "gpu.h"

static int32_t launch(packager_session_t *session) {
  int32_t failed = pk_call(session, PK_LAUNCH);
  return failed ? pk_fail_call(session, failed) : PACKAGER_OK;
}

static int32_t launch_and_wait(packager_session_t *session) {
  int32_t failed = pk_call(session, PK_WAIT);
  return failed ? pk_fail_call(session, failed) : PACKAGER_OK;
}

/* Makes this run wait for the last one, if that was on another stream. */
static CUresult follow(const pk_cuda_t *cuda, unsigned long long *identity) {
  *identity = cuda->own_identity;
  CUresult result = cuda->stream == cuda->own ? 0 : pk_driver.cuStreamGetId(cuda->stream, identity);
  if (result || !cuda->pending || cuda->done_stream == *identity) return result;
  return pk_driver.cuStreamWaitEvent(cuda->stream, cuda->done, 0);
}

static int32_t enqueue(packager_session_t *session, const DLTensor *const *inputs, DLTensor *const *outputs,
                       pk_compute_fn *compute, int *waits) {
  int32_t status = pk_stage_inputs(session, inputs, outputs);
  if (status) return status;
  pk_constants_use(session);
  if ((status = compute(session))) return status;
  return pk_stage_outputs(session, outputs, waits);
}

static int32_t wait(packager_session_t *session, DLTensor *const *outputs) {
  pk_cuda_t *cuda = session->call.cuda;
  CUresult result = pk_driver.cuStreamSynchronize(cuda->stream);
  if (result) return pk_fail_run(session, result, "the run's work cannot be waited for");
  cuda->pending = cuda->staging_busy = 0; /* all that came before is done, too */
  pk_unstage_outputs(session, outputs);
  return PACKAGER_OK;
}

static int32_t leave_behind(packager_session_t *session, unsigned long long identity) {
  pk_cuda_t *cuda = session->call.cuda;
  CUresult result = pk_driver.cuEventRecord(cuda->done, cuda->stream);
  if (result) return pk_fail_run(session, result, "the end of the run cannot be recorded");
  cuda->pending = 1;
  cuda->done_stream = identity;
  return PACKAGER_OK;
}

static int32_t run(packager_session_t *session, const DLTensor *const *inputs, DLTensor *const *outputs, int waits,
                   pk_compute_fn *compute) {
  pk_cuda_t *cuda = session->call.cuda;
  unsigned long long identity;
  CUresult result = follow(cuda, &identity);
  if (result) return pk_fail_run(session, result, "the run's stream cannot be used");
  int32_t status = enqueue(session, inputs, outputs, compute, &waits);
  if (!status) status = waits ? wait(session, outputs) : leave_behind(session, identity);
  if (!status) return PACKAGER_OK;
  /* What was enqueued before the failure uses memory of the session and of the caller. */
  if (!pk_driver.cuStreamSynchronize(cuda->stream)) cuda->pending = cuda->staging_busy = 0;
  return status;
}

/* Whether the host has a part in a run, which no graph of the caller's can hold: it waits for extents, or for the
 * condition of a loop. */
static int host_decides(const pk_entry_t *entry) { return entry->num_extents > 0 || entry->num_loops > 0; }

/* A run on a stream that the caller is capturing becomes part of the caller's graph: it is not executed now, and cannot
 * synchronize. */
static int32_t run_captured(packager_session_t *session, const DLTensor *const *inputs, DLTensor *const *outputs) {
  if (host_decides(session->entry)) {
    const int has_extents = session->entry->num_extents > 0;
    return pk_fail(session, PACKAGER_ERROR_ARGUMENT,
                   "the stream is being captured, but the run has to wait for %s, which it computes",
                   has_extents ? session->entry->extents[0] : "the condition of a loop");
  }
  int32_t status = pk_check_capturable(session, inputs, outputs);
  if (status) return status;
  pk_constants_use(session);
  return launch(session);
}

static int32_t fail_capture(packager_session_t *session, CUresult result) {
  if (pk_is_fault(result)) return pk_fail_run(session, result, NULL);
  return pk_fail_result(session, PACKAGER_ERROR_ARGUMENT, result, "the stream cannot be used");
}

int32_t pk_run(packager_session_t *session, const DLTensor *const *inputs, DLTensor *const *outputs, CUstream stream,
               pk_compute_fn *compute) {
  pk_cuda_t *cuda = session->call.cuda;
  CUresult result = atomic_load_explicit(&cuda->gpu->fault, memory_order_relaxed);
  if (result || (result = pk_gpu_enter(cuda->gpu))) return pk_fail_run(session, result, "the device's context");
  int capturing = CU_STREAM_CAPTURE_STATUS_NONE;
  int32_t status;
  cuda->stream = stream ? stream : cuda->own;
  if (stream && (result = pk_driver.cuStreamIsCapturing(stream, &capturing))) {
    status = fail_capture(session, result);
  } else if (capturing == CU_STREAM_CAPTURE_STATUS_NONE) {
    status = run(session, inputs, outputs, !stream, compute);
  } else if (capturing == CU_STREAM_CAPTURE_STATUS_ACTIVE) {
    status = run_captured(session, inputs, outputs);
  } else {
    status =
        pk_fail(session, PACKAGER_ERROR_ARGUMENT, "the stream is being captured, and the capture is invalid already");
  }
  pk_gpu_leave();
  return status;
}

int32_t pk_compute(packager_session_t *session) {
  const pk_cuda_t *cuda = session->call.cuda;
  if (cuda->blocking) return launch_and_wait(session);
  if (cuda->graph_mode == PACKAGER_GRAPH_OFF) return launch(session);
  const pk_part_t whole = {pk_run_of(session), 0, 0, NULL};
  int32_t failed = 0;
  if (session->entry->num_segments > 0) {
    failed = pk_call_segments(session);
  } else if (host_decides(session->entry)) {
    return launch(session);
  } else {
    failed = pk_graph_run(session, &whole);
  }
  return failed ? pk_fail_call(session, failed) : PACKAGER_OK;
}

int32_t pk_device_run(packager_session_t *session, const DLTensor *const *inputs, DLTensor *const *outputs,
                      void *stream) {
  return pk_run(session, inputs, outputs, stream, pk_compute);
}
