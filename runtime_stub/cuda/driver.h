/* driver.h: what the runtime uses of the CUDA driver API. Its own declarations, so that compiling needs no toolkit; the
 * functions are looked up in libcuda.so.1 when the first session is created. */
#ifndef PK_DRIVER_H_
#define PK_DRIVER_H_

#include "device.h"

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUmod_st *CUmodule;
typedef struct CUfunc_st *CUfunction;
typedef struct CUstream_st *CUstream;
typedef struct CUevent_st *CUevent;
typedef struct CUgraph_st *CUgraph;
typedef struct CUgraphNode_st *CUgraphNode;
typedef struct CUgraphExec_st *CUgraphExec;

/* Results that the runtime distinguishes. */
enum {
  CUDA_ERROR_OUT_OF_MEMORY = 2,
  CUDA_ERROR_NO_DEVICE = 100,
  CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
  CUDA_ERROR_ECC_UNCORRECTABLE = 214,
  CUDA_ERROR_INVALID_PTX = 218,
  CUDA_ERROR_NVLINK_UNCORRECTABLE = 220,
  CUDA_ERROR_JIT_COMPILER_NOT_FOUND = 221,
  CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
  CUDA_ERROR_CONTAINED = 226,
  CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  CUDA_ERROR_LAUNCH_TIMEOUT = 702,
  CUDA_ERROR_CONTEXT_IS_DESTROYED = 709,
  CUDA_ERROR_ASSERT = 710,
  CUDA_ERROR_HARDWARE_STACK_ERROR = 714,
  CUDA_ERROR_LAUNCH_FAILED = 719,
  CUDA_ERROR_TENSOR_MEMORY_LEAK = 721,
  CUDA_ERROR_MPS_CLIENT_TERMINATED = 810,
  CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901,
  CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE = 910,
  CUDA_ERROR_EXTERNAL_DEVICE = 911,
  CUDA_ERROR_UNKNOWN = 999
};

enum {
  CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT = 16,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR = 75,
  CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR = 76,
  CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED = 115,
  CU_FUNC_ATTRIBUTE_PTX_VERSION = 5,
  CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
  CU_STREAM_NON_BLOCKING = 1,
  CU_EVENT_DISABLE_TIMING = 2,
  CU_MEMHOSTALLOC_PORTABLE = 1,
  CU_MEMORYTYPE_DEVICE = 2,
  CU_STREAM_CAPTURE_STATUS_NONE = 0,
  CU_STREAM_CAPTURE_STATUS_ACTIVE = 1,
  CU_STREAM_CAPTURE_MODE_RELAXED = 2,
  CU_STREAM_SET_CAPTURE_DEPENDENCIES = 1,
  CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6
};
#define CU_LAUNCH_PARAM_END ((void *)0)
#define CU_LAUNCH_PARAM_BUFFER_POINTER ((void *)1)
#define CU_LAUNCH_PARAM_BUFFER_SIZE ((void *)2)

/* CUlaunchAttribute. */
typedef struct {
  int id;
  int reserved;
  union {
    int allowed; /* programmaticStreamSerializationAllowed */
    uint64_t words[8];
  } value;
} pk_launch_attribute_t;

/* CUlaunchConfig. */
typedef struct {
  unsigned grid[3], block[3];
  unsigned shared_bytes;
  CUstream stream;
  const pk_launch_attribute_t *attributes;
  unsigned num_attributes;
} pk_launch_config_t;

/* CUDA_KERNEL_NODE_PARAMS_v1. */
typedef struct {
  CUfunction func;
  unsigned grid[3], block[3];
  unsigned shared_bytes;
  void **kernel_params;
  void **extra;
} pk_kernel_node_t;

/* CUDA_MEMCPY3D_v2. */
typedef struct {
  size_t src_x, src_y, src_z, src_lod;
  unsigned src_type;
  const void *src_host;
  CUdeviceptr src_device;
  void *src_array, *reserved0;
  size_t src_pitch, src_height;
  size_t dst_x, dst_y, dst_z, dst_lod;
  unsigned dst_type;
  void *dst_host;
  CUdeviceptr dst_device;
  void *dst_array, *reserved1;
  size_t dst_pitch, dst_height;
  size_t width, height, depth;
} pk_copy_node_t;

/* X(field, symbol, parameters). All are in the driver of CUDA 12.0, but for those whose symbol starts with '?': they
 * are NULL where the driver is older. */
#define PK_DRIVER_FUNCTIONS(X)                                                                                        \
  X(cuInit, "cuInit", (unsigned flags))                                                                               \
  X(cuDriverGetVersion, "cuDriverGetVersion", (int *version))                                                         \
  X(cuGetErrorName, "cuGetErrorName", (CUresult result, const char **text))                                           \
  X(cuGetErrorString, "cuGetErrorString", (CUresult result, const char **text))                                       \
  X(cuDeviceGetCount, "cuDeviceGetCount", (int *count))                                                               \
  X(cuDeviceGet, "cuDeviceGet", (CUdevice * device, int index))                                                       \
  X(cuDeviceGetName, "cuDeviceGetName", (char *name, int bytes, CUdevice device))                                     \
  X(cuDeviceGetAttribute, "cuDeviceGetAttribute", (int *value, int attribute, CUdevice device))                       \
  X(cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain", (CUcontext * context, CUdevice device))                     \
  X(cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease_v2", (CUdevice device))                                     \
  X(cuCtxPushCurrent, "cuCtxPushCurrent_v2", (CUcontext context))                                                     \
  X(cuCtxPopCurrent, "cuCtxPopCurrent_v2", (CUcontext * context))                                                     \
  X(cuModuleLoadData, "cuModuleLoadData", (CUmodule * module, const void *image))                                     \
  X(cuModuleUnload, "cuModuleUnload", (CUmodule module))                                                              \
  X(cuModuleGetFunction, "cuModuleGetFunction", (CUfunction * function, CUmodule module, const char *name))           \
  X(cuFuncSetAttribute, "cuFuncSetAttribute", (CUfunction function, int attribute, int value))                        \
  X(cuFuncGetAttribute, "cuFuncGetAttribute", (int *value, int attribute, CUfunction function))                       \
  X(cuFuncLoad, "?cuFuncLoad", (CUfunction function))                                                                 \
  X(cuMemGetInfo, "cuMemGetInfo_v2", (size_t *free, size_t *total))                                                   \
  X(cuMemAlloc, "cuMemAlloc_v2", (CUdeviceptr * memory, size_t bytes))                                                \
  X(cuMemFree, "cuMemFree_v2", (CUdeviceptr memory))                                                                  \
  X(cuMemAllocAsync, "cuMemAllocAsync", (CUdeviceptr * memory, size_t bytes, CUstream stream))                        \
  X(cuMemFreeAsync, "cuMemFreeAsync", (CUdeviceptr memory, CUstream stream))                                          \
  X(cuMemHostAlloc, "cuMemHostAlloc", (void **memory, size_t bytes, unsigned flags))                                  \
  X(cuMemFreeHost, "cuMemFreeHost", (void *memory))                                                                   \
  X(cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync_v2", (CUdeviceptr to, const void *from, size_t bytes, CUstream stream))     \
  X(cuMemcpyDtoHAsync, "cuMemcpyDtoHAsync_v2", (void *to, CUdeviceptr from, size_t bytes, CUstream stream))           \
  X(cuMemcpyDtoDAsync, "cuMemcpyDtoDAsync_v2", (CUdeviceptr to, CUdeviceptr from, size_t bytes, CUstream stream))     \
  X(cuMemsetD8Async, "cuMemsetD8Async", (CUdeviceptr memory, unsigned char byte, size_t count, CUstream stream))      \
  X(cuStreamCreate, "cuStreamCreate", (CUstream * stream, unsigned flags))                                            \
  X(cuStreamDestroy, "cuStreamDestroy_v2", (CUstream stream))                                                         \
  X(cuStreamGetId, "cuStreamGetId", (CUstream stream, unsigned long long *id))                                        \
  X(cuStreamSynchronize, "cuStreamSynchronize", (CUstream stream))                                                    \
  X(cuStreamWaitEvent, "cuStreamWaitEvent", (CUstream stream, CUevent event, unsigned flags))                         \
  X(cuStreamIsCapturing, "cuStreamIsCapturing", (CUstream stream, int *status))                                       \
  X(cuStreamBeginCapture, "cuStreamBeginCapture_v2", (CUstream stream, int mode))                                     \
  X(cuStreamEndCapture, "cuStreamEndCapture", (CUstream stream, CUgraph * graph))                                     \
  X(cuStreamGetCaptureInfo, "cuStreamGetCaptureInfo_v2",                                                              \
    (CUstream stream, int *status, unsigned long long *id, CUgraph *graph, const CUgraphNode **nodes, size_t *count)) \
  X(cuStreamGetCaptureInfoEdges, "?cuStreamGetCaptureInfo_v3",                                                        \
    (CUstream stream, int *status, unsigned long long *id, CUgraph *graph, const CUgraphNode **nodes,                 \
     const void **edges, size_t *count))                                                                              \
  X(cuStreamUpdateCaptureDependencies, "cuStreamUpdateCaptureDependencies",                                           \
    (CUstream stream, const CUgraphNode *nodes, size_t count, unsigned flags))                                        \
  X(cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode", (int *mode))                              \
  X(cuEventCreate, "cuEventCreate", (CUevent * event, unsigned flags))                                                \
  X(cuEventDestroy, "cuEventDestroy_v2", (CUevent event))                                                             \
  X(cuEventRecord, "cuEventRecord", (CUevent event, CUstream stream))                                                 \
  X(cuEventSynchronize, "cuEventSynchronize", (CUevent event))                                                        \
  X(cuEventElapsedTime, "cuEventElapsedTime", (float *milliseconds, CUevent start, CUevent end))                      \
  X(cuLaunchKernel, "cuLaunchKernel",                                                                                 \
    (CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,      \
     unsigned block_z, unsigned shared_bytes, CUstream stream, void **params, void **extra))                          \
  X(cuLaunchKernelEx, "cuLaunchKernelEx",                                                                             \
    (const pk_launch_config_t *config, CUfunction function, void **params, void **extra))                             \
  X(cuGraphInstantiate, "cuGraphInstantiateWithFlags", (CUgraphExec * exec, CUgraph graph, unsigned long long flags)) \
  X(cuGraphLaunch, "cuGraphLaunch", (CUgraphExec exec, CUstream stream))                                              \
  X(cuGraphExecKernelNodeSetParams, "cuGraphExecKernelNodeSetParams",                                                 \
    (CUgraphExec exec, CUgraphNode node, const pk_kernel_node_t *params))                                             \
  X(cuGraphExecMemcpyNodeSetParams, "cuGraphExecMemcpyNodeSetParams",                                                 \
    (CUgraphExec exec, CUgraphNode node, const pk_copy_node_t *params, CUcontext context))                            \
  X(cuGraphAddChildGraphNode, "cuGraphAddChildGraphNode",                                                             \
    (CUgraphNode * node, CUgraph graph, const CUgraphNode *after, size_t count, CUgraph child))                       \
  X(cuGraphExecChildGraphNodeSetParams, "cuGraphExecChildGraphNodeSetParams",                                         \
    (CUgraphExec exec, CUgraphNode node, CUgraph child))                                                              \
  X(cuGraphDestroy, "cuGraphDestroy", (CUgraph graph))                                                                \
  X(cuGraphExecDestroy, "cuGraphExecDestroy", (CUgraphExec exec))                                                     \
  X(cuTensorMapEncodeTiled, "?cuTensorMapEncodeTiled",                                                                \
    (void *map, int type, unsigned rank, void *address, const uint64_t *extents, const uint64_t *strides,             \
     const uint32_t *box, const uint32_t *element_strides, int interleave, int swizzle, int promotion, int fill))     \
  X(cuTensorMapEncodeIm2col, "?cuTensorMapEncodeIm2col",                                                              \
    (void *map, int type, unsigned rank, void *address, const uint64_t *extents, const uint64_t *strides,             \
     const int *lower, const int *upper, unsigned channels, unsigned pixels, const uint32_t *element_strides,         \
     int interleave, int swizzle, int promotion, int fill))

typedef struct {
#define PK_FIELD(field, symbol, parameters) CUresult(*field) parameters;
  PK_DRIVER_FUNCTIONS(PK_FIELD)
#undef PK_FIELD
} pk_driver_t;

/* Filled by pk_driver_open(), constant afterwards. */
extern pk_driver_t pk_driver;

/* Under pk_lock(): opens libcuda.so.1 once, and refuses a driver that is too old for the bundle's code. */
int32_t pk_driver_open(void);

/* "CUDA_ERROR_NO_DEVICE (no CUDA-capable device is detected)". */
#define PK_RESULT_BYTES 192
void pk_result_text(CUresult result, char text[PK_RESULT_BYTES]);

/* Whether the error is unrecoverable: the GPU or the context is lost for this process. */
int pk_is_fault(CUresult result);

/* Fails with PACKAGER_ERROR_GPU for a fault, with PACKAGER_ERROR_MEMORY where memory ran out, else with `status`. The
 * message is `what` and the result. */
int32_t pk_fail_result(packager_session_t *session, int32_t status, CUresult result, const char *what);

/* 13000 as "13.0". */
#define PK_VERSION_FORMAT "%d.%d"
#define PK_VERSION_PARTS(version) (version) / 1000, (version) % 1000 / 10

#endif /* PK_DRIVER_H_ */
