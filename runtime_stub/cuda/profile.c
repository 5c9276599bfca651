/* profile.c: a profiled run: two events around the launches of each primitive function. */
#include "gpu.h"

/* Runs ahead of the measured one. They keep the GPU busy while that is enqueued, which takes longer than short kernels
 * do: else the time that the GPU waits for a launch would count as the kernel's. A model with states is run once alone,
 * since each run moves them on. */
#define RUNS_AHEAD 4

/* Returns the measure of the step that runs, a new one where the step is new. */
static CUresult find(pk_cuda_t *cuda, pk_measure_t **measure) {
  uint64_t count = cuda->num_measures;
  if (count > 0 && cuda->measures[count - 1].step == cuda->step) {
    *measure = &cuda->measures[count - 1];
    return 0;
  }
  if (!pk_grow((void **)&cuda->measures, &cuda->measure_capacity, count + 1, sizeof *cuda->measures)) {
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *measure = &cuda->measures[count];
  **measure = (pk_measure_t){cuda->step, NULL, NULL};
  cuda->num_measures = count + 1;
  CUresult result = pk_driver.cuEventCreate(&(*measure)->start, 0);
  if (!result) result = pk_driver.cuEventCreate(&(*measure)->end, 0);
  return result ? result : pk_driver.cuEventRecord((*measure)->start, cuda->stream);
}

CUresult pk_measure_begin(pk_cuda_t *cuda) {
  pk_measure_t *measure;
  return find(cuda, &measure);
}

/* The last launch of a step counts. */
CUresult pk_measure_end(pk_cuda_t *cuda) {
  return pk_driver.cuEventRecord(cuda->measures[cuda->num_measures - 1].end, cuda->stream);
}

/* The first measure is that of the start: step 0. */
static int32_t compute(packager_session_t *session) {
  pk_cuda_t *cuda = session->call.cuda;
  for (int i = 0; pk_model.num_states == 0 && i < RUNS_AHEAD; ++i) {
    int32_t status = pk_compute(session);
    if (status) return status;
  }
  cuda->mode = PK_PROFILE;
  cuda->step = 0;
  CUresult result = pk_measure_begin(cuda);
  if (!result) result = pk_measure_end(cuda);
  if (result) return pk_fail_run(session, result, "the run cannot be measured");
  int32_t failed = pk_call(session, PK_PROFILE);
  return failed ? pk_fail_call(session, failed) : PACKAGER_OK;
}

static int64_t nanoseconds(CUevent start, CUevent end, CUresult *result) {
  float milliseconds = 0;
  CUresult failed = pk_driver.cuEventElapsedTime(&milliseconds, start, end);
  if (failed) *result = failed;
  return (int64_t)((double)milliseconds * 1e6);
}

static int32_t tell(packager_session_t *session, packager_profile_fn *report, void *context) {
  const pk_cuda_t *cuda = session->call.cuda;
  CUresult result = 0;
  for (uint64_t i = 1; !result && i < cuda->num_measures; ++i) {
    const pk_measure_t *measure = &cuda->measures[i];
    int64_t start = nanoseconds(cuda->measures[0].start, measure->start, &result);
    int64_t duration = nanoseconds(measure->start, measure->end, &result);
    if (!result) report(context, pk_call_name(session, measure->step), start, duration);
  }
  return result ? pk_fail_run(session, result, "the measured times cannot be read") : PACKAGER_OK;
}

static void destroy_events(pk_cuda_t *cuda) {
  for (uint64_t i = 0; i < cuda->num_measures; ++i) {
    if (cuda->measures[i].start) pk_driver.cuEventDestroy(cuda->measures[i].start);
    if (cuda->measures[i].end) pk_driver.cuEventDestroy(cuda->measures[i].end);
  }
  cuda->num_measures = 0;
}

int32_t pk_device_profile(packager_session_t *session, const DLTensor *const *inputs, DLTensor *const *outputs,
                          packager_profile_fn *report, void *context) {
  pk_cuda_t *cuda = session->call.cuda;
  int32_t status = pk_run(session, inputs, outputs, NULL, compute);
  CUresult result = pk_gpu_enter(cuda->gpu);
  if (result) return status ? status : pk_fail_run(session, result, "the device's context");
  if (!status) status = tell(session, report, context);
  destroy_events(cuda);
  pk_gpu_leave();
  return status;
}
