/* device.c: the CPU. Arena and constants are host memory; primitive functions are called directly. */
#define _GNU_SOURCE
#include "device.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "micro_batches.h"

int32_t pk_device_check_options(const packager_session_options_t *options) {
  if (options->device_index != 0) {
    return pk_fail(NULL, PACKAGER_ERROR_ARGUMENT, "options: device_index is %" PRId32 ", expected 0 for a CPU bundle",
                   options->device_index);
  }
  if (options->graph || options->launch_blocking || options->device_arena || options->device_arena_bytes) {
    return pk_fail(NULL, PACKAGER_ERROR_ARGUMENT,
                   "options: graph, launch_blocking, device_arena or device_arena_bytes is set, expected 0 for a CPU "
                   "bundle");
  }
  return PACKAGER_OK;
}

/* The arena, and behind it the states, follow the session in one block. */
static uint64_t states_offset(void) {
  return (pk_model.arena_bytes + PK_ALIGNMENT - 1) & ~(uint64_t)(PK_ALIGNMENT - 1);
}
uint64_t pk_device_bytes(void) { return states_offset() + pk_model.state_bytes; }

int32_t pk_device_acquire(packager_session_t *session, const packager_session_options_t *options) {
  const uint8_t *constants;
  pk_pool_t *pool = NULL;
  int uses_pool = !options->parallel_for && options->max_threads != 1;
  int32_t status = pk_weights_acquire(&constants);
  if (status) return status;
  if (uses_pool && (status = pk_pool_acquire(&pool))) {
    pk_weights_release();
    return status;
  }
  session->max_threads = options->max_threads;
  session->executor = (pk_executor_t){options->parallel_for, options->parallel_for_context, pool, NULL};
  session->call.arena = session->device;
  session->call.states = session->call.arena + states_offset();
  pk_constants_start(session, constants);
  return PACKAGER_OK;
}

void pk_device_finish(packager_session_t *session) { (void)session; }

void pk_device_release(packager_session_t *session) {
  if (session->executor.pool) pk_pool_release();
  pk_weights_release();
}

/* How many threads its loops may use now. */
static int32_t count_threads(const packager_session_t *session) {
  int32_t threads = pk_executor_threads(&session->executor);
  int32_t limit = session->max_threads;
  return limit > 0 && (session->executor.parallel_for || limit < threads) ? limit : threads;
}

void pk_device_describe(const packager_session_t *session, char text[PK_DEVICE_TEXT_BYTES]) {
  snprintf(text, PK_DEVICE_TEXT_BYTES, "%" PRId32 " thread(s)", count_threads(session));
}

int32_t pk_device_check_tensor(packager_session_t *session, const char *role, const char *name, DLDevice device) {
  if ((int)device.device_type == kDLCUDAHost) return PACKAGER_OK;
  return pk_fail(session, PACKAGER_ERROR_DEVICE, "%s '%s': device type is %d, expected %d (CPU)", role, name,
                 (int)device.device_type, kDLCPU);
}

static int has_batches(const pk_entry_t *entry) { return entry->batches || entry->batch_dim; }

int32_t pk_device_run(packager_session_t *session, const DLTensor *const *inputs, DLTensor *const *outputs,
                      void *stream) {
  (void)inputs;
  (void)outputs;
  if (stream) {
    return pk_fail(session, PACKAGER_ERROR_ARGUMENT, "stream is given, expected NULL for a CPU bundle");
  }
  session->call.threads = count_threads(session);
  pk_constants_use(session);
  int shared = session->call.threads > 1;
  if (shared) pk_run_begins(&session->executor);
  int32_t failed = has_batches(session->entry) ? pk_run_batches(session) : pk_run_of(session)(&session->call);
  if (shared) pk_run_ends(&session->executor);
  if (!failed) return PACKAGER_OK;
  if (failed == -1) return pk_fail(session, PACKAGER_ERROR_KERNEL, "parallel_for did not run all parts of the batch");
  return pk_fail_step(session, failed);
}

/* One run, in which the time is taken after each call: of each micro-batch, if there are several. */
int32_t pk_device_profile(packager_session_t *session, const DLTensor *const *inputs, DLTensor *const *outputs,
                          packager_profile_fn *report, void *context) {
  const pk_entry_t *entry = session->entry;
  int64_t calls = entry->num_calls * (has_batches(entry) ? pk_count_batches(session) : 1);
  void *memory;
  if (pk_allocate(&session->allocator, ((uint64_t)calls + 1) * sizeof(int64_t), "the times of a run", &memory)) {
    return pk_fail(session, PACKAGER_ERROR_MEMORY, "could not allocate the times of %" PRId64 " calls", calls);
  }
  int64_t *times = memory;
  for (int64_t i = 1; i <= calls; ++i) times[i] = -1; /* of calls that the run leaves out */
  session->call.times = times;
  times[0] = pk_now();
  int32_t status = pk_device_run(session, inputs, outputs, NULL);
  session->call.times = NULL;
  int64_t begin = times[0];
  for (int64_t i = 1; !status && i <= calls; ++i) {
    if (times[i] < 0) continue;
    report(context, pk_call_name(session, (int32_t)((i - 1) % entry->num_calls) + 1), begin - times[0],
           times[i] - begin);
    begin = times[i];
  }
  pk_release(&session->allocator, memory);
  return status;
}

void *pk_device_stream(const packager_session_t *session) {
  (void)session;
  return NULL;
}

int32_t pk_device_allocate(packager_session_t *session, uint64_t bytes, const char *what, void **memory) {
  return pk_allocate(&session->allocator, bytes, what, memory);
}

void pk_device_free(packager_session_t *session, void *memory) { pk_release(&session->allocator, memory); }

int32_t pk_device_write_constant(packager_session_t *session, uint8_t *target, const pk_slot_t *slot,
                                 const DLTensor *value) {
  (void)session;
  pk_constants_gather(target, slot, value);
  return PACKAGER_OK;
}

int32_t pk_device_read_state(packager_session_t *session, const pk_state_t *state, const DLTensor *value, void *data) {
  (void)value;
  if (state->nbytes > 0) memcpy(data, session->call.states + state->offset, state->nbytes);
  return PACKAGER_OK;
}

int32_t pk_device_write_state(packager_session_t *session, const pk_state_t *state, const DLTensor *value, void *data) {
  (void)value;
  if (state->nbytes > 0) memcpy(session->call.states + state->offset, data, state->nbytes);
  return PACKAGER_OK;
}

int32_t pk_device_reset_states(packager_session_t *session) {
  for (int32_t i = 0; i < pk_model.num_states; ++i) {
    const pk_state_t *state = &pk_model.state_places[i];
    uint8_t *target = session->call.states + state->offset;
    if (state->slot < 0) {
      memset(target, 0, state->nbytes);
    } else if (state->nbytes > 0) {
      memcpy(target, session->constants.base + pk_model.slots[state->slot].offset, state->nbytes);
    }
  }
  return PACKAGER_OK;
}
