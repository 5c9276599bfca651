/* session.c: the life cycle of a session. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "device.h"

/* The ABI cannot change by accident. */
_Static_assert(sizeof(DLTensor) == 48, "DLTensor is DLPack's");
_Static_assert(sizeof(packager_tensor_info_t) == 48, "layout of packager_tensor_info_t");
_Static_assert(sizeof(packager_session_options_t) == 120, "layout of packager_session_options_t");
_Static_assert(sizeof(packager_bundle_v1_t) == 264, "layout of packager_bundle_v1_t");
_Static_assert(sizeof(packager_constant_info_t) == 24, "layout of packager_constant_info_t");
_Static_assert(offsetof(packager_bundle_v1_t, set_threads) == 72, "layout of packager_bundle_v1_t");
_Static_assert(offsetof(packager_bundle_v1_t, session_stream) == 160, "layout of packager_bundle_v1_t");
_Static_assert(offsetof(packager_session_options_t, graph) == 72, "layout of packager_session_options_t");
_Static_assert(offsetof(packager_session_options_t, cpu_level) == 104, "layout of packager_session_options_t");
_Static_assert(offsetof(packager_session_options_t, library_path) == 112, "layout of packager_session_options_t");
_Static_assert(offsetof(packager_bundle_v1_t, session_cpu_level) == 176, "layout of packager_bundle_v1_t");
_Static_assert(offsetof(packager_bundle_v1_t, state_bytes) == 184, "layout of packager_bundle_v1_t");

#define MAX_OPTIONS_BYTES 4096 /* a larger struct_size can only be garbage */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

void pk_lock(void) { pthread_mutex_lock(&lock); }
void pk_unlock(void) { pthread_mutex_unlock(&lock); }

/* Copies the options, which may be of an older or newer header than this one. */
static int32_t read_options(const packager_session_options_t *given, packager_session_options_t *options) {
  memset(options, 0, sizeof *options);
  if (!given) return PACKAGER_OK;
  uint32_t size = given->struct_size;
  if (size < 8 || size > MAX_OPTIONS_BYTES || size % 8) {
    return pk_fail(NULL, PACKAGER_ERROR_ARGUMENT,
                   "options: struct_size is %" PRIu32 ", expected sizeof(packager_session_options_t)", size);
  }
  memcpy(options, given, size < sizeof *options ? size : sizeof *options);
  const uint8_t *bytes = (const uint8_t *)given;
  for (uint32_t i = sizeof *options; i < size; ++i) {
    if (bytes[i]) {
      return pk_fail(NULL, PACKAGER_ERROR_ARGUMENT,
                     "options: byte %" PRIu32 " is set, which this bundle does not know (it knows %zu bytes)", i,
                     sizeof *options);
    }
  }
  if (options->max_threads < 0) {
    return pk_fail(NULL, PACKAGER_ERROR_ARGUMENT, "options: max_threads is %" PRId32 ", expected 0 or more",
                   options->max_threads);
  }
  if (!options->allocate != !options->release) {
    return pk_fail(NULL, PACKAGER_ERROR_ARGUMENT, "options: allocate and release must be given both or neither");
  }
  return pk_device_check_options(options);
}

/* Bump allocator over one block; without a block it only sums the sizes. */
typedef struct {
  uint8_t *block;
  uint64_t used;
} layout_t;

static void *take(layout_t *layout, uint64_t bytes, uint64_t alignment) {
  uint64_t offset = (layout->used + alignment - 1) & ~(alignment - 1);
  layout->used = offset + bytes;
  return layout->block ? layout->block + offset : NULL;
}

/* Returns the size of the block; fills the session, which is its start, when there is a block. */
static uint64_t lay_out(uint8_t *block) {
  layout_t layout = {block, 0};
  pk_most_t most = pk_most();
  uint64_t num_inputs = (uint64_t)most.inputs, num_outputs = (uint64_t)most.outputs, extents = (uint64_t)most.extents;

  uint64_t slots = (uint64_t)pk_model.num_slots * sizeof(void *);

  packager_session_t *session = take(&layout, sizeof *session, PK_ALIGNMENT);
  packager_session_t parts = {
      .dims = take(&layout, (uint64_t)most.dims * sizeof(int64_t), sizeof(int64_t)),
      .extents = take(&layout, extents * sizeof(int64_t), sizeof(int64_t)),
      .inputs = take(&layout, num_inputs * sizeof(void *), sizeof(void *)),
      .outputs = take(&layout, num_outputs * sizeof(void *), sizeof(void *)),
      .input_bytes = take(&layout, num_inputs * sizeof(uint64_t), sizeof(uint64_t)),
      .output_bytes = take(&layout, num_outputs * sizeof(uint64_t), sizeof(uint64_t)),
      .constants.given = take(&layout, (uint64_t)pk_model.num_constants * sizeof(int32_t), sizeof(int32_t)),
  };
  parts.selection = take(&layout, (uint64_t)pk_model.num_selected, 1);
  for (int i = 0; i < PK_TABLES; ++i) {
    parts.constants.tables[i] = take(&layout, slots, sizeof(void *));
    parts.constants.buffers[i] = take(&layout, slots, sizeof(void *));
    if (block) memset(parts.constants.buffers[i], 0, slots);
  }
  parts.device = take(&layout, pk_device_bytes(), PK_ALIGNMENT);
  if (session) *session = parts;
  return layout.used;
}

static int32_t allocate(const packager_session_options_t *options, packager_session_t **session) {
  const pk_allocator_t allocator = {options->allocate, options->release, options->allocator_context};
  void *block;
  int32_t status = pk_allocate(&allocator, lay_out(NULL), "a session", &block);
  if (status) return status;
  *session = block;
  lay_out(block);
  (*session)->allocator = allocator;
  return PACKAGER_OK;
}

static void release(packager_session_t *session) {
  const pk_allocator_t allocator = session->allocator; /* lies in what is released */
  pk_release(&allocator, session);
}

static void fill(packager_session_t *session) {
  session->call.inputs = session->inputs;
  session->call.outputs = session->outputs;
  session->call.dims = session->dims;
  session->call.refused = session->refused;
  session->call.selection = session->selection;
  session->call.executor = &session->executor;
  pk_enter_entry(session, pk_model.entries);
}

/* Sets the candidates that a session uses. */
static int32_t select_candidates(const packager_session_options_t *options, uint8_t *selection) {
  if (!options->selection != !options->num_selected ||
      (options->selection && options->num_selected != pk_model.num_selected)) {
    return pk_fail(NULL, PACKAGER_ERROR_ARGUMENT,
                   "options: selection has %" PRId32 " entries, expected NULL or %" PRId32 " entries",
                   options->num_selected, pk_model.num_selected);
  }
  const uint8_t *chosen = options->selection ? options->selection : pk_model.selection;
  for (int32_t i = 0; i < pk_model.num_selected; ++i) {
    if (chosen[i] >= pk_model.candidates[i]) {
      return pk_fail(NULL, PACKAGER_ERROR_ARGUMENT, "selection[%" PRId32 "] is %d, expected less than %d", i, chosen[i],
                     pk_model.candidates[i]);
    }
    selection[i] = chosen[i];
  }
  return PACKAGER_OK;
}

static void release_device(packager_session_t *session) {
  pk_lock();
  pk_device_release(session);
  pk_unlock();
}

static int32_t acquire(packager_session_t *session, const packager_session_options_t *options) {
  pk_lock();
  int32_t status = pk_device_acquire(session, options);
  pk_unlock();
  if (status) return status;
  status = pk_device_reset_states(session);
  if (status) release_device(session);
  return status;
}

/* Does without libraries that turn out to be of no use on the device, where the session's choices allow that. */
static int32_t acquire_without(packager_session_t *session, const packager_session_options_t *options) {
  int32_t status;
  do {
    session->unsuitable = NULL;
    status = acquire(session, options);
  } while (status && session->unsuitable && pk_model.loaded->avoid(session->unsuitable, options, session->selection));
  return status;
}

static int32_t create(const packager_session_options_t *options, packager_session_t **session) {
  const pk_level_t *level;
  int32_t status = pk_choose_level(options->cpu_level, &level);
  if (status) return status;
  if ((status = allocate(options, session))) return status;
  fill(*session);
  (*session)->level = level;
  status = select_candidates(options, (*session)->selection);
  if (!status && pk_model.loaded) status = pk_model.loaded->open(options, (*session)->selection);
  if (!status) status = acquire_without(*session, options);
  if (status) {
    release(*session);
    *session = NULL;
  }
  return status;
}

int32_t pk_session_create(const packager_session_options_t *given, packager_session_t **session) {
  if (!session) return pk_fail(NULL, PACKAGER_ERROR_ARGUMENT, "session_create: session is NULL");
  *session = NULL;
  packager_session_options_t options;
  int32_t status = read_options(given, &options);
  if (status) return status;
  status = create(&options, session);
  if (!options.log) return status;
  if (status) {
    options.log(options.log_context, PACKAGER_LOG_ERROR, pk_thread_error());
    return status;
  }
  char message[PK_MESSAGE_BYTES], device[PK_DEVICE_TEXT_BYTES];
  pk_device_describe(*session, device);
  const pk_level_t *level = (*session)->level;
  snprintf(message, sizeof message, "%s: session created, arena of %" PRIu64 " bytes, %s%s%s", pk_model.name,
           pk_model.arena_bytes, device, level ? ", code for " : "", level ? level->name : "");
  options.log(options.log_context, PACKAGER_LOG_INFO, message);
  return status;
}

void *pk_session_stream(const packager_session_t *session) { return session ? pk_device_stream(session) : NULL; }

const char *pk_session_cpu_level(const packager_session_t *session) {
  return session && session->level ? session->level->name : NULL;
}

int32_t pk_session_destroy(packager_session_t *session) {
  if (!session) return PACKAGER_OK;
  int32_t status = pk_enter(session, "session_destroy");
  if (status) return status;
  if (atomic_exchange_explicit(&session->constants.writing, 1, memory_order_acquire)) {
    return pk_leave(session, pk_fail(session, PACKAGER_ERROR_BUSY,
                                     "session_destroy: the session's constants are being set by another thread"));
  }
  pk_device_finish(session);
  pk_constants_release(session);
  release_device(session);
  release(session);
  return PACKAGER_OK;
}
