/* states.c: copies states to and from the device, and resets them. Their addresses are fixed for the lifetime of the
 * session, so graphs need no update.
 *
 * Nothing here is enqueued: a call waits for the runs before it, and returns when its copy is done. */
#include "gpu.h"

static CUdeviceptr place_of(const packager_session_t *session, const pk_state_t *state) {
  return (CUdeviceptr)(uintptr_t)(session->call.states + state->offset);
}

static int is_host(const DLTensor *tensor) {
  return (int)tensor->device.device_type == kDLCPU || (int)tensor->device.device_type == kDLCUDAHost;
}

typedef CUresult work_fn(const packager_session_t *session, const pk_state_t *state, const DLTensor *value, void *data);

/* Runs `work` on the session's stream, after all runs and before the next. */
static int32_t perform(packager_session_t *session, work_fn *work, const pk_state_t *state, const DLTensor *value,
                       void *data, const char *what) {
  pk_cuda_t *cuda = session->call.cuda;
  CUresult result = pk_gpu_enter(cuda->gpu);
  if (result) return pk_fail_run(session, result, "the device's context");
  int mode = pk_relax_captures();
  if (cuda->pending) result = pk_driver.cuEventSynchronize(cuda->done);
  if (!result) result = work(session, state, value, data);
  if (!result) result = pk_driver.cuStreamSynchronize(cuda->own);
  pk_restore_captures(mode);
  int32_t status = result ? pk_fail_run(session, result, what) : PACKAGER_OK;
  pk_gpu_leave();
  return status;
}

static CUresult read_state(const packager_session_t *session, const pk_state_t *state, const DLTensor *value,
                           void *data) {
  CUdeviceptr source = place_of(session, state);
  CUstream stream = session->call.cuda->own;
  if (is_host(value)) return pk_driver.cuMemcpyDtoHAsync(data, source, state->nbytes, stream);
  return pk_driver.cuMemcpyDtoDAsync((CUdeviceptr)(uintptr_t)data, source, state->nbytes, stream);
}

static CUresult write_state(const packager_session_t *session, const pk_state_t *state, const DLTensor *value,
                            void *data) {
  CUdeviceptr target = place_of(session, state);
  CUstream stream = session->call.cuda->own;
  if (is_host(value)) return pk_driver.cuMemcpyHtoDAsync(target, data, state->nbytes, stream);
  return pk_driver.cuMemcpyDtoDAsync(target, (CUdeviceptr)(uintptr_t)data, state->nbytes, stream);
}

static CUresult reset_states(const packager_session_t *session, const pk_state_t *states, const DLTensor *value,
                             void *data) {
  (void)value;
  (void)data;
  CUstream stream = session->call.cuda->own;
  CUresult result = 0;
  for (int32_t i = 0; !result && i < pk_model.num_states; ++i) {
    const pk_state_t *state = &states[i];
    CUdeviceptr target = place_of(session, state);
    if (state->nbytes == 0) continue;
    if (state->slot < 0) {
      result = pk_driver.cuMemsetD8Async(target, 0, state->nbytes, stream);
    } else {
      const uint8_t *initial = session->constants.base + pk_model.slots[state->slot].offset;
      result = pk_driver.cuMemcpyDtoDAsync(target, (CUdeviceptr)(uintptr_t)initial, state->nbytes, stream);
    }
  }
  return result;
}

int32_t pk_device_read_state(packager_session_t *session, const pk_state_t *state, const DLTensor *value, void *data) {
  if (state->nbytes == 0) return PACKAGER_OK;
  return perform(session, read_state, state, value, data, "a state cannot be copied from the device");
}

int32_t pk_device_write_state(packager_session_t *session, const pk_state_t *state, const DLTensor *value, void *data) {
  if (state->nbytes == 0) return PACKAGER_OK;
  return perform(session, write_state, state, value, data, "a state cannot be copied to the device");
}

int32_t pk_device_reset_states(packager_session_t *session) {
  if (pk_model.num_states == 0) return PACKAGER_OK;
  return perform(session, reset_states, pk_model.state_places, NULL, NULL, "the states cannot be reset");
}
