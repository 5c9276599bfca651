/* What the primitive functions of the tensorrt backend do: a session's execution contexts, and runs. */
#ifndef PK_TENSORRT_EXECUTE_H_
#define PK_TENSORRT_EXECUTE_H_

#include "engine.h"

#define PK_TRT_ALIGNMENT 256 /* that the library asks of all device memory */

/* The problem of a call, in words of 64 bits: the library enqueues nothing else for equal ones. */
enum {
  PK_TRT_WORD_ENGINE,    /* pk_trt_engine_t */
  PK_TRT_WORD_WORKSPACE, /* its address, aligned */
  PK_TRT_WORD_CONSTANTS, /* their number, if it can be refitted */
  PK_TRT_WORD_MODE,      /* 1: nothing is enqueued, all is made that a run needs */
  PK_TRT_WORD_FIRST      /* addresses of inputs, outputs and constants, then the extents that a run says */
};

static const pk_trt_engine_t *pk_trt_engine_of(const uint64_t *problem) {
  return (const pk_trt_engine_t *)(uintptr_t)problem[PK_TRT_WORD_ENGINE];
}
static const uint64_t *pk_trt_addresses(const uint64_t *problem) { return problem + PK_TRT_WORD_FIRST; }
static const uint64_t *pk_trt_constants(const uint64_t *problem) {
  return problem + PK_TRT_WORD_FIRST + pk_trt_engine_of(problem)->num_tensors;
}
static const uint64_t *pk_trt_extents(const uint64_t *problem) {
  return pk_trt_constants(problem) + pk_trt_engine_of(problem)->num_constants;
}

/* An execution context, for one vector of sizes: graphs of runs hold on to what it was when they were captured. */
typedef struct pk_trt_context pk_trt_context_t;
struct pk_trt_context {
  pk_trt_context_t *next;
  const pk_trt_object_t *engine; /* the shared one, or the session's own */
  pk_trt_object_t *object;
  int32_t has_memory; /* of its own */
  uint64_t extents[];
};

/* An engine in a session. */
typedef struct {
  const pk_trt_engine_t *engine;
  const pk_trt_library_t *library;
  pk_trt_object_t *shared; /* with the bundle's constants; of all sessions on the device */
  pk_trt_object_t *own;    /* with this session's; NULL before it swaps some */
  uint64_t constants;      /* number of those that are in `own` */
  pk_trt_context_t *contexts;
} pk_trt_session_t;

/* What making the values that are kept needs, and the reason where it fails. */
typedef struct {
  const pk_trt_library_t *library;
  pk_trt_object_t *shared;
  char why[PK_TRT_TEXT_BYTES];
} pk_trt_making_t;

static int32_t pk_trt_make_library(const void *key, void *context, void **value) {
  pk_trt_making_t *making = context;
  int32_t form;
  memcpy(&form, key, sizeof form);
  pk_trt_library_t *library = malloc(sizeof *library);
  if (!library) return PK_TRT_HOST_MEMORY;
  const int32_t status = pk_trt_open(form, library, making->why);
  if (status) {
    free(library);
    return status;
  }
  *value = library;
  return 0;
}

static void pk_trt_release_library(void *value) {
  pk_trt_library_t *library = value;
  pk_trt_destroy(library->runtime);
  free(library);
}

static int32_t pk_trt_make_engine(const void *key, void *context, void **value) {
  pk_trt_making_t *making = context;
  const pk_trt_engine_t *engine;
  memcpy(&engine, key, sizeof engine);
  pk_trt_object_t *loaded;
  const int32_t status = pk_trt_read(engine, making->library, &loaded, making->why);
  if (!status) *value = loaded;
  return status;
}

static void pk_trt_release_engine(void *value) { pk_trt_destroy(value); }

static int32_t pk_trt_make_session(const void *key, void *context, void **value) {
  const pk_trt_making_t *making = context;
  pk_trt_session_t *session = calloc(1, sizeof *session);
  if (!session) return PK_TRT_HOST_MEMORY;
  memcpy(&session->engine, key, sizeof session->engine);
  session->library = making->library;
  session->shared = making->shared;
  *value = session;
  return 0;
}

static void pk_trt_release_session(void *value) {
  pk_trt_session_t *session = value;
  while (session->contexts) {
    pk_trt_context_t *next = session->contexts->next;
    pk_trt_destroy(session->contexts->object);
    free(session->contexts);
    session->contexts = next;
  }
  pk_trt_destroy(session->own);
  free(session);
}

static int32_t pk_trt_keep(pk_cuda_t *cuda, const pk_trt_engine_t *engine, pk_trt_session_t **session,
                           char why[PK_TRT_TEXT_BYTES]) {
  static const pk_cuda_kept_t libraries = {pk_trt_make_library, pk_trt_release_library};
  static const pk_cuda_kept_t engines = {pk_trt_make_engine, pk_trt_release_engine};
  static const pk_cuda_kept_t sessions = {pk_trt_make_session, pk_trt_release_session};
  const pk_trt_record_t *record = pk_trt_record(engine);
  pk_trt_making_t making = {NULL, NULL, ""};
  void *library = NULL, *shared = NULL, *own = NULL;
  int32_t status = 0;
  if (record->bytes && record->arch && record->arch != pk_cuda_device(cuda)->arch) {
    snprintf(why, PK_TRT_TEXT_BYTES, PK_TRT_KEY " is for GPUs of sm_%" PRId32 ", not of sm_%" PRId32, record->key,
             record->arch, pk_cuda_device(cuda)->arch);
    return PK_TRT_ENGINE;
  }
  status = pk_cuda_keep(cuda, &libraries, &record->form, sizeof record->form, &making, &library);
  making.library = library;
  if (!status) status = pk_cuda_keep(cuda, &engines, &engine, sizeof engine, &making, &shared);
  making.shared = shared;
  if (!status) status = pk_cuda_keep_own(cuda, &sessions, &engine, sizeof engine, &making, &own);
  *session = own;
  if (status) memcpy(why, making.why, sizeof making.why);
  return status;
}

/* The session's engine: from its first swapped constant on its own. What earlier graphs refer to stays. */
static int32_t pk_trt_current(pk_cuda_t *cuda, pk_trt_session_t *session, const uint64_t *problem,
                              pk_trt_object_t **current, char why[PK_TRT_TEXT_BYTES]) {
  const pk_trt_engine_t *engine = session->engine;
  const uint64_t *constants = pk_trt_constants(problem), number = problem[PK_TRT_WORD_CONSTANTS];
  int swapped = 0;
  for (int32_t i = 0; i < engine->num_constants; ++i) {
    swapped |= pk_cuda_is_swapped(cuda, (const void *)(uintptr_t)constants[i]);
  }
  *current = session->own ? session->own : session->shared;
  if (session->own ? session->constants == number : !swapped) return 0;
  int32_t status = session->own ? 0 : pk_trt_read(engine, session->library, &session->own, why);
  if (status) return status;
  session->constants = UINT64_MAX; /* none, until it is done */
  *current = session->own;
  status = pk_trt_refit(cuda, engine, session->library->slots, session->own, constants, why);
  if (!status) session->constants = number;
  return status;
}

static int pk_trt_set_shape(const pk_trt_context_t *context, const pk_trt_tensor_t *tensor, const uint64_t **extents,
                            const pk_trt_slots_t *slots) {
  pk_trt_dims_t dims = {tensor->rank, {0}};
  pk_trt_short_dims_t short_dims = {tensor->rank, {0}};
  int says = 0;
  for (int32_t i = 0; i < tensor->rank; ++i) {
    dims.extents[i] = tensor->extents[i];
    if (tensor->extents[i] < 0) dims.extents[i] = (int64_t)*(*extents)++, says = 1;
    short_dims.extents[i] = (int32_t)dims.extents[i];
  }
  if (!says) return 1;
  const void *shape = slots->short_dims ? (const void *)&short_dims : (const void *)&dims;
  return PK_TRT(context->object, slots->set_shape, pk_trt_set_shape_fn)(context->object->impl, tensor->name, shape);
}

/* Whether the library computes an output of the size that memory was planned for. */
static int pk_trt_has_size(const pk_trt_context_t *context, const pk_trt_tensor_t *tensor, const uint64_t **extents,
                           const pk_trt_slots_t *slots) {
  const pk_trt_dims_t dims = pk_trt_shape_of(context->object, slots->size, tensor->name, slots);
  int is_same = dims.rank == tensor->rank;
  for (int32_t i = 0; i < tensor->rank; ++i) {
    const int64_t planned = tensor->extents[i] < 0 ? (int64_t)*(*extents)++ : tensor->extents[i];
    is_same &= is_same && dims.extents[i] == planned;
  }
  return is_same;
}

/* Creating contexts of one engine is not said to be safe in several threads. */
static pk_trt_object_t *pk_trt_create(const pk_trt_object_t *engine, const pk_trt_slots_t *slots, int has_memory) {
  static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
  const int8_t slot = has_memory ? slots->create : slots->create_bare;
  /* Before version 11 it is the slot that says this, and what `create` gets is its default. */
  const int32_t strategy = has_memory ? PK_TRT_OWN_MEMORY : PK_TRT_NO_MEMORY;
  pthread_mutex_lock(&lock);
  pk_trt_object_t *object = pk_trt_object(PK_TRT(engine, slot, pk_trt_create_fn)(engine->impl, strategy));
  pthread_mutex_unlock(&lock);
  return object;
}

static int32_t pk_trt_prepare_context(pk_trt_context_t *context, const pk_trt_session_t *session,
                                      const uint64_t *problem, void *stream, char why[PK_TRT_TEXT_BYTES]) {
  const pk_trt_engine_t *engine = session->engine;
  const pk_trt_slots_t *slots = session->library->slots;
  const char *key = pk_trt_record(engine)->key;
  const uint64_t *extents = pk_trt_extents(problem);
  if (engine->num_extents == 0) return 0;
  pk_trt_object_t *object = context->object;
  if (!PK_TRT(object, slots->set_profile, pk_trt_set_profile_fn)(object->impl, 0, stream)) {
    pk_trt_explain(why, PK_TRT_KEY ": its optimization profile cannot be used", key);
    return PK_TRT_CONTEXT;
  }
  for (int32_t i = 0; i < engine->num_inputs; ++i) {
    if (pk_trt_set_shape(context, &engine->tensors[i], &extents, slots)) continue;
    pk_trt_explain(why, PK_TRT_KEY " cannot take input '%s' of this size", key, engine->tensors[i].name);
    return PK_TRT_SIZE;
  }
  for (int32_t i = engine->num_inputs; i < engine->num_tensors; ++i) {
    if (pk_trt_has_size(context, &engine->tensors[i], &extents, slots)) continue;
    pk_trt_explain(why, PK_TRT_KEY " computes output '%s' in another size than the bundle", key,
                   engine->tensors[i].name);
    return PK_TRT_SIZE;
  }
  return 0;
}

static int32_t pk_trt_make_context(pk_trt_session_t *session, const pk_trt_object_t *engine, const uint64_t *problem,
                                   void *stream, char why[PK_TRT_TEXT_BYTES]) {
  const pk_trt_slots_t *slots = session->library->slots;
  const size_t bytes = (size_t)session->engine->num_extents * sizeof(uint64_t);
  const uint64_t memory = (uint64_t)PK_TRT(engine, slots->memory, pk_trt_memory_fn)(engine->impl);
  pk_trt_context_t *context = malloc(sizeof *context + bytes);
  if (!context) return PK_TRT_HOST_MEMORY;
  context->engine = engine;
  context->has_memory = memory > session->engine->workspace;
  memcpy(context->extents, pk_trt_extents(problem), bytes);
  pk_trt_hush();
  context->object = pk_trt_create(engine, slots, context->has_memory);
  int32_t status = 0;
  if (!context->object) {
    pk_trt_explain(why, PK_TRT_KEY ": no execution context", pk_trt_record(session->engine)->key);
    status = PK_TRT_CONTEXT;
  }
  if (!status) status = pk_trt_prepare_context(context, session, problem, stream, why);
  if (status) {
    pk_trt_destroy(context->object);
    free(context);
    return status;
  }
  context->next = session->contexts;
  session->contexts = context;
  return 0;
}

static int32_t pk_trt_find_context(pk_trt_session_t *session, const pk_trt_object_t *engine, const uint64_t *problem,
                                   void *stream, pk_trt_context_t **found, char why[PK_TRT_TEXT_BYTES]) {
  const size_t bytes = (size_t)session->engine->num_extents * sizeof(uint64_t);
  for (pk_trt_context_t *context = session->contexts; context; context = context->next) {
    if (context->engine != engine || memcmp(context->extents, pk_trt_extents(problem), bytes)) continue;
    *found = context;
    return 0;
  }
  const int32_t status = pk_trt_make_context(session, engine, problem, stream, why);
  *found = session->contexts;
  return status;
}

static int32_t pk_trt_execute(const pk_trt_session_t *session, const pk_trt_context_t *context, const uint64_t *problem,
                              void *stream, char why[PK_TRT_TEXT_BYTES]) {
  const pk_trt_engine_t *engine = session->engine;
  const pk_trt_slots_t *slots = session->library->slots;
  pk_trt_object_t *object = context->object;
  const char *key = pk_trt_record(engine)->key;
  pk_trt_hush();
  if (!context->has_memory) {
    void *workspace = (void *)(uintptr_t)problem[PK_TRT_WORD_WORKSPACE];
    PK_TRT(object, slots->set_memory, pk_trt_set_memory_fn)(object->impl, workspace);
  }
  for (int32_t i = 0; i < engine->num_tensors; ++i) {
    void *address = (void *)(uintptr_t)pk_trt_addresses(problem)[i];
    const char *name = engine->tensors[i].name;
    if (PK_TRT(object, slots->set_address, pk_trt_set_address_fn)(object->impl, name, address)) continue;
    pk_trt_explain(why, PK_TRT_KEY " does not take the address of '%s'", key, name);
    return PK_TRT_EXECUTE;
  }
  if (PK_TRT(object, slots->enqueue, pk_trt_enqueue_fn)(object->impl, stream)) return 0;
  pk_trt_explain(why, PK_TRT_KEY " cannot be run", key);
  return PK_TRT_EXECUTE;
}

/* Makes what a run needs; of engines whose sizes runs say, all but the context. */
static int32_t pk_trt_make_ready(pk_cuda_t *cuda, const uint64_t *problem, char why[PK_TRT_TEXT_BYTES]) {
  pk_trt_session_t *session;
  pk_trt_object_t *engine;
  pk_trt_context_t *context;
  int32_t status = pk_trt_keep(cuda, pk_trt_engine_of(problem), &session, why);
  if (status || session->engine->num_extents) return status;
  status = pk_trt_current(cuda, session, problem, &engine, why);
  return status ? status : pk_trt_find_context(session, engine, problem, NULL, &context, why);
}

static int32_t pk_trt_run_engine(pk_cuda_t *cuda, const uint64_t *problem, void *stream, char why[PK_TRT_TEXT_BYTES]) {
  pk_trt_session_t *session;
  pk_trt_object_t *engine;
  pk_trt_context_t *context;
  int32_t status = pk_trt_keep(cuda, pk_trt_engine_of(problem), &session, why);
  if (!status) status = pk_trt_current(cuda, session, problem, &engine, why);
  if (!status) status = pk_trt_find_context(session, engine, problem, stream, &context, why);
  return status ? status : pk_trt_execute(session, context, problem, stream, why);
}

static int32_t pk_trt_enqueue(pk_cuda_t *cuda, void *stream, const void *value) {
  const uint64_t *problem = value;
  char why[PK_TRT_TEXT_BYTES] = "";
  const int32_t status =
      problem[PK_TRT_WORD_MODE] ? pk_trt_make_ready(cuda, problem, why) : pk_trt_run_engine(cuda, problem, stream, why);
  if (status == PK_TRT_RUNTIME || status == PK_TRT_ENGINE) {
    pk_cuda_do_without(cuda, pk_trt_engine_of(problem)->library);
  }
  if (status) pk_cuda_explain(cuda, status == PK_TRT_HOST_MEMORY ? "host memory cannot be allocated" : why);
  return status;
}

/* Bytes of tensor number `index`; `*says` counts the extents that runs say, up to it. */
static uint64_t pk_trt_bytes(const pk_trt_engine_t *engine, int32_t index, const uint64_t *extents, int32_t *says) {
  const pk_trt_tensor_t *tensor = &engine->tensors[index];
  uint64_t bytes = (uint64_t)pk_trt_itemsize(tensor->type);
  for (int32_t i = 0; i < tensor->rank; ++i) {
    bytes *= tensor->extents[i] < 0 ? extents[(*says)++] : (uint64_t)tensor->extents[i];
  }
  return bytes;
}

/* Gives each tensor whose address is not aligned a place behind the workspace, of which there is enough; copies inputs
 * there, or, `back`, outputs from there. */
static int32_t pk_trt_move(pk_cuda_t *cuda, uint64_t *problem, const uint64_t *given, int back) {
  const pk_trt_engine_t *engine = pk_trt_engine_of(problem);
  uint64_t place =
      problem[PK_TRT_WORD_WORKSPACE] + (engine->workspace + PK_TRT_ALIGNMENT - 1) / PK_TRT_ALIGNMENT * PK_TRT_ALIGNMENT;
  int32_t says = 0;
  for (int32_t i = 0; i < engine->num_tensors; ++i) {
    const uint64_t bytes = pk_trt_bytes(engine, i, pk_trt_extents(problem), &says);
    if (given[i] % PK_TRT_ALIGNMENT == 0) continue;
    problem[PK_TRT_WORD_FIRST + i] = place;
    int32_t status = 0;
    if (back && i >= engine->num_inputs) {
      status = pk_cuda_copy(cuda, (void *)(uintptr_t)given[i], (const void *)(uintptr_t)place, bytes);
    } else if (!back && i < engine->num_inputs) {
      status = pk_cuda_copy(cuda, (void *)(uintptr_t)place, (const void *)(uintptr_t)given[i], bytes);
    }
    if (status) return status;
    place += (bytes + PK_TRT_ALIGNMENT - 1) / PK_TRT_ALIGNMENT * PK_TRT_ALIGNMENT;
  }
  return 0;
}

/* An engine has no profile for nothing. */
static int pk_trt_is_empty(const uint64_t *problem) {
  const pk_trt_engine_t *engine = pk_trt_engine_of(problem);
  int32_t says = 0;
  uint64_t computed = 0;
  for (int32_t i = 0; i < engine->num_tensors; ++i) {
    const uint64_t bytes = pk_trt_bytes(engine, i, pk_trt_extents(problem), &says);
    if (i >= engine->num_inputs) computed += bytes;
  }
  return computed == 0;
}

/* `words` words; `given` is room for as many addresses as there are tensors. Sessions are made without runs of engines:
 * an execution context may do work of its own in its first run, which a graph that is thrown away would lose. */
static int32_t pk_trt_run(pk_cuda_t *cuda, uint64_t *problem, uint64_t words, uint64_t *given) {
  const pk_trt_engine_t *engine = pk_trt_engine_of(problem);
  const int preparing = pk_cuda_is_preparing(cuda);
  if (pk_trt_is_empty(problem)) return 0;
  if (engine->num_constants) problem[PK_TRT_WORD_CONSTANTS] = pk_cuda_constants_number(cuda);
  problem[PK_TRT_WORD_MODE] = (uint64_t)preparing;
  problem[PK_TRT_WORD_WORKSPACE] =
      (problem[PK_TRT_WORD_WORKSPACE] + PK_TRT_ALIGNMENT - 1) / PK_TRT_ALIGNMENT * PK_TRT_ALIGNMENT;
  memcpy(given, pk_trt_addresses(problem), (size_t)engine->num_tensors * sizeof *given);
  if (preparing) { /* where this fails, so does what follows, and is told */
    char why[PK_TRT_TEXT_BYTES];
    pk_trt_make_ready(cuda, problem, why);
  }
  int32_t status = pk_trt_move(cuda, problem, given, 0);
  if (!status) status = pk_cuda_enqueue(cuda, pk_trt_enqueue, problem, words * sizeof *problem);
  return status ? status : pk_trt_move(cuda, problem, given, 1);
}

#endif /* PK_TENSORRT_EXECUTE_H_ */
