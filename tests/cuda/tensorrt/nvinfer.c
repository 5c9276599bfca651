/* nvinfer.c: a stand-in for TensorRT that computes on the host, in the memory of the recorder's GPU, what plan.h says.
 * Its objects have the tables of version 8.6, 10 or 11, as VERSION says (8601, 101303, 110100; 10701 is TensorRT for
 * RTX); slots that nobody should call abort. What the library would refuse it refuses by a message and NULL or false;
 * what it would crash on aborts.
 *
 * Environment: FAKE_NO_RUNTIME, FAKE_NO_CONTEXT, FAKE_NO_REFIT, FAKE_NO_ENQUEUE, FAKE_LONGER (extents of outputs). */
#define STAND_IN "nvinfer"
#include <stddef.h>

#include "../recorder/stand_in.h"
#include "plan.h"

#define ROW (VERSION < 10000 ? 0 : VERSION / 10000 == 10 ? 1 : 2)
#define NUM_SLOTS 64
#define ALIGNMENT 256

typedef void method_t(void);
typedef struct {
  method_t *const *methods;
} impl_t;
typedef struct {
  method_t *const *methods;
  impl_t *impl;
  impl_t own;
} object_t;
typedef struct {
  int32_t type;
  const void *values;
  int64_t count;
} weights_t;
typedef struct {
  int32_t rank;
#if VERSION < 10000
  int32_t extents[8];
#else
  int64_t extents[8];
#endif
} dims_t;

typedef struct {
  object_t object;
  void *logger;
} runtime_t;
typedef struct {
  object_t object;
  runtime_t *runtime;
  plan_t plan;
} engine_t;
typedef struct {
  object_t object;
  const engine_t *engine;
  int has_memory, has_run, profile;
  void *memory;
  int64_t extents[MAX_TENSORS][8];
  void *addresses[MAX_TENSORS];
} context_t;
typedef struct {
  object_t object;
  engine_t *engine;
  float weights[MAX_WEIGHTS];
  int set;
} refitter_t;

static _Atomic int runtimes, engines, contexts, refitters, executed, refitted;

/* How many live, then how often what was done. */
EXPORT const char *fake_state(void);
EXPORT const char *fake_state(void) {
  static char text[128];
  snprintf(text, sizeof text, "%d %d %d %d %d %d", runtimes, engines, contexts, refitters, executed, refitted);
  return text;
}

/* ILogger of the program: until version 10 the message is its first method. */
static void say(void *logger, int severity, const char *message) {
  typedef void log_t(void *, int32_t, const char *);
  typedef struct {
    const char *name;
    int32_t major, minor;
  } interface_t;
  method_t *const *methods = *(method_t *const **)logger;
  if (ROW < 2) {
    ((log_t *)methods[0])(logger, severity, message);
    return;
  }
  const interface_t interface = ((interface_t (*)(void *))methods[1])(logger);
  if (((int32_t (*)(void *))methods[0])(logger) || strcmp(interface.name, "ILogger")) DIE("a logger of no interface");
  ((log_t *)methods[4])(logger, severity, message);
}

static void *impl_owner(impl_t *impl) { return (char *)impl - offsetof(object_t, own); }

/* Tables of the four sorts of objects; filled in when the library is opened. */
enum { RUNTIME, ENGINE, CONTEXT, REFITTER, NUM_SORTS };
static method_t *outer[NUM_SORTS][2], *inner[NUM_SORTS][NUM_SLOTS];

static void stray(void) { DIE("a method that nobody calls"); }

static void make(object_t *object, int sort) {
  object->methods = outer[sort];
  object->own.methods = inner[sort];
  object->impl = &object->own;
}

static plan_tensor_t *find(const engine_t *engine, const char *name) {
  for (int32_t i = 0; i < engine->plan.num_tensors; ++i) {
    const plan_tensor_t *tensor = &engine->plan.tensors[i];
    if (!strcmp(tensor->name, name)) return (plan_tensor_t *)tensor;
  }
  return NULL;
}

static int index_of(const engine_t *engine, const char *name) {
  const plan_tensor_t *tensor = find(engine, name);
  if (!tensor) DIE("no tensor %s", name);
  return (int)(tensor - engine->plan.tensors);
}

/* Execution contexts. */
static void destroy_context(object_t *object) {
  (void)--contexts;
  free(object);
}

static void set_memory(impl_t *impl, void *memory) {
  context_t *context = impl_owner(impl);
  if (context->has_memory) DIE("a context with memory of its own gets some");
  if ((uintptr_t)memory % ALIGNMENT) DIE("memory at %p", memory);
  context->memory = memory;
}

static _Bool set_profile(impl_t *impl, int32_t profile, void *stream) {
  (void)stream;
  context_t *context = impl_owner(impl);
  context->profile = profile;
  return profile == 0;
}

static _Bool set_shape(impl_t *impl, const char *name, const dims_t *dims) {
  context_t *context = impl_owner(impl);
  const int index = index_of(context->engine, name);
  const plan_tensor_t *tensor = &context->engine->plan.tensors[index];
  if (context->profile < 0) DIE("a shape before a profile");
  for (int32_t i = 0; i < tensor->rank; ++i) {
    const int64_t extent = dims->extents[i], declared = tensor->extents[i];
    if (dims->rank != tensor->rank || (declared < 0 ? extent < 1 || extent > 64 : extent != declared)) {
      say(context->engine->runtime->logger, 1, "IExecutionContext::setInputShape: Error Code 3: out of the profile");
      return 0;
    }
    context->extents[index][i] = extent;
  }
  return 1;
}

/* Of an output, the extents of the first input, whose elements it has. */
static dims_t get_size(const impl_t *impl, const char *name) {
  const context_t *context = impl_owner((impl_t *)impl);
  const int32_t index = index_of(context->engine, name), rank = context->engine->plan.tensors[index].rank;
  const int64_t *extents = context->extents[context->engine->plan.tensors[index].mode == 2 ? 0 : index];
  dims_t dims = {rank, {0}};
  for (int32_t i = 0; i < rank; ++i)
    dims.extents[i] = (__typeof__(dims.extents[0]))(extents[i] + setting("FAKE_LONGER", 0));
  return dims;
}

static _Bool set_address(impl_t *impl, const char *name, void *address) {
  context_t *context = impl_owner(impl);
  if (!address || (uintptr_t)address % ALIGNMENT) DIE("%s is at %p", name, address);
  context->addresses[index_of(context->engine, name)] = address;
  return 1;
}

static int64_t elements(const context_t *context, int32_t index) {
  int64_t count = 1;
  for (int32_t i = 0; i < context->engine->plan.tensors[index].rank; ++i) {
    if (context->extents[index][i] < 0) return -1;
    count *= context->extents[index][i];
  }
  return count;
}

static void compute(const context_t *context, int64_t count) {
  const plan_t *plan = &context->engine->plan;
  for (int64_t i = 0; i < count; ++i) {
    float sum = 0;
    for (int32_t t = 0; t < plan->num_tensors; ++t) {
      if (plan->tensors[t].mode == 1) sum += ((const float *)context->addresses[t])[i];
    }
    for (int32_t t = 0; t < plan->num_tensors; ++t) {
      if (plan->tensors[t].mode == 2) {
        ((float *)context->addresses[t])[i] = sum * plan->weights[i % plan->num_weights];
      }
    }
  }
}

static _Bool enqueue(impl_t *impl, void *stream) {
  context_t *context = impl_owner(impl);
  const plan_t *plan = &context->engine->plan;
  const int64_t count = elements(context, 0);
  if (setting("FAKE_NO_ENQUEUE", 0) || count < 0) {
    say(context->engine->runtime->logger, 1, "IExecutionContext::enqueueV3: Error Code 3: not all shapes are given");
    return 0;
  }
  if (!context->has_memory && !context->memory) DIE("no memory");
  for (int32_t i = 0; i < plan->num_tensors; ++i) {
    if (!context->addresses[i]) DIE("%s has no address", plan->tensors[i].name);
  }
  ++executed;
  const _Bool is_first = !context->has_run;
  context->has_run = 1;
  if (stream && is_capturing(stream)) { /* the first run has more to do */
    void *output = context->addresses[plan->num_tensors - 1];
    return !enqueue_copies(stream, output, 16) && (!is_first || !enqueue_copies(stream, output, 16));
  }
  if (!context->has_memory) memset(context->memory, 0xff, (size_t)plan->memory);
  compute(context, count);
  return 1;
}

static object_t *make_context(impl_t *impl, int has_memory) {
  const engine_t *engine = impl_owner(impl);
  if (setting("FAKE_NO_CONTEXT", 0)) {
    say(engine->runtime->logger, 1, "createExecutionContext: Error Code 1: out of memory");
    return NULL;
  }
  context_t *context = calloc(1, sizeof *context);
  if (!context) abort();
  make(&context->object, CONTEXT);
  context->engine = engine;
  context->has_memory = has_memory;
  context->profile = -1;
  for (int32_t i = 0; i < engine->plan.num_tensors; ++i) {
    memcpy(context->extents[i], engine->plan.tensors[i].extents, sizeof context->extents[i]);
  }
  ++contexts;
  return &context->object;
}

static object_t *create_with_memory(impl_t *impl) { return make_context(impl, 1); }
static object_t *create_bare(impl_t *impl) { return make_context(impl, 0); }
static object_t *create_as_said(impl_t *impl, int32_t strategy) {
  if (strategy != 0 && strategy != 2) DIE("strategy %d", strategy);
  return make_context(impl, strategy == 0);
}

/* Engines. */
static void destroy_engine(object_t *object) {
  (void)--engines;
  free(object);
}
static int64_t get_memory(const impl_t *impl) { return ((const engine_t *)impl_owner((impl_t *)impl))->plan.memory; }
static int32_t get_count(const impl_t *impl) {
  return ((const engine_t *)impl_owner((impl_t *)impl))->plan.num_tensors;
}
static int32_t get_mode(const impl_t *impl, const char *name) {
  const plan_tensor_t *tensor = find(impl_owner((impl_t *)impl), name);
  return tensor ? tensor->mode : 0;
}
static int32_t get_type(const impl_t *impl, const char *name) { return find(impl_owner((impl_t *)impl), name)->type; }
static dims_t get_shape(const impl_t *impl, const char *name) {
  const plan_tensor_t *tensor = find(impl_owner((impl_t *)impl), name);
  dims_t dims = {tensor->rank, {0}};
  for (int32_t i = 0; i < tensor->rank; ++i) dims.extents[i] = (__typeof__(dims.extents[0]))tensor->extents[i];
  return dims;
}

static object_t *deserialize(impl_t *impl, const void *data, size_t bytes, void *nothing) {
  runtime_t *runtime = impl_owner(impl);
  const plan_t *plan = data;
  if (ROW == 0 && nothing) DIE("a factory of plugins");
  say(runtime->logger, 3, "Loaded engine size: 0 MiB");
  if (bytes != sizeof *plan || memcmp(plan->magic, "FAKEPLAN", 8)) {
    say(runtime->logger, 1, "deserializeCudaEngine: Error Code 1: Serialization (magicTag)");
    say(runtime->logger, 1, "deserializeCudaEngine: Error Code 4: Internal Error (Engine deserialization failed.)");
    return NULL;
  }
  if (plan->version != VERSION) {
    say(runtime->logger, 1, "deserializeCudaEngine: Error Code 6: the plan is of another version");
    return NULL;
  }
  engine_t *engine = calloc(1, sizeof *engine);
  if (!engine) abort();
  make(&engine->object, ENGINE);
  engine->runtime = runtime;
  memcpy(&engine->plan, plan, sizeof *plan);
  ++engines;
  return &engine->object;
}

/* Runtimes. */
static void destroy_runtime(object_t *object) {
  if (engines) DIE("a runtime is destroyed before its engines");
  (void)--runtimes;
  free(object);
}

EXPORT int32_t getInferLibVersion(void) { return VERSION; }

EXPORT object_t *createInferRuntime_INTERNAL(void *logger, int32_t version) {
  if (version != VERSION) DIE("version %d is asked for", version);
  if (setting("FAKE_NO_RUNTIME", 0)) {
    say(logger, 1, "createInferRuntime: Error Code 6: API Usage Error (CUDA initialization failure with error: 35)");
    return (object_t *)(uintptr_t)0x228; /* as the lean runtime 11.4 does */
  }
  runtime_t *runtime = calloc(1, sizeof *runtime);
  if (!runtime) abort();
  make(&runtime->object, RUNTIME);
  runtime->logger = logger;
  ++runtimes;
  return &runtime->object;
}

/* Refitters. */
static void destroy_refitter(object_t *object) {
  (void)--refitters;
  free(object);
}

static _Bool set_weights(impl_t *impl, const char *name, weights_t weights) {
  refitter_t *refitter = impl_owner(impl);
  plan_t *plan = &refitter->engine->plan;
  if (strcmp(name, plan->weights_name) || weights.count != plan->num_weights || weights.type) {
    say(refitter->engine->runtime->logger, 1, "IRefitter::setNamedWeights: Error Code 3: no weights of this name");
    return 0;
  }
  memcpy(refitter->weights, weights.values, (size_t)weights.count * sizeof(float));
  refitter->set = 1;
  return 1;
}

static _Bool refit(impl_t *impl) {
  refitter_t *refitter = impl_owner(impl);
  if (!refitter->set || setting("FAKE_NO_REFIT", 0)) {
    say(refitter->engine->runtime->logger, 1, "IRefitter::refitCudaEngine: Error Code 4: missing weights");
    return 0;
  }
  memcpy(refitter->engine->plan.weights, refitter->weights, sizeof refitter->weights);
  ++refitted;
  return 1;
}

EXPORT object_t *createInferRefitter_INTERNAL(void *given, void *logger, int32_t version) {
  engine_t *engine = given;
  if (version != VERSION) DIE("version %d is asked for", version);
  if (!engine->plan.refittable) {
    say(logger, 1, "createInferRefitter: Error Code 3: the engine is not refittable");
    return NULL;
  }
  refitter_t *refitter = calloc(1, sizeof *refitter);
  if (!refitter) abort();
  make(&refitter->object, REFITTER);
  refitter->engine = engine;
  ++refitters;
  return &refitter->object;
}

typedef struct {
  int slots[3]; /* of 8.6, 10, 11 */
  method_t *method;
} slot_t;

static void fill(int sort, const slot_t *slots, int count, method_t *destroy) {
  for (int i = 0; i < NUM_SLOTS; ++i) inner[sort][i] = stray;
  for (int i = 0; i < count; ++i) inner[sort][slots[i].slots[ROW]] = slots[i].method;
  outer[sort][0] = stray;
  outer[sort][1] = destroy;
}

#define METHOD(function) (method_t *)(function)
#define FILL(sort, slots, destroy) fill(sort, slots, (int)(sizeof slots / sizeof *slots), METHOD(destroy))

__attribute__((constructor)) static void fill_tables(void) {
  const slot_t of_runtime[] = {{{2, 3, 3}, METHOD(deserialize)}};
  const slot_t of_engine[] = {
      {{11, 5, 5}, ROW == 2 ? METHOD(create_as_said) : METHOD(create_with_memory)},
      {{13, 6, 5}, ROW == 2 ? METHOD(create_as_said) : METHOD(create_bare)},
      {{14, 7, 44}, METHOD(get_memory)},
      {{45, 30, 26}, METHOD(get_count)},
      {{34, 19, 15}, METHOD(get_shape)},
      {{35, 20, 16}, METHOD(get_type)},
      {{38, 23, 19}, METHOD(get_mode)},
  };
  const slot_t of_context[] = {{{11, 10, 10}, METHOD(set_memory)},  {{25, 17, 16}, METHOD(set_profile)},
                               {{29, 21, 20}, METHOD(set_shape)},   {{30, 22, 21}, METHOD(get_size)},
                               {{32, 24, 23}, METHOD(set_address)}, {{44, 37, 36}, METHOD(enqueue)}};
  const slot_t of_refitter[] = {{{3, 4, 4}, METHOD(refit)}, {{12, 13, 9}, METHOD(set_weights)}};
  FILL(RUNTIME, of_runtime, destroy_runtime);
  FILL(ENGINE, of_engine, destroy_engine);
  FILL(CONTEXT, of_context, destroy_context);
  FILL(REFITTER, of_refitter, destroy_refitter);
}
