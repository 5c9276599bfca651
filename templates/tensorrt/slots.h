/* How the code of the tensorrt backend calls NVIDIA's TensorRT from C, with declarations of packager's own, so that
 * compiling needs nothing of NVIDIA's.
 *
 * The library's functions only make objects; all else are virtual functions of C++. Where these stand is an ABI that
 * changes with the major version: an object has a table of functions, and `impl`, whose table has what the public
 * headers (NVIDIA/TensorRT on GitHub, include/NvInferImpl.h) declare, in that order, behind two destructors. Slots of
 * version 10 are those of 10.0 to 10.16, slots of 11 those of 11.0 to 11.4, and of TensorRT for RTX from 1.5 on (until
 * 1.4 they were those of 10). */
#ifndef PK_TENSORRT_SLOTS_H_
#define PK_TENSORRT_SLOTS_H_

#include <stddef.h>
#include <stdint.h>

typedef void pk_trt_method_t(void);
typedef struct {
  pk_trt_method_t *const *methods;
} pk_trt_impl_t;
typedef struct {
  pk_trt_method_t *const *methods; /* [1] destroys and frees it */
  pk_trt_impl_t *impl;
} pk_trt_object_t;

/* An object's method, as a function of this type. */
#define PK_TRT(object, slot, type) ((type *)(object)->impl->methods[slot])

enum { PK_TRT_FULL = 1, PK_TRT_RTX = 2, PK_TRT_LEAN = 3 }; /* forms of the library, as in engine records */
enum { PK_TRT_INPUT = 1, PK_TRT_OUTPUT = 2 };              /* TensorIOMode */
enum { PK_TRT_OWN_MEMORY = 0, PK_TRT_NO_MEMORY = 2 };      /* ExecutionContextAllocationStrategy */
enum { PK_TRT_ERROR = 1 };                                 /* ILogger::Severity: this and less are errors */
#define PK_TRT_MAX_RANK 8

/* Weights, passed by value. */
typedef struct {
  int32_t type;
  const void *values;
  int64_t count;
} pk_trt_weights_t;

/* Dims64 of versions from 10 on, Dims32 of those before; both are too large for registers, so results of functions. */
typedef struct {
  int32_t rank;
  int64_t extents[PK_TRT_MAX_RANK];
} pk_trt_dims_t;
typedef struct {
  int32_t rank;
  int32_t extents[PK_TRT_MAX_RANK];
} pk_trt_short_dims_t;

/* Which slots a version has. */
typedef struct {
  int8_t rtx;   /* of TensorRT for RTX */
  int8_t major; /* of the library */
  int8_t short_dims;
  int8_t logger;              /* ILogger: log */
  int8_t deserialize;         /* IRuntime: deserializeCudaEngine */
  int8_t create, create_bare; /* ICudaEngine: createExecutionContext, and that without device memory */
  int8_t memory;              /* getDeviceMemorySize, or -V2 */
  int8_t profiles;            /* getNbOptimizationProfiles */
  int8_t tensors;             /* getNbIOTensors */
  int8_t name;                /* getIOTensorName */
  int8_t shape, type, mode;   /* getTensorShape, -DataType, -IOMode */
  int8_t set_memory;          /* IExecutionContext: setDeviceMemory */
  int8_t set_profile;         /* setOptimizationProfileAsync */
  int8_t set_shape;           /* setInputShape */
  int8_t size;                /* getTensorShape, with the extents of this run */
  int8_t set_address;         /* setTensorAddress */
  int8_t enqueue;             /* enqueueV3 */
  int8_t refit;               /* IRefitter: refitCudaEngine */
  int8_t set_weights;         /* setNamedWeights */
} pk_trt_slots_t;

#define PK_TRT_SLOTS_11 0, 4, 3, 5, 5, 44, 8, 26, 27, 15, 16, 19, 10, 16, 20, 21, 23, 36, 4, 9
static const pk_trt_slots_t pk_trt_slots[] = {
    {0, 8, 1, 0, 2, 11, 13, 14, 22, 45, 46, 34, 35, 38, 11, 25, 29, 30, 32, 44, 3, 12},
    {0, 10, 0, 0, 3, 5, 6, 7, 10, 30, 31, 19, 20, 23, 10, 17, 21, 22, 24, 37, 4, 13},
    {0, 11, PK_TRT_SLOTS_11},
    {1, 1, PK_TRT_SLOTS_11},
};

/* Functions of the library, in the order of FUNCTIONS of packager/backends/tensorrt/library.py. */
typedef int32_t pk_trt_version_fn(void);
typedef pk_trt_object_t *pk_trt_create_runtime_fn(void *logger, int32_t version);
typedef pk_trt_object_t *pk_trt_create_refitter_fn(void *engine, void *logger, int32_t version);
enum { PK_TRT_GET_VERSION, PK_TRT_CREATE_RUNTIME, PK_TRT_CREATE_REFITTER };

/* Methods, by what they take. */
typedef void pk_trt_destroy_fn(pk_trt_object_t *);
typedef pk_trt_object_t *pk_trt_deserialize_fn(pk_trt_impl_t *, const void *data, size_t bytes, void *nothing);
typedef pk_trt_object_t *pk_trt_create_fn(pk_trt_impl_t *, int32_t strategy);
typedef int64_t pk_trt_memory_fn(const pk_trt_impl_t *);
typedef int32_t pk_trt_count_fn(const pk_trt_impl_t *);
typedef int32_t pk_trt_of_tensor_fn(const pk_trt_impl_t *, const char *name);
typedef const char *pk_trt_name_fn(const pk_trt_impl_t *, int32_t index);
typedef pk_trt_dims_t pk_trt_shape_fn(const pk_trt_impl_t *, const char *name);
typedef pk_trt_short_dims_t pk_trt_short_shape_fn(const pk_trt_impl_t *, const char *name);
typedef void pk_trt_set_memory_fn(pk_trt_impl_t *, void *memory);
typedef _Bool pk_trt_set_profile_fn(pk_trt_impl_t *, int32_t profile, void *stream);
typedef _Bool pk_trt_set_shape_fn(pk_trt_impl_t *, const char *name, const void *dims);
typedef _Bool pk_trt_set_address_fn(pk_trt_impl_t *, const char *name, void *address);
typedef _Bool pk_trt_enqueue_fn(pk_trt_impl_t *, void *stream);
typedef _Bool pk_trt_set_weights_fn(pk_trt_impl_t *, const char *name, pk_trt_weights_t weights);
typedef _Bool pk_trt_refit_fn(pk_trt_impl_t *);

/* The version that the library states: 8.6.1 as 8601, all others as 101303. */
static inline void pk_trt_unpack_version(int32_t packed, int32_t version[3]) {
  const int32_t unit = packed < 10000 ? 1000 : 10000;
  version[0] = packed / unit, version[1] = packed % unit / 100, version[2] = packed % 100;
}

static inline const pk_trt_slots_t *pk_trt_find_slots(int32_t form, int32_t major) {
  for (size_t i = 0; i < sizeof pk_trt_slots / sizeof *pk_trt_slots; ++i) {
    if (pk_trt_slots[i].rtx == (form == PK_TRT_RTX) && pk_trt_slots[i].major == major) return &pk_trt_slots[i];
  }
  return NULL;
}

#endif /* PK_TENSORRT_SLOTS_H_ */
