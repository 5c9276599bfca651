/* Products of matrices by cuBLASLt: what the primitive functions of the cublas backend state, and how it is solved.
 *
 * The library counts matrices column by column, the model row by row. Row-major d = a b + c is column-major
 * d^T = b^T a^T + c^T: the library's A is b, its B is a, its rows are n and its columns m. A bias, which the library
 * adds to each column, has n elements. */
#ifndef PK_CUBLAS_MATMUL_H_
#define PK_CUBLAS_MATMUL_H_

#include <stdlib.h>
#include <string.h>

#include "cublaslt.h"
#include "packager_cuda.h"
#include "packager_library.h"

/* What is scaled by more than alpha: results of 8 bits by a gain, or each column. */
enum { PK_CUBLAS_GAIN = 1, PK_CUBLAS_COLUMNS = 2 };

/* What cuBLASLt's choice depends on. No padding: keys are compared byte by byte. */
typedef struct {
  int64_t m, n, k, batch;
  int64_t batch_a, batch_b, batch_d; /* elements from one matrix to the next; b's is 0 where all share it */
  uint64_t workspace_bytes;
  int32_t type, out, wide; /* CUDA_R_... of a and b; of d; of bias and c, which have no type of 8 bits */
  int32_t b_is_kn;         /* else b is [n, k] */
  int32_t epilogue;        /* CUBLASLT_EPILOGUE_... */
  int32_t rank, answers;   /* which of how many of the library's answers, best first */
  int32_t scaled;          /* PK_CUBLAS_..., or 0 */
  float alpha, beta;       /* of int8 1 and 0 */
} pk_cublas_key_t;

/* d = act(alpha * a b * columns + bias + beta * c) * gain, for each matrix of the batch. */
typedef struct {
  const void *a;               /* [batch, m, k] */
  const void *b;               /* [batch, n, k] or [batch, k, n] */
  const void *bias;            /* [n], or NULL */
  const float *gain;           /* [1], or NULL */
  const float *columns, *ones; /* [n], and [m] or more; or NULL */
  const void *c;               /* [batch, m, n], the residual; NULL where beta is 0 */
  void *d;                     /* [batch, m, n] */
  void *workspace;
  pk_cublas_key_t key;
} pk_cublas_t;

_Static_assert(sizeof(pk_cublas_key_t) == 104 && sizeof(pk_cublas_t) == 176, "there is no padding");

/* Aligned for vector loads, as the runtime guarantees for all tensors. */
#define PK_CUBLAS_ALIGNMENT 16
#define PK_CUBLAS_MAX_ANSWERS 16

static union {
  void *all[PK_NUM_CUBLASLT_FUNCTIONS];
  pk_cublaslt_functions_t named;
} pk_cublaslt_functions;
#define LT pk_cublaslt_functions.named

static void pk_cublaslt_version(void *const *functions, int32_t version[3]) {
  size_t (*get_version)(void);
  memcpy(&get_version, &functions[0], sizeof get_version);
  const size_t packed = get_version();
  version[0] = (int32_t)(packed / 10000), version[1] = (int32_t)(packed / 100 % 100),
  version[2] = (int32_t)(packed % 100);
}

/* A problem's algorithm, on one device, with the descriptions of its matrices. */
typedef struct {
  cublasLtMatrixLayout_t a, b, c, d; /* the library's */
  cublasLtMatmulHeuristicResult_t chosen;
} pk_cublas_plan_t;

static int32_t pk_cublas_make_handle(const void *key, void *context, void **handle) {
  (void)key, (void)context;
  return LT.cublasLtCreate((cublasLtHandle_t *)handle);
}

static void pk_cublas_release_handle(void *handle) { LT.cublasLtDestroy(handle); }

static void pk_cublas_release_plan(void *value) {
  pk_cublas_plan_t *plan = value;
  if (plan->a) LT.cublasLtMatrixLayoutDestroy(plan->a);
  if (plan->b) LT.cublasLtMatrixLayoutDestroy(plan->b);
  if (plan->c) LT.cublasLtMatrixLayoutDestroy(plan->c);
  if (plan->d) LT.cublasLtMatrixLayoutDestroy(plan->d);
  free(plan);
}

static int32_t pk_cublas_make_layout(const pk_cublas_key_t *key, int type, int64_t rows, int64_t columns,
                                     int64_t stride, cublasLtMatrixLayout_t *layout) {
  int32_t status = LT.cublasLtMatrixLayoutCreate(layout, type, (uint64_t)rows, (uint64_t)columns, rows);
  if (status) {
    *layout = NULL;
    return status;
  }
  if (key->batch == 1) return 0;
  const int32_t batch = (int32_t)key->batch;
  status = LT.cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &batch, sizeof batch);
  if (status) return status;
  return LT.cublasLtMatrixLayoutSetAttribute(*layout, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                             sizeof stride);
}

static int32_t pk_cublas_set(cublasLtMatmulDesc_t desc, int attribute, int32_t value) {
  return LT.cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof value);
}

static int32_t pk_cublas_point(cublasLtMatmulDesc_t desc, int attribute, const void *value) {
  return LT.cublasLtMatmulDescSetAttribute(desc, attribute, &value, sizeof value);
}

/* The library's rows are columns here. It scales either both or none. */
static int32_t pk_cublas_scale_columns(const pk_cublas_t *p, cublasLtMatmulDesc_t desc) {
  const int mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
  int32_t status = pk_cublas_set(desc, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
  if (!status) status = pk_cublas_set(desc, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
  if (!status) status = pk_cublas_point(desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, p->columns);
  return status ? status : pk_cublas_point(desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, p->ones);
}

/* The library refuses a bias where the epilogue has none. */
static int32_t pk_cublas_fill_desc(const pk_cublas_t *p, cublasLtMatmulDesc_t desc) {
  const pk_cublas_key_t *key = &p->key;
  int32_t status = pk_cublas_set(desc, CUBLASLT_MATMUL_DESC_TRANSA, key->b_is_kn ? CUBLAS_OP_N : CUBLAS_OP_T);
  if (!status) status = pk_cublas_set(desc, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N);
  if (!status) status = pk_cublas_set(desc, CUBLASLT_MATMUL_DESC_EPILOGUE, key->epilogue);
  if (!status && key->scaled == PK_CUBLAS_GAIN)
    status = pk_cublas_point(desc, CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, p->gain);
  if (!status && key->scaled == PK_CUBLAS_COLUMNS) status = pk_cublas_scale_columns(p, desc);
  if (status || !(key->epilogue & CUBLASLT_EPILOGUE_BIAS)) return status;
  status = pk_cublas_set(desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, key->wide);
  return status ? status : pk_cublas_point(desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, p->bias);
}

static int32_t pk_cublas_make_desc(const pk_cublas_t *p, cublasLtMatmulDesc_t *desc) {
  const int whole = p->key.type == CUDA_R_8I;
  int32_t status = LT.cublasLtMatmulDescCreate(desc, whole ? CUBLAS_COMPUTE_32I : CUBLAS_COMPUTE_32F,
                                               whole ? CUDA_R_32I : CUDA_R_32F);
  if (status) return status;
  status = pk_cublas_fill_desc(p, *desc);
  if (status) LT.cublasLtMatmulDescDestroy(*desc);
  return status;
}

/* Reductions in place add in no fixed order: runs would differ in their last bits. */
static int32_t pk_cublas_fill_preference(const pk_cublas_key_t *key, cublasLtMatmulPreference_t preference) {
  const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE | CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE;
  const uint32_t alignment = PK_CUBLAS_ALIGNMENT;
  int32_t status = LT.cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                           &key->workspace_bytes, sizeof key->workspace_bytes);
  if (!status) {
    status = LT.cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                     &reductions, sizeof reductions);
  }
  for (int attribute = CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
       !status && attribute <= CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES; ++attribute) {
    status = LT.cublasLtMatmulPreferenceSetAttribute(preference, attribute, &alignment, sizeof alignment);
  }
  return status;
}

/* Fewer answers than asked for: the last one stands for those that are missing. */
static int32_t pk_cublas_ask(cublasLtHandle_t handle, const pk_cublas_key_t *key, cublasLtMatmulDesc_t desc,
                             cublasLtMatmulPreference_t preference, pk_cublas_plan_t *plan) {
  cublasLtMatmulHeuristicResult_t answers[PK_CUBLAS_MAX_ANSWERS];
  int count = 0, usable = 0;
  int32_t status = pk_cublas_fill_preference(key, preference);
  if (!status) {
    status = LT.cublasLtMatmulAlgoGetHeuristic(handle, desc, plan->a, plan->b, plan->c, plan->d, preference,
                                               key->answers, answers, &count);
  }
  if (status) return status;
  for (int i = 0; i < count && usable <= key->rank; ++i) {
    if (answers[i].state || answers[i].workspaceSize > key->workspace_bytes) continue;
    plan->chosen = answers[i];
    ++usable;
  }
  return usable ? 0 : CUBLAS_STATUS_NOT_SUPPORTED;
}

static int32_t pk_cublas_choose(cublasLtHandle_t handle, const pk_cublas_key_t *key, pk_cublas_plan_t *plan) {
  /* Addresses like any that there may be. */
  const void *any = (const void *)(uintptr_t)PK_CUBLAS_ALIGNMENT;
  const pk_cublas_t problem = {.bias = any, .gain = any, .columns = any, .ones = any, .key = *key};
  cublasLtMatmulDesc_t desc;
  cublasLtMatmulPreference_t preference;
  int32_t status = pk_cublas_make_desc(&problem, &desc);
  if (status) return status;
  if (!(status = LT.cublasLtMatmulPreferenceCreate(&preference))) {
    status = pk_cublas_ask(handle, key, desc, preference, plan);
    LT.cublasLtMatmulPreferenceDestroy(preference);
  }
  LT.cublasLtMatmulDescDestroy(desc);
  return status;
}

static int32_t pk_cublas_fill_plan(cublasLtHandle_t handle, const pk_cublas_key_t *key, pk_cublas_plan_t *plan) {
  const int64_t rows = key->b_is_kn ? key->n : key->k, columns = key->b_is_kn ? key->k : key->n;
  if (key->k <= 0 || key->batch > INT32_MAX) return CUBLAS_STATUS_NOT_SUPPORTED;
  int32_t status = pk_cublas_make_layout(key, key->type, rows, columns, key->batch_b, &plan->a);
  if (!status) status = pk_cublas_make_layout(key, key->type, key->k, key->m, key->batch_a, &plan->b);
  if (!status) status = pk_cublas_make_layout(key, key->wide, key->n, key->m, key->batch_d, &plan->c);
  if (!status) status = pk_cublas_make_layout(key, key->out, key->n, key->m, key->batch_d, &plan->d);
  return status ? status : pk_cublas_choose(handle, key, plan);
}

static int32_t pk_cublas_make_plan(const void *key, void *handle, void **value) {
  pk_cublas_key_t copy;
  memcpy(&copy, key, sizeof copy);
  pk_cublas_plan_t *plan = calloc(1, sizeof *plan);
  if (!plan) return CUBLAS_STATUS_ALLOC_FAILED;
  int32_t status = pk_cublas_fill_plan(handle, &copy, plan);
  if (status) {
    pk_cublas_release_plan(plan);
    return status;
  }
  *value = plan;
  return 0;
}

static int32_t pk_cublas_enqueue(pk_cuda_t *cuda, void *stream, const void *problem) {
  static const pk_cuda_kept_t handles = {pk_cublas_make_handle, pk_cublas_release_handle};
  static const pk_cuda_kept_t plans = {pk_cublas_make_plan, pk_cublas_release_plan};
  const pk_cublas_t *p = problem;
  void *handle, *value;
  cublasLtMatmulDesc_t desc;
  int32_t status = pk_cuda_keep(cuda, &handles, "", 0, NULL, &handle);
  if (!status) status = pk_cuda_keep(cuda, &plans, &p->key, sizeof p->key, handle, &value);
  if (!status) status = pk_cublas_make_desc(p, &desc);
  if (status) return status;
  const pk_cublas_plan_t *plan = value;
  /* Sums of integers are scaled by integers. */
  static const int32_t one = 1, zero = 0;
  const int whole = p->key.type == CUDA_R_8I;
  const void *alpha = whole ? (const void *)&one : &p->key.alpha, *beta = whole ? (const void *)&zero : &p->key.beta;
  /* Without a residual C is not read. It may be D where both have one layout, and has to be no address elsewhere. */
  const void *c = p->c || p->key.wide != p->key.out ? p->c : p->d;
  status = LT.cublasLtMatmul(handle, desc, alpha, p->b, plan->a, p->a, plan->b, beta, c, plan->c, p->d, plan->d,
                             &plan->chosen.algo, p->workspace, plan->chosen.workspaceSize, stream);
  LT.cublasLtMatmulDescDestroy(desc);
  return status;
}

/* Sizes that a run brings may be 0: without rows or columns there is nothing to do. */
static int32_t pk_cublas_matmul(pk_cuda_t *cuda, const pk_cublas_t *problem) {
  const pk_cublas_key_t *key = &problem->key;
  if (key->m == 0 || key->n == 0 || key->batch == 0) return 0;
  return pk_cuda_enqueue(cuda, pk_cublas_enqueue, problem, sizeof *problem);
}

#endif /* PK_CUBLAS_MATMUL_H_ */
