/* states.c: the tensors that a session keeps between its runs. */
#include <inttypes.h>

#include "device.h"

/* Checks the number of a state and the tensor that it is copied to or from. */
static int32_t check(packager_session_t *session, int32_t state, const DLTensor *value, void **data) {
  if (state < 0 || state >= pk_model.num_states) {
    return pk_fail(session, PACKAGER_ERROR_ARGUMENT,
                   "there is no state %" PRId32 ", the bundle has %" PRId32 " of them, from 0 on", state,
                   pk_model.num_states);
  }
  return pk_check_state(session, &pk_model.states[state], value, data);
}

int32_t pk_session_get_state(packager_session_t *session, int32_t state, DLTensor *value) {
  int32_t status = pk_enter(session, "session_get_state");
  if (status) return status;
  void *data;
  status = check(session, state, value, &data);
  if (!status) status = pk_device_read_state(session, &pk_model.state_places[state], value, data);
  return pk_leave(session, status);
}

int32_t pk_session_set_state(packager_session_t *session, int32_t state, const DLTensor *value) {
  int32_t status = pk_enter(session, "session_set_state");
  if (status) return status;
  void *data;
  status = check(session, state, value, &data);
  if (!status) status = pk_device_write_state(session, &pk_model.state_places[state], value, data);
  return pk_leave(session, status);
}

int32_t pk_session_reset(packager_session_t *session) {
  int32_t status = pk_enter(session, "session_reset");
  if (status) return status;
  return pk_leave(session, pk_device_reset_states(session));
}
