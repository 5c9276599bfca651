/* Execution contexts of a session's engine, one for each vector of sizes. */
#ifndef PK_TENSORRT_CONTEXT_H_
#define PK_TENSORRT_CONTEXT_H_

#include "problem.h"

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

/* The problem of a context's first run: of scratch memory, and of the sizes that the context is for. */
typedef struct {
  const pk_trt_session_t *session;
  const pk_trt_context_t *context;
  uint64_t *problem;
  char *why;
  int32_t status;
} pk_trt_first_t;

/* Has inputs and outputs lie one after the other from `place` on, the workspace last; returns where the next would. */
static uint64_t pk_trt_lay_out(uint64_t *problem, uint64_t place) {
  const pk_trt_engine_t *engine = pk_trt_engine_of(problem);
  int32_t says = 0;
  for (int32_t i = 0; i < engine->num_tensors; ++i) {
    problem[PK_TRT_WORD_FIRST + i] = place;
    place += pk_trt_aligned(pk_trt_bytes(engine, i, pk_trt_extents(problem), &says));
  }
  problem[PK_TRT_WORD_WORKSPACE] = place;
  return place;
}

static int32_t pk_trt_first_run(pk_cuda_t *cuda, void *stream, void *memory, void *context) {
  (void)cuda;
  pk_trt_first_t *first = context;
  pk_trt_lay_out(first->problem, (uintptr_t)memory);
  return first->status = pk_trt_execute(first->session, first->context, first->problem, stream, first->why);
}

/* A context may do work of its own in its first run. A graph that captured that would do it in each replay, or, thrown
 * away, never. */
static int32_t pk_trt_warm_up(pk_cuda_t *cuda, const pk_trt_session_t *session, const pk_trt_context_t *context,
                              const uint64_t *problem, uint64_t workspace, char why[PK_TRT_TEXT_BYTES]) {
  const pk_trt_engine_t *engine = session->engine;
  const int32_t words = PK_TRT_WORD_FIRST + engine->num_tensors + engine->num_constants + engine->num_extents;
  uint64_t *scratch = malloc((size_t)words * sizeof *scratch);
  if (!scratch) return PK_TRT_HOST_MEMORY;
  memcpy(scratch, problem, (size_t)words * sizeof *scratch);
  pk_trt_first_t first = {session, context, scratch, why, 0};
  pk_trt_hush();
  const uint64_t bytes = pk_trt_lay_out(scratch, 0) + pk_trt_aligned(workspace);
  const int32_t failed = pk_cuda_warm_up(cuda, pk_trt_first_run, &first, bytes);
  free(scratch);
  if (!failed || first.status) return first.status;
  pk_trt_explain(why, PK_TRT_KEY ": its first run failed", pk_trt_record(engine)->key);
  return PK_TRT_CONTEXT;
}

static int32_t pk_trt_make_context(pk_cuda_t *cuda, pk_trt_session_t *session, const pk_trt_object_t *engine,
                                   const uint64_t *problem, void *stream, char why[PK_TRT_TEXT_BYTES]) {
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
  if (!status) status = pk_trt_warm_up(cuda, session, context, problem, context->has_memory ? 0 : memory, why);
  if (status) {
    pk_trt_destroy(context->object);
    free(context);
    return status;
  }
  context->next = session->contexts;
  session->contexts = context;
  return 0;
}

static int32_t pk_trt_find_context(pk_cuda_t *cuda, pk_trt_session_t *session, const pk_trt_object_t *engine,
                                   const uint64_t *problem, void *stream, pk_trt_context_t **found,
                                   char why[PK_TRT_TEXT_BYTES]) {
  const size_t bytes = (size_t)session->engine->num_extents * sizeof(uint64_t);
  for (pk_trt_context_t *context = session->contexts; context; context = context->next) {
    if (context->engine != engine || memcmp(context->extents, pk_trt_extents(problem), bytes)) continue;
    *found = context;
    return 0;
  }
  const int32_t status = pk_trt_make_context(cuda, session, engine, problem, stream, why);
  *found = session->contexts;
  return status;
}

#endif /* PK_TENSORRT_CONTEXT_H_ */
