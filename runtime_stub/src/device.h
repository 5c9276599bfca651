/* device.h: interface of the device that the bundle's code runs on. A bundle is linked with one implementation: ../cpu
 * or ../cuda. */
#ifndef PK_DEVICE_H_
#define PK_DEVICE_H_

#include "runtime.h"

#define PK_DEVICE_TEXT_BYTES 256

/* Checks the device-specific options. */
int32_t pk_device_check_options(const packager_session_options_t *options);

/* Size of what `session->device` points to. */
uint64_t pk_device_bytes(void);

/* Under pk_lock(): gives a new session its arena, its constants, memory for its states, and what runs need. On failure
 * nothing is left. The device's part is not initialized before. */
int32_t pk_device_acquire(packager_session_t *session, const packager_session_options_t *options);
/* Waits until all work of the session is done. */
void pk_device_finish(packager_session_t *session);
/* Under pk_lock(): releases what pk_device_acquire acquired. */
void pk_device_release(packager_session_t *session);

/* Describes for the log where the session runs. */
void pk_device_describe(const packager_session_t *session, char text[PK_DEVICE_TEXT_BYTES]);

/* Refuses a tensor's device that the bundle cannot access. Called for tensors that are not on kDLCPU, which any device
 * accepts; `session` is NULL for the value of a constant. */
int32_t pk_device_check_tensor(packager_session_t *session, const char *role, const char *name, DLDevice device);

/* One run. The pointers of the call are those of the tensors, which are checked. */
int32_t pk_device_run(packager_session_t *session, const DLTensor *const *inputs, DLTensor *const *outputs,
                      void *stream);
/* One run that is measured. */
int32_t pk_device_profile(packager_session_t *session, const DLTensor *const *inputs, DLTensor *const *outputs,
                          packager_profile_fn *report, void *context);
void *pk_device_stream(const packager_session_t *session);

/* Memory for swapped constants, and how they get there. Any thread may ask, also while a run is going on. */
int32_t pk_device_allocate(packager_session_t *session, uint64_t bytes, const char *what, void **memory);
void pk_device_free(packager_session_t *session, void *memory);
int32_t pk_device_write_constant(packager_session_t *session, uint8_t *target, const pk_slot_t *slot,
                                 const DLTensor *value);

/* States, of a session that the caller has entered. `data` is that of `value`, which is checked. */
int32_t pk_device_read_state(packager_session_t *session, const pk_state_t *state, const DLTensor *value, void *data);
int32_t pk_device_write_state(packager_session_t *session, const pk_state_t *state, const DLTensor *value, void *data);
int32_t pk_device_reset_states(packager_session_t *session);

#endif /* PK_DEVICE_H_ */
