/* What the primitive functions of the tensorrt backend do: a session's engines, and runs. */
#ifndef PK_TENSORRT_EXECUTE_H_
#define PK_TENSORRT_EXECUTE_H_

#include "context.h"

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

/* Makes what a run needs; of engines whose sizes runs say, all but the context. */
static int32_t pk_trt_make_ready(pk_cuda_t *cuda, const uint64_t *problem, char why[PK_TRT_TEXT_BYTES]) {
  pk_trt_session_t *session;
  pk_trt_object_t *engine;
  pk_trt_context_t *context;
  int32_t status = pk_trt_keep(cuda, pk_trt_engine_of(problem), &session, why);
  if (status || session->engine->num_extents) return status;
  status = pk_trt_current(cuda, session, problem, &engine, why);
  return status ? status : pk_trt_find_context(cuda, session, engine, problem, NULL, &context, why);
}

static int32_t pk_trt_run_engine(pk_cuda_t *cuda, const uint64_t *problem, void *stream, char why[PK_TRT_TEXT_BYTES]) {
  pk_trt_session_t *session;
  pk_trt_object_t *engine;
  pk_trt_context_t *context;
  int32_t status = pk_trt_keep(cuda, pk_trt_engine_of(problem), &session, why);
  if (!status) status = pk_trt_current(cuda, session, problem, &engine, why);
  if (!status) status = pk_trt_find_context(cuda, session, engine, problem, stream, &context, why);
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

/* Gives each tensor whose address is not aligned a place behind the workspace, of which there is enough; copies inputs
 * there, or, `back`, outputs from there. */
static int32_t pk_trt_move(pk_cuda_t *cuda, uint64_t *problem, const uint64_t *given, int back) {
  const pk_trt_engine_t *engine = pk_trt_engine_of(problem);
  uint64_t place =
      problem[PK_TRT_WORD_WORKSPACE] + pk_trt_aligned(engine->workspace);
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
    place += pk_trt_aligned(bytes);
  }
  return 0;
}

/* `words` words; `given` is room for as many addresses as there are tensors. */
static int32_t pk_trt_run(pk_cuda_t *cuda, uint64_t *problem, uint64_t words, uint64_t *given) {
  const pk_trt_engine_t *engine = pk_trt_engine_of(problem);
  const int preparing = pk_cuda_is_preparing(cuda);
  if (pk_trt_is_empty(problem)) return 0;
  if (engine->num_constants) problem[PK_TRT_WORD_CONSTANTS] = pk_cuda_constants_number(cuda);
  problem[PK_TRT_WORD_MODE] = (uint64_t)preparing;
  problem[PK_TRT_WORD_WORKSPACE] = pk_trt_aligned(problem[PK_TRT_WORD_WORKSPACE]);
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
