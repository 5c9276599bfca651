/* What the primitive functions of the cudnn backend state, and how it is solved in a session. */
#ifndef PK_CUDNN_CONV_H_
#define PK_CUDNN_CONV_H_

#include "heuristics.h"
#include "packager_cuda.h"
#include "packager_library.h"

#define PK_CUDNN_MAX_CANDIDATES 16

/* What a plan depends on. No padding: keys are compared byte by byte. */
typedef struct {
  pk_cudnn_conv_t conv;
  const pk_cudnn_choice_t
      *choices;          /* [num_choices] chosen where the bundle was built, for each architecture in order */
  int64_t planned_batch; /* that they are for */
  int64_t rank;          /* of the plan that is wanted, best first */
  int32_t num_choices;
  int32_t version; /* of the library that they are of, as cudnnGetVersion packs it */
} pk_cudnn_key_t;

typedef struct {
  const void *x, *w, *bias, *residual; /* bias and residual may be NULL */
  void *y, *workspace;
  pk_cudnn_key_t key;
} pk_cudnn_t;

_Static_assert(sizeof(pk_cudnn_key_t) == sizeof(pk_cudnn_conv_t) + 32, "there is no padding");

static void pk_cudnn_version(void *const *functions, int32_t version[3]) {
  size_t (*get_version)(void);
  memcpy(&get_version, &functions[0], sizeof get_version);
  const size_t packed = get_version();
  version[0] = (int32_t)(packed / 10000), version[1] = (int32_t)(packed / 100 % 100),
  version[2] = (int32_t)(packed % 100);
}

/* Handles and plans are the session's own: the stream is state of a handle, and not all engines let threads share a
 * plan. */
static int32_t pk_cudnn_make_handle(const void *key, void *context, void **handle) {
  (void)key, (void)context;
  return DNN.cudnnCreate((cudnnHandle_t *)handle);
}

static void pk_cudnn_release_handle(void *handle) { DNN.cudnnDestroy(handle); }

/* A plan, with the descriptors that it is made of. */
typedef struct {
  cudnnBackendDescriptor_t plan;
  pk_cudnn_scope_t scope;
} pk_cudnn_plan_t;

static void pk_cudnn_release_plan(void *value) {
  pk_cudnn_plan_t *plan = value;
  pk_cudnn_destroy_to(&plan->scope, 0);
  free(plan);
}

typedef struct {
  cudnnHandle_t handle;
  int32_t arch;
} pk_cudnn_context_t;

/* Fewer than asked for: the last one stands for those that are missing. */
static const pk_cudnn_choice_t *pk_cudnn_planned(const pk_cudnn_key_t *key, int32_t arch) {
  const pk_cudnn_choice_t *found = NULL;
  int64_t seen = 0;
  for (int32_t i = 0; i < key->num_choices && seen <= key->rank; ++i) {
    if (key->choices[i].arch == arch) found = &key->choices[i], ++seen;
  }
  return found;
}

/* Plans of another version or for another batch are nothing to go by: the library is asked. */
static cudnnBackendDescriptor_t pk_cudnn_choose(pk_cudnn_scope_t *scope, const pk_cudnn_key_t *key,
                                                const pk_cudnn_context_t *context) {
  const pk_cudnn_place_t place = {context->handle, NULL};
  const pk_cudnn_choice_t *planned = NULL;
  pk_cudnn_choice_t answers[PK_CUDNN_MAX_CANDIDATES];
  int64_t workspace;
  cudnnBackendDescriptor_t plan = NULL, graph = pk_cudnn_graph(scope, &key->conv, &place);
  if (scope->status) return NULL;
  if (key->planned_batch == key->conv.batch && (size_t)key->version == DNN.cudnnGetVersion()) {
    planned = pk_cudnn_planned(key, context->arch);
  }
  const int32_t made = scope->count;
  if (planned) plan = pk_cudnn_restore(scope, &key->conv, &place, graph, planned, &workspace);
  if (plan) return plan;
  pk_cudnn_destroy_to(scope, made);
  const int32_t count = pk_cudnn_ask(&key->conv, &place, graph, (int32_t)key->rank + 1, answers);
  scope->status = count ? 0 : CUDNN_STATUS_NOT_SUPPORTED;
  return count ? pk_cudnn_restore(scope, &key->conv, &place, graph, &answers[count - 1], &workspace) : NULL;
}

static int32_t pk_cudnn_make_plan(const void *key, void *context, void **value) {
  pk_cudnn_key_t copy;
  memcpy(&copy, key, sizeof copy);
  pk_cudnn_plan_t *plan = calloc(1, sizeof *plan);
  if (!plan) return CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED;
  plan->plan = pk_cudnn_choose(&plan->scope, &copy, context);
  const int32_t status = plan->scope.status;
  if (status) {
    pk_cudnn_release_plan(plan);
  } else {
    *value = plan;
  }
  return status;
}

static int32_t pk_cudnn_execute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, const pk_cudnn_t *p) {
  const int64_t ids[] = {PK_CUDNN_X, PK_CUDNN_W, PK_CUDNN_Y, PK_CUDNN_BIAS, PK_CUDNN_RESIDUAL};
  const void *const all[] = {p->x, p->w, p->y, p->bias, p->residual};
  const int is_there[] = {1, 1, 1, p->key.conv.bias, p->key.conv.residual};
  const void *pointers[5];
  int64_t named[5], count = 0;
  for (int i = 0; i < 5; ++i) {
    if (is_there[i]) named[count] = ids[i], pointers[count++] = all[i];
  }
  pk_cudnn_scope_t scope = {0, 0, {NULL}};
  cudnnBackendDescriptor_t pack = pk_cudnn_create(&scope, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
  pk_cudnn_set(&scope, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, pointers);
  pk_cudnn_set(&scope, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, named);
  pk_cudnn_set(&scope, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &p->workspace);
  pk_cudnn_finalize(&scope, pack);
  if (!scope.status) scope.status = DNN.cudnnBackendExecute(handle, plan, pack);
  pk_cudnn_destroy_to(&scope, 0);
  return scope.status;
}

static int32_t pk_cudnn_keep(pk_cuda_t *cuda, const pk_cudnn_key_t *key, void **handle, void **plan) {
  static const pk_cuda_kept_t handles = {pk_cudnn_make_handle, pk_cudnn_release_handle};
  static const pk_cuda_kept_t plans = {pk_cudnn_make_plan, pk_cudnn_release_plan};
  const int32_t status = pk_cuda_keep_own(cuda, &handles, "", 0, NULL, handle);
  if (status) return status;
  pk_cudnn_context_t context = {*handle, pk_cuda_device(cuda)->arch};
  return pk_cuda_keep_own(cuda, &plans, key, sizeof *key, &context, plan);
}

static int32_t pk_cudnn_enqueue(pk_cuda_t *cuda, void *stream, const void *problem) {
  const pk_cudnn_t *p = problem;
  void *handle, *value;
  int32_t status = pk_cudnn_keep(cuda, &p->key, &handle, &value);
  if (!status) status = DNN.cudnnSetStream(handle, stream);
  if (status) return status;
  const pk_cudnn_plan_t *plan = value;
  return pk_cudnn_execute(handle, plan->plan, p);
}

/* The batch that a run brings may be 0. Where making a plan fails, enqueuing it fails again, and is told. */
static int32_t pk_cudnn_conv(pk_cuda_t *cuda, const pk_cudnn_t *problem) {
  void *handle, *plan;
  if (problem->key.conv.batch == 0) return 0;
  if (pk_cuda_is_preparing(cuda)) pk_cudnn_keep(cuda, &problem->key, &handle, &plan);
  return pk_cuda_enqueue(cuda, pk_cudnn_enqueue, problem, sizeof *problem);
}

#endif /* PK_CUDNN_CONV_H_ */
