/* Convolutions by cuDNN: the operation graph of a problem, the library's answers to it, and a plan.
 *
 * Sessions use it on a device, with a handle; a build uses it with no device, with a description of one. */
#ifndef PK_CUDNN_GRAPH_H_
#define PK_CUDNN_GRAPH_H_

#include <stdlib.h>
#include <string.h>

#include "cudnn.h"

#define PK_CUDNN_MAX_AXES 3
#define PK_CUDNN_MAX_RANK (PK_CUDNN_MAX_AXES + 2)
#define PK_CUDNN_MAX_KNOBS 12
#define PK_CUDNN_MAX_ANSWERS 64
#define PK_CUDNN_MAX_DESCRIPTORS 48
/* Aligned for vector loads, as the runtime guarantees for all tensors. */
#define PK_CUDNN_ALIGNMENT 16

/* y = act(conv(x, w) + bias + residual), in the words of the forward convolution that it is, or whose gradient of the
 * data it is (transposed): x has `channels` channels, y has `filters`. No padding: compared byte by byte. */
typedef struct {
  int64_t batch, channels, filters, groups;
  int64_t image[PK_CUDNN_MAX_AXES], result[PK_CUDNN_MAX_AXES], window[PK_CUDNN_MAX_AXES]; /* of x, y and w */
  int64_t before[PK_CUDNN_MAX_AXES], after[PK_CUDNN_MAX_AXES];                            /* padding */
  int64_t stride[PK_CUDNN_MAX_AXES], dilation[PK_CUDNN_MAX_AXES];
  int64_t workspace_bytes;
  int32_t axes;           /* 2 or 3 */
  int32_t type;           /* CUDNN_DATA_... of all tensors */
  int32_t transposed;     /* the gradient of the data: x is dy, y is dx */
  int32_t last;           /* channels are last in x, y and the residual; else first */
  int32_t weights_last;   /* w is [filters, window, channels / groups]; else [filters, channels / groups, window] */
  int32_t bias, residual; /* whether there is one */
  int32_t activation;     /* CUDNN_POINTWISE_..., or -1 */
} pk_cudnn_conv_t;

_Static_assert(sizeof(pk_cudnn_conv_t) == 8 * (4 + 7 * PK_CUDNN_MAX_AXES + 1) + 4 * 8, "there is no padding");

/* An engine of the library, and its settings. */
typedef struct {
  int32_t arch, engine; /* the architecture that it is for, as 90; 0 where that goes without saying */
  int32_t num_knobs;
  int32_t knobs[PK_CUDNN_MAX_KNOBS][2]; /* CUDNN_KNOB_TYPE_..., value */
} pk_cudnn_choice_t;

/* Where a plan is for: a device by its handle, or a description of one (CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR). */
typedef struct {
  cudnnHandle_t handle;
  cudnnBackendDescriptor_t description;
} pk_cudnn_place_t;

enum { PK_CUDNN_X = 1, PK_CUDNN_W, PK_CUDNN_Y, PK_CUDNN_BIAS, PK_CUDNN_RESIDUAL, PK_CUDNN_VIRTUAL };

static union {
  void *all[PK_NUM_CUDNN_FUNCTIONS];
  pk_cudnn_functions_t named;
} pk_cudnn_functions;
#define DNN pk_cudnn_functions.named

/* Descriptors that are made together. The first failure stands: what follows does nothing. */
typedef struct {
  int32_t status, count;
  cudnnBackendDescriptor_t made[PK_CUDNN_MAX_DESCRIPTORS];
} pk_cudnn_scope_t;

static cudnnBackendDescriptor_t pk_cudnn_create(pk_cudnn_scope_t *scope, int kind) {
  cudnnBackendDescriptor_t made = NULL;
  if (scope->status) return NULL;
  if (scope->count == PK_CUDNN_MAX_DESCRIPTORS) scope->status = CUDNN_STATUS_BAD_PARAM;
  if (!scope->status) scope->status = DNN.cudnnBackendCreateDescriptor(kind, &made);
  if (scope->status) return NULL;
  return scope->made[scope->count++] = made;
}

static void pk_cudnn_set(pk_cudnn_scope_t *scope, cudnnBackendDescriptor_t descriptor, int attribute, int type,
                         int64_t count, const void *elements) {
  if (!scope->status) {
    scope->status = DNN.cudnnBackendSetAttribute(descriptor, attribute, type, count, elements);
  }
}

static void pk_cudnn_set_descriptor(pk_cudnn_scope_t *scope, cudnnBackendDescriptor_t descriptor, int attribute,
                                    cudnnBackendDescriptor_t value) {
  pk_cudnn_set(scope, descriptor, attribute, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &value);
}

static void pk_cudnn_set_int(pk_cudnn_scope_t *scope, cudnnBackendDescriptor_t descriptor, int attribute, int type,
                             int64_t value) {
  const int32_t narrow = (int32_t)value;
  pk_cudnn_set(scope, descriptor, attribute, type, 1,
               type == CUDNN_TYPE_INT64 ? (const void *)&value : (const void *)&narrow);
}

static void pk_cudnn_finalize(pk_cudnn_scope_t *scope, cudnnBackendDescriptor_t descriptor) {
  if (!scope->status) scope->status = DNN.cudnnBackendFinalize(descriptor);
}

/* Destroys what was made since there were `count`, the newest first. */
static void pk_cudnn_destroy_to(pk_cudnn_scope_t *scope, int32_t count) {
  while (scope->count > count) DNN.cudnnBackendDestroyDescriptor(scope->made[--scope->count]);
}

/* A tensor [outer, channels, extents], with channels last or first; `extents` NULL: [1, channels, 1, ...]. */
static cudnnBackendDescriptor_t pk_cudnn_tensor(pk_cudnn_scope_t *scope, const pk_cudnn_conv_t *conv, int64_t id,
                                                int64_t outer, int64_t channels, const int64_t *extents, int last) {
  int64_t dims[PK_CUDNN_MAX_RANK] = {outer, channels}, strides[PK_CUDNN_MAX_RANK];
  const int rank = conv->axes + 2;
  int64_t stride = last ? channels : 1;
  for (int axis = rank - 1; axis >= 2; --axis) {
    dims[axis] = extents ? extents[axis - 2] : 1;
    strides[axis] = stride;
    stride *= dims[axis];
  }
  strides[1] = last ? 1 : stride;
  strides[0] = last ? stride : stride * channels;
  cudnnBackendDescriptor_t tensor = pk_cudnn_create(scope, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
  const int is_virtual = id >= PK_CUDNN_VIRTUAL;
  const uint8_t yes = 1;
  pk_cudnn_set_int(scope, tensor, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE,
                   is_virtual ? CUDNN_DATA_FLOAT : conv->type);
  pk_cudnn_set(scope, tensor, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, rank, dims);
  pk_cudnn_set(scope, tensor, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, rank, strides);
  pk_cudnn_set_int(scope, tensor, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, id);
  pk_cudnn_set_int(scope, tensor, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, PK_CUDNN_ALIGNMENT);
  if (is_virtual) pk_cudnn_set(scope, tensor, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, &yes);
  pk_cudnn_finalize(scope, tensor);
  return tensor;
}

static cudnnBackendDescriptor_t pk_cudnn_result(pk_cudnn_scope_t *scope, const pk_cudnn_conv_t *conv, int64_t id) {
  return pk_cudnn_tensor(scope, conv, id, conv->batch, conv->filters, conv->result, conv->last);
}

static cudnnBackendDescriptor_t pk_cudnn_window(pk_cudnn_scope_t *scope, const pk_cudnn_conv_t *conv) {
  cudnnBackendDescriptor_t window = pk_cudnn_create(scope, CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR);
  pk_cudnn_set_int(scope, window, CUDNN_ATTR_CONVOLUTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  pk_cudnn_set_int(scope, window, CUDNN_ATTR_CONVOLUTION_CONV_MODE, CUDNN_TYPE_CONVOLUTION_MODE,
                   CUDNN_CROSS_CORRELATION);
  pk_cudnn_set_int(scope, window, CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, CUDNN_TYPE_INT64, conv->axes);
  const struct {
    int attribute;
    const int64_t *values;
  } lists[] = {{CUDNN_ATTR_CONVOLUTION_DILATIONS, conv->dilation},
               {CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, conv->stride},
               {CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, conv->before},
               {CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, conv->after}};
  for (size_t i = 0; i < sizeof lists / sizeof *lists; ++i) {
    pk_cudnn_set(scope, window, lists[i].attribute, CUDNN_TYPE_INT64, conv->axes, lists[i].values);
  }
  pk_cudnn_finalize(scope, window);
  return window;
}

/* The filters are those of the forward convolution: [its filters, its channels / groups]. */
static cudnnBackendDescriptor_t pk_cudnn_convolution(pk_cudnn_scope_t *scope, const pk_cudnn_conv_t *conv,
                                                     cudnnBackendDescriptor_t y) {
  static const int forward[] = {
      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,         CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
      CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,     CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA};
  static const int gradient[] = {
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,         CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
      CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,     CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA};
  const int *names = conv->transposed ? gradient : forward;
  const int64_t filters = conv->transposed ? conv->channels : conv->filters;
  const int64_t channels = (conv->transposed ? conv->filters : conv->channels) / conv->groups;
  cudnnBackendDescriptor_t window = pk_cudnn_window(scope, conv);
  cudnnBackendDescriptor_t x =
      pk_cudnn_tensor(scope, conv, PK_CUDNN_X, conv->batch, conv->channels, conv->image, conv->last);
  cudnnBackendDescriptor_t w =
      pk_cudnn_tensor(scope, conv, PK_CUDNN_W, filters, channels, conv->window, conv->weights_last);
  cudnnBackendDescriptor_t operation =
      pk_cudnn_create(scope, conv->transposed ? CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR
                                              : CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR);
  const cudnnBackendDescriptor_t operands[] = {window, x, w, y};
  const float factors[] = {1.0f, 0.0f};
  for (int i = 0; i < 4; ++i) pk_cudnn_set_descriptor(scope, operation, names[i], operands[i]);
  for (int i = 0; i < 2; ++i) pk_cudnn_set(scope, operation, names[4 + i], CUDNN_TYPE_FLOAT, 1, &factors[i]);
  pk_cudnn_finalize(scope, operation);
  return operation;
}

static cudnnBackendDescriptor_t pk_cudnn_pointwise(pk_cudnn_scope_t *scope, int mode, cudnnBackendDescriptor_t x,
                                                   cudnnBackendDescriptor_t b, cudnnBackendDescriptor_t y) {
  cudnnBackendDescriptor_t function = pk_cudnn_create(scope, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
  pk_cudnn_set_int(scope, function, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, mode);
  pk_cudnn_set_int(scope, function, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, CUDNN_DATA_FLOAT);
  pk_cudnn_finalize(scope, function);
  cudnnBackendDescriptor_t operation = pk_cudnn_create(scope, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
  pk_cudnn_set_descriptor(scope, operation, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, function);
  pk_cudnn_set_descriptor(scope, operation, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x);
  if (b) pk_cudnn_set_descriptor(scope, operation, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b);
  pk_cudnn_set_descriptor(scope, operation, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, y);
  pk_cudnn_finalize(scope, operation);
  return operation;
}

/* The engines that are compiled in advance take a residual before a bias. */
static cudnnBackendDescriptor_t pk_cudnn_graph(pk_cudnn_scope_t *scope, const pk_cudnn_conv_t *conv,
                                               const pk_cudnn_place_t *place) {
  const int steps = !!conv->residual + !!conv->bias + (conv->activation >= 0);
  cudnnBackendDescriptor_t operations[4], value, next;
  int count = 0;
  int64_t id = PK_CUDNN_VIRTUAL;
  value = pk_cudnn_result(scope, conv, steps ? id++ : PK_CUDNN_Y);
  operations[count++] = pk_cudnn_convolution(scope, conv, value);
  if (conv->residual) {
    cudnnBackendDescriptor_t residual = pk_cudnn_result(scope, conv, PK_CUDNN_RESIDUAL);
    next = pk_cudnn_result(scope, conv, count == steps ? PK_CUDNN_Y : id++);
    operations[count++] = pk_cudnn_pointwise(scope, CUDNN_POINTWISE_ADD, value, residual, next);
    value = next;
  }
  if (conv->bias) {
    cudnnBackendDescriptor_t bias = pk_cudnn_tensor(scope, conv, PK_CUDNN_BIAS, 1, conv->filters, NULL, conv->last);
    next = pk_cudnn_result(scope, conv, count == steps ? PK_CUDNN_Y : id++);
    operations[count++] = pk_cudnn_pointwise(scope, CUDNN_POINTWISE_ADD, value, bias, next);
    value = next;
  }
  if (conv->activation >= 0) {
    next = pk_cudnn_result(scope, conv, PK_CUDNN_Y);
    operations[count++] = pk_cudnn_pointwise(scope, conv->activation, value, NULL, next);
  }
  cudnnBackendDescriptor_t graph = pk_cudnn_create(scope, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
  pk_cudnn_set(scope, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, count, operations);
  if (place->handle) pk_cudnn_set(scope, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1, &place->handle);
  pk_cudnn_finalize(scope, graph);
  return graph;
}

/* Makes a plan of an engine's configuration; one that needs more workspace than there is fails. */
static cudnnBackendDescriptor_t pk_cudnn_plan(pk_cudnn_scope_t *scope, const pk_cudnn_conv_t *conv,
                                              const pk_cudnn_place_t *place, cudnnBackendDescriptor_t config,
                                              int64_t *workspace) {
  cudnnBackendDescriptor_t plan = pk_cudnn_create(scope, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
  if (place->handle) pk_cudnn_set(scope, plan, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1, &place->handle);
  if (place->description) {
    pk_cudnn_set_descriptor(scope, plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, place->description);
  }
  pk_cudnn_set_descriptor(scope, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, config);
  pk_cudnn_finalize(scope, plan);
  int64_t count = 0;
  if (!scope->status) {
    scope->status = DNN.cudnnBackendGetAttribute(plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1,
                                                 &count, workspace);
  }
  if (!scope->status && *workspace > conv->workspace_bytes) scope->status = CUDNN_STATUS_NOT_SUPPORTED;
  return scope->status ? NULL : plan;
}

/* Makes the plan that a choice states. */
static cudnnBackendDescriptor_t pk_cudnn_restore(pk_cudnn_scope_t *scope, const pk_cudnn_conv_t *conv,
                                                 const pk_cudnn_place_t *place, cudnnBackendDescriptor_t graph,
                                                 const pk_cudnn_choice_t *choice, int64_t *workspace) {
  cudnnBackendDescriptor_t knobs[PK_CUDNN_MAX_KNOBS];
  cudnnBackendDescriptor_t engine = pk_cudnn_create(scope, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  pk_cudnn_set_descriptor(scope, engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph);
  pk_cudnn_set_int(scope, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, choice->engine);
  if (place->description) {
    pk_cudnn_set_descriptor(scope, engine, CUDNN_ATTR_ENGINE_DEVICEPROP, place->description);
  }
  pk_cudnn_finalize(scope, engine);
  cudnnBackendDescriptor_t config = pk_cudnn_create(scope, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
  pk_cudnn_set_descriptor(scope, config, CUDNN_ATTR_ENGINECFG_ENGINE, engine);
  for (int32_t i = 0; i < choice->num_knobs; ++i) {
    knobs[i] = pk_cudnn_create(scope, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    pk_cudnn_set_int(scope, knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, choice->knobs[i][0]);
    pk_cudnn_set_int(scope, knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, choice->knobs[i][1]);
    pk_cudnn_finalize(scope, knobs[i]);
  }
  if (choice->num_knobs) {
    pk_cudnn_set(scope, config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, choice->num_knobs,
                 knobs);
  }
  pk_cudnn_finalize(scope, config);
  return pk_cudnn_plan(scope, conv, place, config, workspace);
}

#endif /* PK_CUDNN_GRAPH_H_ */
