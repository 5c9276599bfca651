/* Engines: from the bundle to the device, with the constants that a session has swapped. */
#ifndef PK_TENSORRT_ENGINE_H_
#define PK_TENSORRT_ENGINE_H_

#include "library.h"
#include "packager_cuda.h"

/* An input or output. */
typedef struct {
  const char *name;
  int32_t type; /* DataType */
  int32_t rank;
  int64_t extents[PK_TRT_MAX_RANK]; /* -1: a run says it */
} pk_trt_tensor_t;

/* Weights that it can be refitted with. */
typedef struct {
  const char *name;
  int32_t type;
  int64_t elements;
} pk_trt_constant_t;

/* What the module says of the engine of a function. */
typedef struct {
  int32_t record;
  int32_t num_inputs, num_tensors; /* inputs first */
  int32_t num_constants;
  int32_t num_extents; /* of inputs and outputs that a run says */
  const uint8_t *data; /* NULL: not embedded */
  uint64_t workspace;  /* bytes of the arena that it may use */
  const pk_trt_tensor_t *tensors;
  const pk_trt_constant_t *constants;
  const pk_library_t *library;
} pk_trt_engine_t;

/* DataType: float32, float16, int8, int32, bool, uint8, float8_e4m3fn, bfloat16, int64. */
static inline int64_t pk_trt_itemsize(int32_t type) {
  static const uint8_t sizes[] = {4, 2, 1, 4, 1, 1, 1, 2, 8};
  return sizes[type];
}

static const pk_trt_record_t *pk_trt_record(const pk_trt_engine_t *engine) {
  return &pk_trt_records().records[engine->record];
}

#define PK_TRT_KEY "engine %.12s"

static int32_t pk_trt_load(const pk_trt_engine_t *engine, const pk_trt_library_t *library, const void *data,
                           pk_trt_object_t **loaded, char why[PK_TRT_TEXT_BYTES]) {
  const pk_trt_record_t *record = pk_trt_record(engine);
  pk_trt_object_t *runtime = library->runtime;
  pk_trt_hush();
  *loaded = pk_trt_object(PK_TRT(runtime, library->slots->deserialize, pk_trt_deserialize_fn)(
      runtime->impl, data, (size_t)record->bytes, NULL));
  if (*loaded) return 0;
  pk_trt_explain(why, PK_TRT_KEY " is refused", record->key);
  return PK_TRT_ENGINE;
}

/* The shape of a tensor, as this slot of an engine or of a context says it. */
static pk_trt_dims_t pk_trt_shape_of(const pk_trt_object_t *object, int8_t slot, const char *name,
                                     const pk_trt_slots_t *slots) {
  if (!slots->short_dims) return PK_TRT(object, slot, pk_trt_shape_fn)(object->impl, name);
  const pk_trt_short_dims_t found = PK_TRT(object, slot, pk_trt_short_shape_fn)(object->impl, name);
  pk_trt_dims_t dims = {found.rank, {0}};
  for (int32_t i = 0; i < PK_TRT_MAX_RANK; ++i) dims.extents[i] = found.extents[i];
  return dims;
}

static int pk_trt_shape_is(const pk_trt_tensor_t *tensor, const pk_trt_object_t *engine, const pk_trt_slots_t *slots) {
  const pk_trt_dims_t dims = pk_trt_shape_of(engine, slots->shape, tensor->name, slots);
  if (dims.rank != tensor->rank) return 0;
  for (int32_t i = 0; i < tensor->rank; ++i) {
    const int64_t declared = tensor->extents[i], found = dims.extents[i];
    if (found != declared && found >= 0 && declared >= 0) return 0;
  }
  return 1;
}

/* Whoever appended an engine may have taken the wrong one. */
static int32_t pk_trt_check(const pk_trt_engine_t *engine, const pk_trt_object_t *loaded, const pk_trt_slots_t *slots,
                            char why[PK_TRT_TEXT_BYTES]) {
  const char *key = pk_trt_record(engine)->key;
  const int32_t tensors = PK_TRT(loaded, slots->tensors, pk_trt_count_fn)(loaded->impl);
  pk_trt_hush();
  if (tensors != engine->num_tensors) {
    pk_trt_explain(why, PK_TRT_KEY " has %" PRId32 " inputs and outputs, not %" PRId32, key, tensors,
                   engine->num_tensors);
    return PK_TRT_INTERFACE;
  }
  for (int32_t i = 0; i < engine->num_tensors; ++i) {
    const pk_trt_tensor_t *tensor = &engine->tensors[i];
    const int32_t wanted = i < engine->num_inputs ? PK_TRT_INPUT : PK_TRT_OUTPUT;
    const int32_t mode = PK_TRT(loaded, slots->mode, pk_trt_of_tensor_fn)(loaded->impl, tensor->name);
    if (mode == wanted &&
        PK_TRT(loaded, slots->type, pk_trt_of_tensor_fn)(loaded->impl, tensor->name) == tensor->type &&
        pk_trt_shape_is(tensor, loaded, slots)) {
      continue;
    }
    pk_trt_explain(why, PK_TRT_KEY " has no %s '%s' of the function's type and shape", key,
                   wanted == PK_TRT_INPUT ? "input" : "output", tensor->name);
    return PK_TRT_INTERFACE;
  }
  return 0;
}

/* Loads an engine from where it is. The library copies what it needs. */
static int32_t pk_trt_read(const pk_trt_engine_t *engine, const pk_trt_library_t *library, pk_trt_object_t **loaded,
                           char why[PK_TRT_TEXT_BYTES]) {
  const pk_trt_record_t *record = pk_trt_record(engine);
  if (!record->bytes) {
    pk_trt_hush();
    pk_trt_explain(why, PK_TRT_KEY " is pending: `packager finalize` builds it on a machine like this one",
                   record->key);
    return PK_TRT_PENDING;
  }
  const void *data = engine->data;
  if (record->offset || !data) {
    char reason[PK_TRT_TEXT_BYTES / 2];
    data = pk_own_file_map(record->offset, record->bytes, reason, sizeof reason);
    if (!data) {
      pk_trt_hush();
      pk_trt_explain(why, PK_TRT_KEY " cannot be read: %s", record->key, reason);
      return PK_TRT_FILE;
    }
  }
  int32_t status = pk_trt_load(engine, library, data, loaded, why);
  if (data != engine->data) pk_own_file_unmap(data, record->bytes);
  if (!status && (status = pk_trt_check(engine, *loaded, library->slots, why))) {
    pk_trt_destroy(*loaded);
    *loaded = NULL;
  }
  return status;
}

/* Puts constants into an engine that is this session's own, in host memory that is freed again: `addresses` are
 * theirs on the device. No run of the session goes on while this happens: reading has waited for that. */
typedef struct {
  pk_cuda_t *cuda;
  const pk_trt_engine_t *engine;
  const uint64_t *addresses;
  pk_trt_object_t *refitter;
  const pk_trt_slots_t *slots;
  void **values;
} pk_trt_refit_t;

static int32_t pk_trt_set_weights(const pk_trt_refit_t *refit, int32_t index, char why[PK_TRT_TEXT_BYTES]) {
  const pk_trt_constant_t *constant = &refit->engine->constants[index];
  const uint64_t bytes = (uint64_t)(constant->elements * pk_trt_itemsize(constant->type));
  void *values = refit->values[index] = malloc(bytes ? bytes : 1);
  const void *address = (const void *)(uintptr_t)refit->addresses[index];
  if (!values || pk_cuda_read_constant(refit->cuda, values, address, bytes)) {
    pk_trt_explain(why, "constant '%s' cannot be read", constant->name);
    return values ? PK_TRT_CONSTANTS : PK_TRT_HOST_MEMORY;
  }
  const pk_trt_weights_t weights = {constant->type, values, constant->elements};
  pk_trt_object_t *refitter = refit->refitter;
  if (PK_TRT(refitter, refit->slots->set_weights, pk_trt_set_weights_fn)(refitter->impl, constant->name, weights)) {
    return 0;
  }
  pk_trt_explain(why, PK_TRT_KEY " cannot be refitted with constant '%s'", pk_trt_record(refit->engine)->key,
                 constant->name);
  return PK_TRT_CONSTANTS;
}

static int32_t pk_trt_set_all(const pk_trt_refit_t *refit, char why[PK_TRT_TEXT_BYTES]) {
  pk_trt_hush();
  int32_t status = 0;
  for (int32_t i = 0; !status && i < refit->engine->num_constants; ++i) status = pk_trt_set_weights(refit, i, why);
  pk_trt_object_t *refitter = refit->refitter;
  if (!status && !PK_TRT(refitter, refit->slots->refit, pk_trt_refit_fn)(refitter->impl)) {
    pk_trt_explain(why, PK_TRT_KEY " cannot be refitted", pk_trt_record(refit->engine)->key);
    status = PK_TRT_CONSTANTS;
  }
  return status;
}

static int32_t pk_trt_refit(pk_cuda_t *cuda, const pk_trt_engine_t *engine, const pk_trt_slots_t *slots,
                            pk_trt_object_t *own, const uint64_t *addresses, char why[PK_TRT_TEXT_BYTES]) {
  const int32_t form = pk_trt_record(engine)->form;
  pk_trt_create_refitter_fn *create;
  memcpy(&create, &pk_trt_functions[form][PK_TRT_CREATE_REFITTER], sizeof create);
  pk_trt_hush();
  if (!create) {
    pk_trt_explain(why, PK_TRT_KEY " cannot be refitted: this form of the library has no refitter",
                   pk_trt_record(engine)->key);
    return PK_TRT_CONSTANTS;
  }
  pk_trt_object_t *refitter = pk_trt_object(create(own, pk_trt_logger(slots), pk_trt_packed_version(form)));
  if (!refitter) {
    pk_trt_explain(why, PK_TRT_KEY " cannot be refitted", pk_trt_record(engine)->key);
    return PK_TRT_CONSTANTS;
  }
  void **values = calloc((size_t)engine->num_constants, sizeof *values);
  const pk_trt_refit_t refit = {cuda, engine, addresses, refitter, slots, values};
  const int32_t status = values ? pk_trt_set_all(&refit, why) : PK_TRT_HOST_MEMORY;
  pk_trt_destroy(refitter);
  for (int32_t i = 0; values && i < engine->num_constants; ++i) free(values[i]);
  free(values);
  return status;
}

#endif /* PK_TENSORRT_ENGINE_H_ */
