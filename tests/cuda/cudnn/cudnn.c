/* cudnn.c: a stand-in for libcudnn.so.9 that computes on the host, in the memory of the recorder's GPU, just what its
 * descriptors say: strides, windows, paddings, groups, the gradient of the data, additions and ReLU in their order. A
 * mistake in these shows as wrong numbers, without a GPU. Where the stream is captured it enqueues two copies of the
 * result onto itself. Its engines: 1 compiles at run time, 2 is not deterministic, 3 needs too much workspace, the
 * others, from 10 on, are good.
 *
 * Environment: FAKE_VERSION (91900), FAKE_ANSWERS (4) good engines, FAKE_REFUSES (0), the filters of a convolution that
 * no engine takes. What the library would refuse or crash on aborts. */
#define STAND_IN "cudnn"
#include "../recorder/stand_in.h"

#define MAX_ATTRIBUTES 12
#define WORKSPACE(engine) (1024 * (int64_t)(engine))
#define GOOD 10

enum {
  POINTWISE,
  CONVOLUTION,
  ENGINE,
  CONFIG,
  HEURISTICS,
  PLAN,
  KNOB = 7,
  FORWARD = 10,
  GRADIENT = 12,
  APPLY,
  GRAPH = 15,
  PACK,
  TENSOR
};
typedef struct {
  int name, type;
  int64_t count;
  void *data;
} attribute_t;

typedef struct {
  int kind, finalized, num_attributes;
  attribute_t attributes[MAX_ATTRIBUTES];
} descriptor_t;

typedef struct {
  void *stream;
} handle_t;

static _Atomic int handles, descriptors, asked, executed, last_engine; /* sessions of several threads */

/* "handles descriptors asked executed engine": how many live, how often what was called, the last engine that ran. */
EXPORT const char *fake_state(void);
EXPORT const char *fake_state(void) {
  static char text[128];
  snprintf(text, sizeof text, "%d %d %d %d %d", handles, descriptors, asked, executed, last_engine);
  return text;
}

EXPORT size_t cudnnGetVersion(void) { return (size_t)setting("FAKE_VERSION", 91900); }

/* Making a handle may wait for the device, which nothing may while a stream is captured. */
EXPORT int cudnnCreate(handle_t **handle) {
  int (*captures)(void);
  if (dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD)) {
    void *function = driver("recorder_captures");
    memcpy(&captures, &function, sizeof captures);
    if (captures()) DIE("a handle is made while a stream is captured");
  }
  ++handles;
  return (*handle = calloc(1, sizeof **handle)) ? 0 : 4003;
}

EXPORT int cudnnDestroy(handle_t *handle) {
  free(handle);
  --handles;
  return 0;
}

EXPORT int cudnnSetStream(handle_t *handle, void *stream) {
  handle->stream = stream;
  return 0;
}

EXPORT int cudnnBackendCreateDescriptor(int kind, descriptor_t **descriptor) {
  *descriptor = calloc(1, sizeof **descriptor);
  if (!*descriptor) DIE("no memory");
  (*descriptor)->kind = kind;
  ++descriptors;
  return 0;
}

EXPORT int cudnnBackendDestroyDescriptor(descriptor_t *descriptor) {
  for (int i = 0; i < descriptor->num_attributes; ++i) free(descriptor->attributes[i].data);
  free(descriptor);
  --descriptors;
  return 0;
}

static size_t bytes_of(int type) {
  switch (type) {
    case 0:  /* handle */
    case 3:  /* int64 */
    case 6:  /* pointer */
    case 15: /* descriptor */
      return 8;
    case 2:  /* boolean */
    case 24: /* char */
      return 1;
    default:
      return 4;
  }
}

EXPORT int cudnnBackendSetAttribute(descriptor_t *descriptor, int name, int type, int64_t count, const void *elements) {
  if (descriptor->finalized) DIE("attribute %d of a descriptor that is final", name);
  if (descriptor->num_attributes == MAX_ATTRIBUTES || count < 1) DIE("attribute %d", name);
  attribute_t *attribute = &descriptor->attributes[descriptor->num_attributes++];
  const size_t bytes = bytes_of(type) * (size_t)count;
  *attribute = (attribute_t){name, type, count, malloc(bytes)};
  if (!attribute->data) DIE("no memory");
  memcpy(attribute->data, elements, bytes);
  if (type != 15) return 0;
  for (int64_t i = 0; i < count; ++i) {
    if (!((descriptor_t **)attribute->data)[i]->finalized) DIE("attribute %d is not final", name);
  }
  return 0;
}

static const attribute_t *find(const descriptor_t *descriptor, int name) {
  for (int i = 0; i < descriptor->num_attributes; ++i) {
    if (descriptor->attributes[i].name == name) return &descriptor->attributes[i];
  }
  return NULL;
}

static const void *get(const descriptor_t *descriptor, int name, int64_t count) {
  const attribute_t *found = find(descriptor, name);
  if (!found || (count && found->count != count)) DIE("attribute %d of kind %d", name, descriptor->kind);
  return found->data;
}

static descriptor_t *part(const descriptor_t *descriptor, int name) {
  return *(descriptor_t *const *)get(descriptor, name, 1);
}
static int64_t number(const descriptor_t *descriptor, int name) { return *(const int64_t *)get(descriptor, name, 1); }
static int32_t narrow(const descriptor_t *descriptor, int name) { return *(const int32_t *)get(descriptor, name, 1); }

static int is_virtual(const descriptor_t *tensor) { return find(tensor, 907) != NULL; }

/* The first operation of a graph. */
static const descriptor_t *first(const descriptor_t *graph) {
  return ((descriptor_t *const *)find(graph, 801)->data)[0];
}

static void check_graph(const descriptor_t *graph) {
  const attribute_t *operations = find(graph, 801);
  if (!find(graph, 800)) DIE("a graph without a handle");
  const descriptor_t *made = part(first(graph), first(graph)->kind == FORWARD ? 705 : 710);
  for (int64_t i = 1; i < operations->count; ++i) {
    const descriptor_t *operation = ((descriptor_t *const *)operations->data)[i];
    if (operation->kind != APPLY || part(operation, 751) != made || !is_virtual(made)) DIE("operation %d", (int)i);
    made = part(operation, 753);
  }
  if (is_virtual(made)) DIE("the result is virtual");
}

/* Of a configuration that the caller makes: the settings that read_config tells of the engine. */
static void check_config(const descriptor_t *config) {
  const int64_t index = number(part(config, 300), 1301);
  descriptor_t *const *knobs = get(config, 302, 2);
  for (int i = 0; i < 2; ++i) {
    if (narrow(knobs[i], 600) != 2 + i || number(knobs[i], 601) != index * 10 + i)
      DIE("settings of engine %d", (int)index);
  }
}

EXPORT int cudnnBackendFinalize(descriptor_t *descriptor) {
  if (descriptor->kind == GRAPH) check_graph(descriptor);
  if (descriptor->kind == CONFIG) check_config(descriptor);
  if (descriptor->kind == HEURISTICS) ++asked;
  if (descriptor->kind == PLAN && !find(descriptor, 400)) DIE("a plan without a handle");
  if (descriptor->kind == ENGINE && number(descriptor, 1301) < 0) DIE("an engine");
  descriptor->finalized = 1;
  return 0;
}

static void put(descriptor_t *descriptor, int name, int type, int64_t count, const void *value) {
  cudnnBackendSetAttribute(descriptor, name, type, count, value);
}

static void fill_config(descriptor_t *config, descriptor_t *graph, int64_t engine_index) {
  descriptor_t *none = graph; /* the graph outlives what is read of the configuration */
  put(config, 300, 15, 1, &none);
  put(config, 301, 3, 1, &engine_index);
  config->finalized = 1;
}

static int refuses(const descriptor_t *graph) {
  const descriptor_t *operation = first(graph);
  const int64_t *dims = get(part(operation, operation->kind == FORWARD ? 703 : 709), 902, 0);
  return dims[0] == setting("FAKE_REFUSES", 0);
}

/* Engines 1, 2, 3, then the good ones; in the mode for what nothing else takes, the good ones again. */
static int64_t answer(const descriptor_t *heuristics, int64_t room, descriptor_t **configs) {
  const int64_t engines[] = {1, 2, 3};
  descriptor_t *graph = part(heuristics, 201);
  int64_t count = 0;
  if (refuses(graph)) return 0;
  for (int i = 0; narrow(heuristics, 200) == 3 && i < 3 && count < room; ++i)
    fill_config(configs[count++], graph, engines[i]);
  for (int i = 0; i < setting("FAKE_ANSWERS", 4) && count < room; ++i) fill_config(configs[count++], graph, GOOD + i);
  return count;
}

/* Descriptors that the caller has made are filled in: an engine of a configuration, or its settings. */
static int64_t read_config(const descriptor_t *config, int name, descriptor_t **into) {
  const int64_t index = number(config, 301);
  descriptor_t *graph = part(config, 300);
  if (name == 300) {
    put(into[0], 1300, 15, 1, &graph);
    put(into[0], 1301, 3, 1, &index);
    into[0]->finalized = 1;
    return 1;
  }
  for (int i = 0; i < 2; ++i) {
    const int32_t type = 2 + i;
    const int64_t value = index * 10 + i;
    put(into[i], 600, 9, 1, &type);
    put(into[i], 601, 3, 1, &value);
    into[i]->finalized = 1;
  }
  return 2;
}

static int64_t engine_of(const descriptor_t *config) {
  const attribute_t *answered = find(config, 301);
  return answered ? *(const int64_t *)answered->data : number(part(config, 300), 1301);
}

EXPORT int cudnnBackendGetAttribute(descriptor_t *descriptor, int name, int type, int64_t room, int64_t *count,
                                    void *elements) {
  (void)type;
  if (!descriptor->finalized) DIE("attribute %d of what is not final", name);
  *count = 1;
  if (name == 202) {
    *count = answer(descriptor, room, elements);
  } else if (name == 300 || name == 302) {
    *count = read_config(descriptor, name, elements);
  } else if (name == 1301 || name == 601) {
    *(int64_t *)elements = number(descriptor, name);
  } else if (name == 600) {
    *(int32_t *)elements = narrow(descriptor, 600);
  } else if (name == 1303 || name == 1305) {
    const int64_t index = number(descriptor, 1301);
    *count = (name == 1305) ? index == 1 : 1;
    *(int32_t *)elements = name == 1305 ? 0 : index == 2 ? 4 : 0;
  } else if (name == 402) {
    const int64_t index = engine_of(part(descriptor, 401));
    *(int64_t *)elements = index == 3 ? (int64_t)1 << 40 : WORKSPACE(index);
  } else {
    DIE("attribute %d", name);
  }
  return 0;
}

typedef struct {
  int type, rank;
  const int64_t *dims, *strides;
  void *data;
} tensor_t;

static void *pointer_of(const descriptor_t *pack, int64_t id) {
  const attribute_t *ids = find(pack, 1000);
  void *const *pointers = get(pack, 1001, ids->count);
  for (int64_t i = 0; i < ids->count; ++i) {
    if (((const int64_t *)ids->data)[i] == id) return pointers[i];
  }
  return NULL;
}

static tensor_t tensor_of(const descriptor_t *descriptor, const descriptor_t *pack) {
  const attribute_t *dims = find(descriptor, 902);
  tensor_t tensor = {narrow(descriptor, 901), (int)dims->count, dims->data, get(descriptor, 903, dims->count), NULL};
  if (is_virtual(descriptor)) {
    if (tensor.type != 0) DIE("a virtual tensor of type %d", tensor.type);
    return tensor;
  }
  tensor.data = pointer_of(pack, number(descriptor, 906));
  if (!tensor.data || (uintptr_t)tensor.data % (uint64_t)number(descriptor, 900)) DIE("a tensor's pointer");
  return tensor;
}

static int64_t offset_of(const tensor_t *tensor, const int64_t *at) {
  int64_t offset = 0;
  for (int axis = 0; axis < tensor->rank; ++axis) offset += at[axis] * tensor->strides[axis];
  return offset;
}

/* Counts up; returns 0 behind the last. */
static int next(int64_t *at, const int64_t *dims, int rank) {
  for (int axis = rank - 1; axis >= 0; --axis) {
    if (++at[axis] < dims[axis]) return 1;
    at[axis] = 0;
  }
  return 0;
}

typedef struct {
  const int64_t *dilation, *stride, *before, *after;
  int axes, gradient;
  tensor_t in, w, out;
} convolution_t;

static convolution_t convolution_of(const descriptor_t *operation, const descriptor_t *pack) {
  const int gradient = operation->kind == GRADIENT;
  const descriptor_t *window = part(operation, gradient ? 708 : 702);
  const int axes = (int)number(window, 106);
  convolution_t conv = {get(window, 102, axes),
                        get(window, 103, axes),
                        get(window, 105, axes),
                        get(window, 104, axes),
                        axes,
                        gradient,
                        {0},
                        {0},
                        {0}};
  if (narrow(window, 100) != 0 || narrow(window, 101) != 1) DIE("the type of sums, or the mode");
  conv.in = tensor_of(part(operation, gradient ? 711 : 704), pack);
  conv.w = tensor_of(part(operation, gradient ? 709 : 703), pack);
  conv.out = tensor_of(part(operation, gradient ? 710 : 705), pack);
  const float *alpha = get(operation, gradient ? 706 : 700, 1), *beta = get(operation, gradient ? 707 : 701, 1);
  if (*alpha != 1.0f || *beta != 0.0f) DIE("alpha, beta");
  const tensor_t *image = gradient ? &conv.out : &conv.in, *result = gradient ? &conv.in : &conv.out;
  for (int axis = 0; axis < axes; ++axis) {
    const int64_t reach = conv.dilation[axis] * (conv.w.dims[axis + 2] - 1) + 1;
    const int64_t padded = image->dims[axis + 2] + conv.before[axis] + conv.after[axis];
    if ((padded - reach) / conv.stride[axis] + 1 != result->dims[axis + 2]) DIE("sizes along axis %d", axis);
  }
  if (conv.w.dims[0] != result->dims[1] || image->dims[1] % conv.w.dims[1]) DIE("channels");
  return conv;
}

/* One element of y, or of dx: the sum over channels and windows. */
static double element(const convolution_t *conv, const int64_t *at) {
  const tensor_t *in = &conv->in, *w = &conv->w;
  const int64_t channels = w->dims[1]; /* of a group, of the image */
  const int64_t groups = (conv->gradient ? conv->out.dims[1] : in->dims[1]) / channels;
  const int64_t filters = w->dims[0] / groups; /* of a group */
  const int64_t group = at[1] / (conv->gradient ? channels : filters);
  int64_t tap[5] = {0}, dims[5];
  memcpy(dims, w->dims, sizeof *dims * (size_t)w->rank);
  dims[0] = 1, dims[1] = conv->gradient ? filters : channels;
  double sum = 0;
  do {
    int64_t from[5] = {at[0]}, weight[5];
    int inside = 1;
    from[1] = group * dims[1] + tap[1];
    weight[0] = conv->gradient ? from[1] : at[1];
    weight[1] = conv->gradient ? at[1] % channels : tap[1];
    for (int axis = 0; axis < conv->axes; ++axis) {
      const int64_t step = tap[axis + 2] * conv->dilation[axis] - conv->before[axis];
      int64_t place = conv->gradient ? at[axis + 2] - step : at[axis + 2] * conv->stride[axis] + step;
      if (conv->gradient) inside &= place % conv->stride[axis] == 0, place /= conv->stride[axis];
      inside &= place >= 0 && place < in->dims[axis + 2];
      from[axis + 2] = place, weight[axis + 2] = tap[axis + 2];
    }
    if (inside) sum += load(in->type, in->data, offset_of(in, from)) * load(w->type, w->data, offset_of(w, weight));
  } while (next(tap, dims, w->rank));
  return sum;
}

static double apply(const descriptor_t *operation, const descriptor_t *pack, const int64_t *at, double value) {
  const descriptor_t *function = part(operation, 750);
  if (narrow(function, 1) != 0) DIE("the type of a pointwise function");
  if (narrow(function, 0) == 100) return value > 0 ? value : 0;
  if (narrow(function, 0) != 0) DIE("pointwise function %d", narrow(function, 0));
  const tensor_t other = tensor_of(part(operation, 752), pack);
  int64_t there[5];
  for (int axis = 0; axis < other.rank; ++axis) there[axis] = other.dims[axis] == 1 ? 0 : at[axis];
  return value + load(other.type, other.data, offset_of(&other, there));
}

static void compute(const descriptor_t *graph, const descriptor_t *pack) {
  const attribute_t *operations = find(graph, 801);
  descriptor_t *const *steps = operations->data;
  const convolution_t conv = convolution_of(steps[0], pack);
  const descriptor_t *last = steps[operations->count - 1];
  const tensor_t y = operations->count == 1 ? conv.out : tensor_of(part(last, 753), pack);
  int64_t at[5] = {0};
  do {
    double value = element(&conv, at);
    for (int64_t i = 1; i < operations->count; ++i) value = apply(steps[i], pack, at, value);
    store(y.type, y.data, offset_of(&y, at), value);
  } while (next(at, y.dims, y.rank));
}

EXPORT int cudnnBackendExecute(handle_t *handle, const descriptor_t *plan, const descriptor_t *pack) {
  const descriptor_t *config = part(plan, 401), *engine = part(config, 300);
  const int64_t index = number(engine, 1301);
  const descriptor_t *graph = part(engine, 1300);
  void *workspace = *(void *const *)get(pack, 1003, 1);
  if (*(handle_t *const *)get(plan, 400, 1) != handle) DIE("a plan of another handle");
  if (index < GOOD || !workspace || (uintptr_t)workspace % 16) DIE("engine %d, workspace %p", (int)index, workspace);
  ++executed;
  last_engine = (int)index;
  if (handle->stream && is_capturing(handle->stream)) {
    return enqueue_copies(handle->stream, pointer_of(pack, 3), 16) ? 5001 : 0;
  }
  memset(workspace, 0xff, (size_t)WORKSPACE(index));
  compute(graph, pack);
  return 0;
}
