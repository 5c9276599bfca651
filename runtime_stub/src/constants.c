/* constants.c: swaps constants of a session for new data, while it runs. */
#include <inttypes.h>
#include <string.h>

#include "device.h"

void pk_constants_start(packager_session_t *session, const uint8_t *base) {
  pk_constants_t *constants = &session->constants;
  constants->base = base;
  for (int32_t slot = 0; slot < pk_model.num_slots; ++slot) {
    constants->tables[0][slot] = base + pk_model.slots[slot].offset;
  }
  session->call.constants = constants->tables[0];
}

/* Acquires what the writer of the next table did, and releases what the last run read: its table can be written. */
void pk_constants_advance(packager_session_t *session) {
  atomic_uint *state = &session->constants.state;
  unsigned old = atomic_load_explicit(state, memory_order_relaxed), next;
  do {
    next = old >> 2;
  } while (!atomic_compare_exchange_weak_explicit(state, &old, next | next << 2, memory_order_acq_rel,
                                                  memory_order_relaxed));
  session->call.constants = session->constants.tables[next];
  ++session->constants.version;
}

/* Makes `table` what the next run uses. The last run may change meanwhile, but only to what was the next. */
static void publish(pk_constants_t *constants, unsigned table) {
  unsigned old = atomic_load_explicit(&constants->state, memory_order_relaxed);
  while (!atomic_compare_exchange_weak_explicit(&constants->state, &old, (old & 3) | table << 2, memory_order_acq_rel,
                                                memory_order_relaxed)) {
  }
}

void pk_constants_release(packager_session_t *session) {
  for (int i = 0; i < PK_TABLES; ++i) {
    for (int32_t slot = 0; slot < pk_model.num_slots; ++slot) {
      uint8_t *buffer = session->constants.buffers[i][slot];
      if (buffer) pk_device_free(session, buffer);
    }
  }
}

/* Returns the number of the model's constant of this name, or -1. Names mostly come in order: looks from `from` on. */
static int32_t find(const char *name, int32_t from) {
  for (int32_t i = 0; i < pk_model.num_constants; ++i) {
    int32_t index = (from + i) % pk_model.num_constants;
    if (!strcmp(pk_model.constants[index].name, name)) return index;
  }
  return -1;
}

/* Fills constants->given: for each of the model's constants the index of its value, or -1. */
static int32_t check(pk_constants_t *constants, const char *const *names, const DLTensor *const *values,
                     int32_t count) {
  for (int32_t i = 0; i < pk_model.num_constants; ++i) constants->given[i] = -1;
  if (count < 0) return pk_fail(NULL, PACKAGER_ERROR_ARGUMENT, "number of constants is %" PRId32, count);
  if (count > 0 && (!names || !values)) {
    return pk_fail(NULL, PACKAGER_ERROR_ARGUMENT, "session_set_constants: %s is NULL", names ? "values" : "names");
  }
  int32_t index = -1;
  for (int32_t i = 0; i < count; ++i) {
    if (!names[i]) return pk_fail(NULL, PACKAGER_ERROR_ARGUMENT, "the name of constant %" PRId32 " is NULL", i);
    index = find(names[i], index + 1);
    if (index < 0) {
      return pk_fail(
          NULL, PACKAGER_ERROR_CONSTANT,
          "there is no constant '%s' that can be swapped: the model has none, or computed with it at build time",
          names[i]);
    }
    const packager_constant_info_t *info = &pk_model.constants[index];
    if (constants->given[index] >= 0) {
      return pk_fail(NULL, PACKAGER_ERROR_ARGUMENT, "constant '%s' is given twice", info->name);
    }
    constants->given[index] = i;
    void *data;
    int32_t status = values[i] ? pk_check_constant(info, values[i], &data) : PACKAGER_OK;
    if (status) return status;
  }
  return PACKAGER_OK;
}

/* Writes `count` elements that lie `stride` apart one after the other. Returns where the next goes. */
static uint8_t *gather_row(uint8_t *target, const uint8_t *source, int64_t count, int64_t stride, int64_t bytes) {
  if (stride == 1) {
    memcpy(target, source, (size_t)(count * bytes));
    return target + count * bytes;
  }
#define GATHER(size)                                                                                       \
  case size:                                                                                               \
    for (int64_t i = 0; i < count; ++i) memcpy(target + i * (size), source + i * stride * (size), (size)); \
    break
  switch (bytes) {
    GATHER(1);
    GATHER(2);
    GATHER(4);
    GATHER(8);
  }
#undef GATHER
  return target + count * bytes;
}

static uint8_t *gather(uint8_t *target, const uint8_t *source, const int64_t *extents, const int64_t *strides,
                       int32_t ndim, int64_t bytes) {
  if (ndim == 1) return gather_row(target, source, *extents, *strides, bytes);
  for (int64_t i = 0; i < *extents; ++i) {
    target = gather(target, source + i * *strides * bytes, extents + 1, strides + 1, ndim - 1, bytes);
  }
  return target;
}

void pk_constants_gather(uint8_t *target, const pk_slot_t *slot, const DLTensor *value) {
  int64_t bytes = (value->dtype.bits + 7) / 8;
  const int64_t *extents = pk_model.forms + slot->form;
  const uint8_t *source = (const uint8_t *)value->data + value->byte_offset + slot->first * bytes;
  gather(target, source, extents, extents + slot->ndim, slot->ndim, bytes);
}

/* What one call of set_constants works on: the table that it makes, and those that runs may use meanwhile. */
typedef struct {
  const uint8_t **table;
  const uint8_t *const *running;
  const uint8_t *const *newest;
} writing_t;

/* Stores a buffer for the slot that no run may use meanwhile. There are buffers for three tables, one of which is the
 * new one: one is always free. */
static int32_t find_buffer(packager_session_t *session, const writing_t *writing, int32_t slot, uint8_t **buffer) {
  uint8_t **empty = NULL;
  for (int i = 0; i < PK_TABLES; ++i) {
    uint8_t **place = &session->constants.buffers[i][slot];
    if (!*place) {
      empty = place;
    } else if (*place != writing->running[slot] && *place != writing->newest[slot]) {
      *buffer = *place;
      return PACKAGER_OK;
    }
  }
  void *memory;
  int32_t status = pk_device_allocate(session, pk_model.slots[slot].nbytes, "a constant", &memory);
  if (!status) *buffer = *empty = memory;
  return status;
}

/* Frees the buffers that no table needs: those that a call has allocated before it failed. */
static void release_unused(packager_session_t *session, const writing_t *writing) {
  for (int i = 0; i < PK_TABLES; ++i) {
    for (int32_t slot = 0; slot < pk_model.num_slots; ++slot) {
      uint8_t **place = &session->constants.buffers[i][slot];
      if (!*place || *place == writing->running[slot] || *place == writing->newest[slot]) continue;
      pk_device_free(session, *place);
      *place = NULL;
    }
  }
}

/* Makes the new table: the newest one with what is given changed. */
static int32_t write_table(packager_session_t *session, const writing_t *writing, const DLTensor *const *values) {
  const pk_constants_t *constants = &session->constants;
  for (int32_t i = 0; i < pk_model.num_slots; ++i) {
    const pk_slot_t *slot = &pk_model.slots[i];
    int32_t given = slot->source < 0 ? -1 : constants->given[slot->source];
    writing->table[i] = writing->newest[i];
    if (given < 0) continue;
    writing->table[i] = constants->base + slot->offset;
    if (!values[given] || slot->nbytes == 0) continue;
    uint8_t *buffer;
    int32_t status = find_buffer(session, writing, i, &buffer);
    if (!status) status = pk_device_write_constant(session, buffer, slot, values[given]);
    if (status) return status;
    writing->table[i] = buffer;
  }
  return PACKAGER_OK;
}

static int32_t set(packager_session_t *session, const char *const *names, const DLTensor *const *values,
                   int32_t count) {
  pk_constants_t *constants = &session->constants;
  int32_t status = check(constants, names, values, count);
  if (status || count == 0) return status;
  unsigned state = atomic_load_explicit(&constants->state, memory_order_acquire);
  unsigned running = state & 3, newest = state >> 2, table = 0;
  while (table == running || table == newest) ++table;
  const writing_t writing = {constants->tables[table], constants->tables[running], constants->tables[newest]};
  status = write_table(session, &writing, values);
  if (status) {
    release_unused(session, &writing);
    return status;
  }
  publish(constants, table);
  return PACKAGER_OK;
}

int32_t pk_session_set_constants(packager_session_t *session, const char *const *names, const DLTensor *const *values,
                                 int32_t count) {
  if (!session) return pk_fail(NULL, PACKAGER_ERROR_ARGUMENT, "session_set_constants: session is NULL");
  atomic_int *writing = &session->constants.writing;
  if (atomic_exchange_explicit(writing, 1, memory_order_acquire)) {
    return pk_fail(NULL, PACKAGER_ERROR_BUSY,
                   "session_set_constants: another thread is setting constants of the session");
  }
  int32_t status = set(session, names, values, count);
  atomic_store_explicit(writing, 0, memory_order_release);
  return status;
}
