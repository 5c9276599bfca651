/* What the code of the cublas backend calls of NVIDIA's cuBLASLt, from version 12 on: declarations of packager's own,
 * so that compiling needs nothing of NVIDIA's. Names and values are those of the library's documentation
 * (https://docs.nvidia.com/cuda/cublas/#using-the-cublaslt-api). */
#ifndef PK_CUBLASLT_H_
#define PK_CUBLASLT_H_

#include <stddef.h>
#include <stdint.h>

typedef int cublasStatus_t;
typedef struct cublasLtContext *cublasLtHandle_t;
typedef struct cublasLtMatmulDesc *cublasLtMatmulDesc_t;
typedef struct cublasLtMatrixLayout *cublasLtMatrixLayout_t;
typedef struct cublasLtMatmulPreference *cublasLtMatmulPreference_t;

typedef struct {
  uint64_t data[8];
} cublasLtMatmulAlgo_t;

typedef struct {
  cublasLtMatmulAlgo_t algo;
  size_t workspaceSize;
  cublasStatus_t state;
  float wavesCount;
  int reserved[4];
} cublasLtMatmulHeuristicResult_t;

_Static_assert(sizeof(cublasLtMatmulHeuristicResult_t) == 96, "layout of cublasLtMatmulHeuristicResult_t");

enum {
  CUDA_R_32F = 0,
  CUDA_R_16F = 2,
  CUDA_R_8I = 3,
  CUDA_R_32I = 10,
  CUDA_R_16BF = 14,
  CUDA_R_8F_E4M3 = 28,
  CUBLAS_STATUS_ALLOC_FAILED = 3,
  CUBLAS_STATUS_NOT_SUPPORTED = 15,
  CUBLAS_OP_N = 0,
  CUBLAS_OP_T = 1,
  CUBLAS_COMPUTE_32F = 68,
  CUBLAS_COMPUTE_32I = 72,
  CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT = 5,
  CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET = 6,
  CUBLASLT_MATMUL_DESC_TRANSA = 3,
  CUBLASLT_MATMUL_DESC_TRANSB = 4,
  CUBLASLT_MATMUL_DESC_EPILOGUE = 7,
  CUBLASLT_MATMUL_DESC_BIAS_POINTER = 8,
  CUBLASLT_MATMUL_DESC_A_SCALE_POINTER = 17,
  CUBLASLT_MATMUL_DESC_B_SCALE_POINTER = 18,
  CUBLASLT_MATMUL_DESC_D_SCALE_POINTER = 20,
  CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE = 26,
  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES = 1,
  CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK = 3,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES = 5,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES = 6,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES = 7,
  CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES = 8,
  CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE = 2,
  CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE = 4,
  CUBLASLT_EPILOGUE_DEFAULT = 1,
  CUBLASLT_EPILOGUE_RELU = 2,
  CUBLASLT_EPILOGUE_BIAS = 4,
  CUBLASLT_EPILOGUE_GELU = 32
};

/* From version 12.9 on. */
enum {
  CUBLASLT_MATMUL_DESC_A_SCALE_MODE = 31,
  CUBLASLT_MATMUL_DESC_B_SCALE_MODE = 32,
  CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F = 3
};

/* X(name, result, parameters), in the order of FUNCTIONS of packager/backends/cublas/library.py. */
#define PK_CUBLASLT_FUNCTIONS(X)                                                                                      \
  X(cublasLtGetVersion, size_t, (void))                                                                               \
  X(cublasLtCreate, cublasStatus_t, (cublasLtHandle_t * handle))                                                      \
  X(cublasLtDestroy, cublasStatus_t, (cublasLtHandle_t handle))                                                       \
  X(cublasLtMatrixLayoutCreate, cublasStatus_t,                                                                       \
    (cublasLtMatrixLayout_t * layout, int type, uint64_t rows, uint64_t columns, int64_t leading))                    \
  X(cublasLtMatrixLayoutDestroy, cublasStatus_t, (cublasLtMatrixLayout_t layout))                                     \
  X(cublasLtMatrixLayoutSetAttribute, cublasStatus_t,                                                                 \
    (cublasLtMatrixLayout_t layout, int attribute, const void *value, size_t bytes))                                  \
  X(cublasLtMatmulDescCreate, cublasStatus_t, (cublasLtMatmulDesc_t * desc, int compute, int scale))                  \
  X(cublasLtMatmulDescDestroy, cublasStatus_t, (cublasLtMatmulDesc_t desc))                                           \
  X(cublasLtMatmulDescSetAttribute, cublasStatus_t,                                                                   \
    (cublasLtMatmulDesc_t desc, int attribute, const void *value, size_t bytes))                                      \
  X(cublasLtMatmulPreferenceCreate, cublasStatus_t, (cublasLtMatmulPreference_t * preference))                        \
  X(cublasLtMatmulPreferenceDestroy, cublasStatus_t, (cublasLtMatmulPreference_t preference))                         \
  X(cublasLtMatmulPreferenceSetAttribute, cublasStatus_t,                                                             \
    (cublasLtMatmulPreference_t preference, int attribute, const void *value, size_t bytes))                          \
  X(cublasLtMatmulAlgoGetHeuristic, cublasStatus_t,                                                                   \
    (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,          \
     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, cublasLtMatmulPreference_t preference, int requested,        \
     cublasLtMatmulHeuristicResult_t *results, int *count))                                                           \
  X(cublasLtMatmul, cublasStatus_t,                                                                                   \
    (cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void *alpha, const void *a, cublasLtMatrixLayout_t la, \
     const void *b, cublasLtMatrixLayout_t lb, const void *beta, const void *c, cublasLtMatrixLayout_t lc, void *d,   \
     cublasLtMatrixLayout_t ld, const cublasLtMatmulAlgo_t *algo, void *workspace, size_t workspace_bytes,            \
     void *stream))

typedef struct {
#define PK_FIELD(name, result, parameters) result(*name) parameters;
  PK_CUBLASLT_FUNCTIONS(PK_FIELD)
#undef PK_FIELD
} pk_cublaslt_functions_t;

#define PK_NUM_CUBLASLT_FUNCTIONS (int32_t)(sizeof(pk_cublaslt_functions_t) / sizeof(void *))

#endif /* PK_CUBLASLT_H_ */
