/* call.c: calls the primitive functions of a run, and reports their failures. */
#include <inttypes.h>
#include <stdio.h>

#include "gpu.h"

void pk_call_begin(pk_cuda_t *cuda, int32_t mode) {
  cuda->mode = mode;
  cuda->by_graphs = 0;
  cuda->step = 0;
  cuda->result = 0;
  *cuda->said = 0;
  cuda->caught = 0;
  cuda->visited = 0;
  cuda->chained = 0;
  cuda->filled = 0;
}

int32_t pk_call(packager_session_t *session, int32_t mode) {
  pk_call_begin(session->call.cuda, mode);
  return pk_run_of(session)(&session->call);
}

int32_t pk_call_segments(packager_session_t *session) {
  pk_cuda_t *cuda = session->call.cuda;
  pk_call_begin(cuda, PK_LAUNCH);
  cuda->by_graphs = 1;
  int32_t failed = pk_run_of(session)(&session->call);
  cuda->by_graphs = 0;
  return failed;
}

static int32_t fail_fault(packager_session_t *session, CUresult result) {
  pk_cuda_t *cuda = session->call.cuda;
  char text[PK_RESULT_BYTES];
  int none = 0;
  atomic_compare_exchange_strong_explicit(&cuda->gpu->fault, &none, result, memory_order_relaxed, memory_order_relaxed);
  pk_result_text(result, text);
  if (cuda->caught) {
    return pk_fail(session, PACKAGER_ERROR_GPU,
                   "call %" PRId32
                   " (%s): the GPU reported %s; this process can use it no "
                   "more",
                   cuda->step, pk_call_name(session, cuda->step), text);
  }
  return pk_fail(session, PACKAGER_ERROR_GPU,
                 "the GPU reported %s, in this run or in earlier work; this process can use "
                 "it no more%s",
                 text, cuda->blocking ? "" : " (a session with launch_blocking = 1 tells in which primitive function)");
}

int32_t pk_fail_run(packager_session_t *session, CUresult result, const char *what) {
  return pk_is_fault(result) ? fail_fault(session, result)
                             : pk_fail_result(session, PACKAGER_ERROR_DRIVER, result, what);
}

static int32_t fail_launch(packager_session_t *session, const char *call) {
  const pk_cuda_t *cuda = session->call.cuda;
  if (cuda->result == PK_LIBRARY) {
    return pk_fail(session, PACKAGER_ERROR_KERNEL, "%s: the library that it calls failed with status %" PRId32 "%s%s",
                   call, cuda->failed, *cuda->said ? ": " : "", cuda->said);
  }
  const char *kernel = pk_kernel_name(cuda->failed);
  switch (cuda->result) {
    case PK_NOT_LOADED:
      return pk_fail(session, PACKAGER_ERROR_MACHINE, "%s: kernel %s is not for %s, which is of sm_%" PRId32, call,
                     kernel, cuda->gpu->name, cuda->gpu->facts.arch);
    case PK_NO_MEMORY:
      return pk_fail(session, PACKAGER_ERROR_MEMORY,
                     "%s: could not allocate host memory for the arguments of kernel %s", call, kernel);
    default:
      return pk_fail(session, PACKAGER_ERROR_KERNEL, "%s: kernel %s cannot take the problem of this run", call, kernel);
  }
}

int32_t pk_fail_call(packager_session_t *session, int32_t failed) {
  const pk_cuda_t *cuda = session->call.cuda;
  if (failed == PK_FAILED) return cuda->status;
  if (failed < 0) return pk_fail_step(session, failed);
  if (pk_is_fault(cuda->result)) return fail_fault(session, cuda->result);
  char what[PK_MESSAGE_BYTES / 2];
  snprintf(what, sizeof what, "call %" PRId32 " (%s)", failed, pk_call_name(session, failed));
  if (cuda->result < 0) return fail_launch(session, what);
  if (cuda->result) return pk_fail_result(session, PACKAGER_ERROR_KERNEL, cuda->result, what);
  return pk_fail(session, PACKAGER_ERROR_KERNEL, "%s reported failure", what);
}
