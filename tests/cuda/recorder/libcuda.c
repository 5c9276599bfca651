/* libcuda.c: a recording stand-in for libcuda.so.1. It computes nothing: kernels do not run, device memory is host
 * memory with a ledger, copies happen when they are enqueued, and everything that is enqueued is written to a log. It
 * serves to see what the runtime asks of the driver, in which order, and what the runtime does when the driver refuses.
 * Whether results are right can be seen on a GPU alone.
 *
 * A "fatbin" is a text: "recorded scale:32 add:40" has the kernels scale and add, with 32 and 40 bytes of parameters.
 * A real one, not compressed, has the kernels whose names stand in it, with parameters of any size.
 *
 * Environment: RECORDER_VERSION (13000), RECORDER_DEVICES (2), RECORDER_POOLS (1), RECORDER_MEMORY (bytes of a device),
 * RECORDER_ARCH (90), RECORDER_PTX (of the code that is loaded; as RECORDER_ARCH), RECORDER_MAPS (1: any tensor map
 * is encoded, 0: the one of the C cases alone), RECORDER_FAIL (recorder.h). With
 * -DRECORDER_OLD it is a driver of CUDA 12.0 that has nothing newer or optional. What a real driver would crash on,
 * such as a handle that was destroyed, aborts. */
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "recorder.h"

#define EXPORT __attribute__((visibility("default")))
#define MAX_DYNAMIC_SHARED 232448
#define ANY_SIZE SIZE_MAX
#define BEGINNING 64 /* of an argument whose size is not known */
#define FATBIN_MAGIC 0xBA55ED50u
#define LINE_BYTES 1024
#define TENSOR_MAP_BYTES 128

typedef enum { CONTEXT, MODULE, FUNCTION, MEMORY, POOLED, PINNED, STREAM, EVENT, GRAPH, NODE, EXEC, KINDS } kind_t;
static const char *const kind_names[] = {"context", "module", "function", "memory", "pooled memory", "pinned memory",
                                         "stream",  "event",  "graph",    "node",   "exec"};

/* A launch or a copy. */
typedef struct object object_t;
typedef struct works works_t;
typedef struct {
  object_t *function; /* NULL: a copy, or a graph */
  works_t *child;     /* of a node that is a graph, a copy of its own */
  unsigned grid[3], block[3], shared;
  int programmatic;
  uint64_t target, source;
  size_t bytes; /* of the copy, or of the arguments */
  uint64_t arguments[512];
} work_t;

struct works {
  int count;
  work_t works[];
};

struct object {
  object_t *next;
  kind_t kind;
  int number;
  object_t *owner;   /* context of a module, module of a function, graph of a node */
  char *memory;      /* of memory; text of a module; name of a function */
  size_t bytes;      /* of memory; of a function's parameters, or ANY_SIZE; of a module's image */
  const void *image; /* of a module, a real fatbin or NULL */
  int shared;        /* of a function */
  int references;    /* of a primary context */
  object_t *graph;   /* of a stream: what it is capturing; of an exec: what it was made of */
  object_t *last;    /* of a graph: its last node; of a node: the one before */
  int added;         /* of a graph: its last node was added, and is no dependency of what is captured next */
  work_t work;       /* of a node */
  work_t *works;     /* of an exec: as many as its graph has nodes */
  int count;         /* of a graph: nodes */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static object_t *objects;
static int numbers[KINDS], sticky, pending_fault, initialized;
static size_t allocated;
static object_t *primary[8];
static char *text;
static size_t text_used, text_room;
static char fault_kernel[64];
static _Thread_local object_t *stack[16];
static _Thread_local int depth;

/* Faults to inject. */
static struct {
  char name[64];
  int calls, nth, code;
} rules[16];
static int num_rules = -1;

#define DIE(...) (fprintf(stderr, "recorder: " __VA_ARGS__), fputc('\n', stderr), abort())

static int setting(const char *name, int otherwise) {
  const char *value = getenv(name);
  return value ? atoi(value) : otherwise;
}

static void note(const char *format, ...) {
  char line[2048];
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(line, sizeof line - 1, format, arguments);
  va_end(arguments);
  line[length++] = '\n';
  if (text_used + (size_t)length + 1 > text_room) {
    text_room = 2 * text_room + 4096;
    if (!(text = realloc(text, text_room))) DIE("no memory");
  }
  memcpy(text + text_used, line, (size_t)length);
  text[text_used += (size_t)length] = 0;
}

static void read_rules(const char *faults) {
  num_rules = 0;
  while (faults && *faults) {
    if (num_rules == 16 ||
        sscanf(faults, "%63[^:]:%d:%d", rules[num_rules].name, &rules[num_rules].nth, &rules[num_rules].code) != 3) {
      DIE("RECORDER_FAIL: %s", faults);
    }
    rules[num_rules++].calls = 0;
    faults = strchr(faults, ',');
    if (faults) ++faults;
  }
}

static int is_fault(int code) { return code == 700 || (code >= 714 && code <= 719); }

/* What a call is to return without doing anything, or 0. Called with the lock held. */
static int refuse(const char *function) {
  if (num_rules < 0) read_rules(getenv("RECORDER_FAIL"));
  if (!initialized && strcmp(function, "cuInit") && strcmp(function, "cuDriverGetVersion")) return 3;
  for (int i = 0; i < num_rules; ++i) {
    if (strcmp(rules[i].name, function) || ++rules[i].calls != rules[i].nth) continue;
    note("%s gives %d", function, rules[i].code);
    if (is_fault(rules[i].code)) sticky = rules[i].code;
    return rules[i].code;
  }
  return sticky;
}

static object_t *add(kind_t kind, object_t *owner) {
  object_t *object = calloc(1, sizeof *object);
  if (!object) DIE("no memory");
  object->kind = kind;
  object->number = ++numbers[kind == POOLED ? MEMORY : kind]; /* both are m1, m2 in the log */
  object->owner = owner;
  object->next = objects;
  return objects = object;
}

static void drop(object_t *object) {
  object_t **link = &objects;
  while (*link != object) link = &(*link)->next;
  *link = object->next;
  for (int i = 0; i < (object->kind == EXEC ? object->count : 0); ++i) free(object->works[i].child);
  free(object->work.child);
  free(object->works);
  free(object->memory);
  free(object);
}

static object_t *check(const void *handle, kind_t kind) {
  for (object_t *object = objects; object; object = object->next) {
    if (object == handle && object->kind == kind) return object;
  }
  DIE("%p is no %s", handle, kind_names[kind]);
}

static object_t *memory_at(uint64_t address) {
  for (object_t *object = objects; object; object = object->next) {
    if (object->kind != MEMORY && object->kind != POOLED) continue;
    if (address >= (uintptr_t)object->memory && address < (uintptr_t)object->memory + object->bytes) return object;
  }
  return NULL;
}

static void check_range(uint64_t address, size_t bytes) {
  const object_t *object = memory_at(address);
  if (!object || address + bytes > (uintptr_t)object->memory + object->bytes) {
    DIE("%zu bytes at %#llx are no device memory", bytes, (unsigned long long)address);
  }
}

static void print_word(char *target, size_t room, uint64_t word) {
  const object_t *object = memory_at(word);
  if (!object) {
    snprintf(target, room, "%llu", (unsigned long long)word);
  } else if (word == (uintptr_t)object->memory) {
    snprintf(target, room, "m%d", object->number);
  } else {
    snprintf(target, room, "m%d+%llu", object->number, (unsigned long long)(word - (uintptr_t)object->memory));
  }
}

/* Streams 1 and 2 are the driver's own. */
static const char *stream_name(const void *stream, char name[16]) {
  if ((uintptr_t)stream <= 2) {
    snprintf(name, 16, "default%d", (int)(uintptr_t)stream);
  } else {
    snprintf(name, 16, "s%d", check(stream, STREAM)->number);
  }
  return name;
}

static object_t *capturing(const void *stream) { return (uintptr_t)stream > 2 ? check(stream, STREAM)->graph : NULL; }

/* Of many arguments the first ones are shown. */
static void describe(const work_t *work, char line[LINE_BYTES]) {
  char word[40], other[40];
  if (!work->function) {
    print_word(word, sizeof word, work->target);
    print_word(other, sizeof other, work->source);
    snprintf(line, LINE_BYTES, "copy %s %s %zu", word, other, work->bytes);
    return;
  }
  size_t used =
      (size_t)snprintf(line, LINE_BYTES, "launch %s grid=%u,%u,%u block=%u,%u,%u shared=%u%s", work->function->memory,
                       work->grid[0], work->grid[1], work->grid[2], work->block[0], work->block[1], work->block[2],
                       work->shared, work->programmatic ? " programmatic" : "");
  for (size_t i = 0; i < work->bytes / 8 && used < LINE_BYTES - sizeof word; ++i) {
    print_word(word, sizeof word, work->arguments[i]);
    used += (size_t)snprintf(line + used, LINE_BYTES - used, " %s", word);
  }
}

static works_t *copy_works(const works_t *works) {
  if (!works) return NULL;
  size_t bytes = sizeof *works + (size_t)works->count * sizeof(work_t);
  works_t *copied = malloc(bytes);
  if (!copied) DIE("no memory");
  return memcpy(copied, works, bytes);
}

/* The nodes of a graph, whose children have none. */
static works_t *works_of(const object_t *graph) {
  works_t *works = malloc(sizeof *works + (size_t)graph->count * sizeof(work_t));
  if (!works) DIE("no memory");
  int i = works->count = graph->count;
  for (const object_t *node = graph->last; node; node = node->last) {
    if (node->work.child) DIE("a graph in a graph in a graph");
    works->works[--i] = node->work;
  }
  return works;
}

static object_t *add_node(object_t *graph, const work_t *work) {
  object_t *node = add(NODE, graph);
  node->work = *work;
  node->last = graph->last;
  graph->last = node;
  ++graph->count;
  return node;
}

/* Does it, or adds it to the graph that the stream is capturing. */
static void enqueue(const void *stream, const work_t *work) {
  char line[LINE_BYTES], name[16];
  for (int i = 0; work->child && i < work->child->count; ++i) enqueue(stream, &work->child->works[i]);
  if (work->child) return;
  describe(work, line);
  object_t *graph = capturing(stream);
  if (graph) {
    if (graph->added) DIE("what is captured next does not depend on a node that was added");
    add_node(graph, work);
    note("capture %s in %s", line, stream_name(stream, name));
    return;
  }
  note("%s in %s", line, stream_name(stream, name));
  if (!work->function) {
    memmove((void *)(uintptr_t)work->target, (void *)(uintptr_t)work->source, work->bytes);
  } else if (!strcmp(work->function->memory, fault_kernel)) {
    pending_fault = 700;
  }
}

static int check_launch(const work_t *work) {
  if (work->function->bytes != ANY_SIZE && work->bytes != work->function->bytes) {
    DIE("%s: %zu bytes of arguments, expected %zu", work->function->memory, work->bytes, work->function->bytes);
  }
  uint64_t threads = (uint64_t)work->block[0] * work->block[1] * work->block[2];
  int bad = work->shared > (unsigned)work->function->shared || threads == 0 || threads > 1024;
  return bad || !work->grid[0] || !work->grid[1] || !work->grid[2] ? 1 : 0;
}

/* Arguments are in a buffer, or are one: of that a real kernel's code would tell the size; the stand-in reads its
 * beginning. */
static void read_arguments(work_t *work, void **params, void **extra) {
  if (!params == !extra) DIE("launch parameters are to be in a buffer, or one by its address");
  if (params) {
    work->bytes = work->function->bytes == ANY_SIZE ? BEGINNING : work->function->bytes;
    memcpy(work->arguments, params[0], work->bytes);
    return;
  }
  if (extra[0] != (void *)1 || extra[2] != (void *)2 || extra[4]) DIE("launch parameters are not in a buffer");
  work->bytes = *(size_t *)extra[3];
  if (work->bytes > sizeof work->arguments) DIE("too many arguments");
  memcpy(work->arguments, extra[1], work->bytes);
}

/* ENTER: the call is refused or goes on, with the lock held. WITH_CONTEXT: it needs a current context. */
#define LEAVE(result)            \
  do {                           \
    int result_ = (result);      \
    pthread_mutex_unlock(&lock); \
    return result_;              \
  } while (0)
#define ENTER(function)              \
  pthread_mutex_lock(&lock);         \
  do {                               \
    int refused_ = refuse(function); \
    if (refused_) LEAVE(refused_);   \
  } while (0)
#define WITH_CONTEXT(function) \
  ENTER(function);             \
  if (depth == 0) LEAVE(201)
/* What frees does so after a fault, too: it all goes with the context. */
#define FREEING(function)        \
  pthread_mutex_lock(&lock);     \
  int result = refuse(function); \
  if (depth == 0) LEAVE(201)

EXPORT int cuInit(unsigned flags) {
  ENTER("cuInit");
  (void)flags;
  if (setting("RECORDER_DEVICES", 2) == 0) LEAVE(100);
  initialized = 1;
  LEAVE(0);
}

EXPORT int cuDriverGetVersion(int *version) {
  ENTER("cuDriverGetVersion");
  *version = setting("RECORDER_VERSION", 13000);
  LEAVE(0);
}

static const struct {
  int code;
  const char *name, *meaning;
} results[] = {
    {1, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
    {2, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
    {3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
    {100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
    {201, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
    {209, "CUDA_ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device"},
    {222, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain."},
    {500, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
    {700, "CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered"},
    {719, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
    {906, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT", "operation would make the legacy stream depend on a capturing stream"},
    {910, "CUDA_ERROR_GRAPH_EXEC_UPDATE_FAILURE", "the graph update was not performed"},
};

static const char *find_result(int code, int meaning) {
  for (size_t i = 0; i < sizeof results / sizeof *results; ++i) {
    if (results[i].code == code) return meaning ? results[i].meaning : results[i].name;
  }
  return NULL;
}
EXPORT int cuGetErrorName(int code, const char **name) { return (*name = find_result(code, 0)) ? 0 : 1; }
EXPORT int cuGetErrorString(int code, const char **meaning) { return (*meaning = find_result(code, 1)) ? 0 : 1; }

EXPORT int cuDeviceGetCount(int *count) {
  ENTER("cuDeviceGetCount");
  *count = setting("RECORDER_DEVICES", 2);
  LEAVE(0);
}

EXPORT int cuDeviceGet(int *device, int index) {
  ENTER("cuDeviceGet");
  *device = index;
  LEAVE(index < setting("RECORDER_DEVICES", 2) ? 0 : 101);
}

EXPORT int cuDeviceGetName(char *name, int bytes, int device) {
  ENTER("cuDeviceGetName");
  snprintf(name, (size_t)bytes, "Recorder %d", device);
  LEAVE(0);
}

EXPORT int cuDeviceGetAttribute(int *value, int attribute, int device) {
  ENTER("cuDeviceGetAttribute");
  (void)device;
  int arch = setting("RECORDER_ARCH", 90);
  switch (attribute) {
    case 16:
      *value = 132;
      break;
    case 75:
      *value = arch / 10;
      break;
    case 76:
      *value = arch % 10;
      break;
    case 115:
      *value = setting("RECORDER_POOLS", 1);
      break;
    default:
      LEAVE(1);
  }
  LEAVE(0);
}

EXPORT int cuDevicePrimaryCtxRetain(object_t **context, int device) {
  ENTER("cuDevicePrimaryCtxRetain");
  if (!primary[device]) {
    primary[device] = add(CONTEXT, NULL);
    note("context c%d of device %d", primary[device]->number, device);
  }
  ++primary[device]->references;
  *context = primary[device];
  LEAVE(0);
}

EXPORT int cuDevicePrimaryCtxRelease_v2(int device) {
  pthread_mutex_lock(&lock);
  int result = refuse("cuDevicePrimaryCtxRelease");
  if (!primary[device]) DIE("the context of device %d is released twice", device);
  if (--primary[device]->references == 0) {
    drop(primary[device]);
    primary[device] = NULL;
  }
  LEAVE(result);
}

EXPORT int cuCtxPushCurrent_v2(object_t *context) {
  pthread_mutex_lock(&lock);
  if (depth == 16) DIE("too many contexts");
  stack[depth++] = check(context, CONTEXT);
  LEAVE(0);
}

EXPORT int cuCtxPopCurrent_v2(object_t **context) {
  if (depth == 0) DIE("no context to pop");
  *context = stack[--depth];
  return 0;
}

EXPORT int cuCtxGetCurrent(object_t **context) {
  *context = depth ? stack[depth - 1] : NULL;
  return 0;
}

EXPORT int cuModuleLoadData(object_t **module, const void *image) {
  WITH_CONTEXT("cuModuleLoadData");
  uint32_t magic;
  memcpy(&magic, image, sizeof magic);
  if (magic == FATBIN_MAGIC) {
    uint64_t bytes;
    memcpy(&bytes, (const char *)image + 8, sizeof bytes);
    *module = add(MODULE, stack[depth - 1]);
    (*module)->image = image;
    (*module)->bytes = (size_t)bytes + 16;
    LEAVE(0);
  }
  if (memcmp(image, "recorded", 8)) LEAVE(200);
  *module = add(MODULE, stack[depth - 1]);
  (*module)->memory = strdup(image);
  LEAVE(0);
}

EXPORT int cuModuleUnload(object_t *module) {
  FREEING("cuModuleUnload");
  check(module, MODULE);
  for (object_t *object = objects, *next; object; object = next) {
    next = object->next;
    if (object->kind == FUNCTION && object->owner == module) drop(object);
  }
  drop(module);
  LEAVE(result);
}

EXPORT int cuModuleGetFunction(object_t **function, object_t *module, const char *name) {
  WITH_CONTEXT("cuModuleGetFunction");
  char pattern[80];
  snprintf(pattern, sizeof pattern, " %s:", name);
  const char *found = check(module, MODULE)->image ? memmem(module->image, module->bytes, name, strlen(name) + 1)
                                                   : strstr(module->memory, pattern);
  if (!found) LEAVE(500);
  *function = add(FUNCTION, module);
  (*function)->memory = strdup(name);
  (*function)->bytes = module->image ? ANY_SIZE : (size_t)atoi(found + strlen(pattern));
  (*function)->shared = 49152;
  LEAVE(0);
}

EXPORT int cuFuncSetAttribute(object_t *function, int attribute, int value) {
  WITH_CONTEXT("cuFuncSetAttribute");
  if (attribute != 8 || value > MAX_DYNAMIC_SHARED) LEAVE(1);
  check(function, FUNCTION)->shared = value;
  note("shared %s %d", function->memory, value);
  LEAVE(0);
}

EXPORT int cuFuncGetAttribute(int *value, int attribute, object_t *function) {
  WITH_CONTEXT("cuFuncGetAttribute");
  check(function, FUNCTION);
  if (attribute != 5) LEAVE(1);
  *value = setting("RECORDER_PTX", setting("RECORDER_ARCH", 90));
  LEAVE(0);
}

#ifndef RECORDER_OLD
EXPORT int cuFuncLoad(object_t *function) {
  WITH_CONTEXT("cuFuncLoad");
  note("load %s", check(function, FUNCTION)->memory);
  LEAVE(0);
}
#endif

static size_t total_memory(void) { return (size_t)setting("RECORDER_MEMORY", 1 << 30); }

EXPORT int cuMemGetInfo_v2(size_t *free, size_t *total) {
  WITH_CONTEXT("cuMemGetInfo");
  *total = total_memory();
  *free = *total - allocated;
  LEAVE(0);
}

static int allocate(kind_t kind, size_t bytes, uint64_t *address) {
  if (bytes == 0) return 1;
  if (allocated + bytes > total_memory()) return 2;
  object_t *object = add(kind, stack[depth - 1]);
  void *memory;
  if (posix_memalign(&memory, 256, bytes)) DIE("no memory");
  memset(memory, 0xa5, bytes);
  object->memory = memory;
  object->bytes = bytes;
  allocated += bytes;
  *address = (uintptr_t)memory;
  return 0;
}

static void release(kind_t kind, uint64_t address) {
  object_t *object = memory_at(address);
  if (!object || object->kind != kind || address != (uintptr_t)object->memory) {
    DIE("%#llx cannot be freed as %s", (unsigned long long)address, kind_names[kind]);
  }
  note("free m%d", object->number);
  allocated -= object->bytes;
  drop(object);
}

EXPORT int cuMemAlloc_v2(uint64_t *address, size_t bytes) {
  WITH_CONTEXT("cuMemAlloc");
  LEAVE(allocate(MEMORY, bytes, address));
}

EXPORT int cuMemFree_v2(uint64_t address) {
  FREEING("cuMemFree");
  release(MEMORY, address);
  LEAVE(result);
}

EXPORT int cuMemAllocAsync(uint64_t *address, size_t bytes, void *stream) {
  WITH_CONTEXT("cuMemAllocAsync");
  check(stream, STREAM);
  LEAVE(allocate(POOLED, bytes, address));
}

EXPORT int cuMemFreeAsync(uint64_t address, void *stream) {
  FREEING("cuMemFreeAsync");
  check(stream, STREAM);
  release(POOLED, address);
  LEAVE(result);
}

EXPORT int cuMemHostAlloc(void **memory, size_t bytes, unsigned flags) {
  WITH_CONTEXT("cuMemHostAlloc");
  (void)flags;
  object_t *object = add(PINNED, stack[depth - 1]);
  *memory = object->memory = malloc(bytes);
  object->bytes = bytes;
  LEAVE(0);
}

EXPORT int cuMemFreeHost(void *memory) {
  FREEING("cuMemFreeHost");
  object_t *object = objects;
  while (object && (object->kind != PINNED || object->memory != memory)) object = object->next;
  if (!object) DIE("%p cannot be freed as pinned memory", memory);
  drop(object);
  LEAVE(result);
}

EXPORT int cuMemcpyHtoDAsync_v2(uint64_t target, const void *source, size_t bytes, void *stream) {
  WITH_CONTEXT("cuMemcpyHtoDAsync");
  char word[40], name[16];
  check_range(target, bytes);
  print_word(word, sizeof word, target);
  note("upload %s %zu in %s", word, bytes, stream_name(stream, name));
  if (capturing(stream)) DIE("a copy from the host is captured");
  memcpy((void *)(uintptr_t)target, source, bytes);
  LEAVE(0);
}

EXPORT int cuMemcpyDtoHAsync_v2(void *target, uint64_t source, size_t bytes, void *stream) {
  WITH_CONTEXT("cuMemcpyDtoHAsync");
  char word[40], name[16];
  check_range(source, bytes);
  print_word(word, sizeof word, source);
  note("download %s %zu in %s", word, bytes, stream_name(stream, name));
  if (capturing(stream)) DIE("a copy to the host is captured");
  memcpy(target, (const void *)(uintptr_t)source, bytes);
  LEAVE(0);
}

EXPORT int cuMemcpyDtoDAsync_v2(uint64_t target, uint64_t source, size_t bytes, void *stream) {
  WITH_CONTEXT("cuMemcpyDtoDAsync");
  check_range(target, bytes);
  check_range(source, bytes);
  const work_t work = {.target = target, .source = source, .bytes = bytes};
  enqueue(stream, &work);
  LEAVE(0);
}

EXPORT int cuMemsetD8Async(uint64_t target, unsigned char byte, size_t bytes, void *stream) {
  WITH_CONTEXT("cuMemsetD8Async");
  char word[40], name[16];
  check_range(target, bytes);
  print_word(word, sizeof word, target);
  note("set %s %zu to %d in %s", word, bytes, byte, stream_name(stream, name));
  if (capturing(stream)) DIE("setting memory is captured");
  memset((void *)(uintptr_t)target, byte, bytes);
  LEAVE(0);
}

EXPORT int cuStreamCreate(object_t **stream, unsigned flags) {
  WITH_CONTEXT("cuStreamCreate");
  *stream = add(STREAM, stack[depth - 1]);
  note("stream s%d %s", (*stream)->number, flags == 1 ? "non-blocking" : "blocking");
  LEAVE(0);
}

EXPORT int cuStreamDestroy_v2(object_t *stream) {
  FREEING("cuStreamDestroy");
  if (check(stream, STREAM)->graph) DIE("a stream is destroyed that is being captured");
  drop(stream);
  LEAVE(result);
}

EXPORT int cuStreamGetId(object_t *stream, unsigned long long *id) {
  WITH_CONTEXT("cuStreamGetId");
  *id = (uintptr_t)stream <= 2 ? (uintptr_t)stream : 100 + (unsigned long long)check(stream, STREAM)->number;
  LEAVE(0);
}

/* A kernel's fault shows when something waits for it. */
static int wait_for_work(void) {
  if (pending_fault) sticky = pending_fault;
  return sticky;
}

EXPORT int cuStreamSynchronize(void *stream) {
  WITH_CONTEXT("cuStreamSynchronize");
  char name[16];
  if (capturing(stream)) DIE("a stream is waited for that is being captured");
  note("wait for %s", stream_name(stream, name));
  LEAVE(wait_for_work());
}

EXPORT int cuStreamWaitEvent(void *stream, object_t *event, unsigned flags) {
  WITH_CONTEXT("cuStreamWaitEvent");
  (void)flags;
  char name[16];
  if (capturing(stream)) DIE("a stream waits that is being captured");
  note("%s waits for e%d", stream_name(stream, name), check(event, EVENT)->number);
  LEAVE(0);
}

EXPORT int cuStreamIsCapturing(void *stream, int *status) {
  WITH_CONTEXT("cuStreamIsCapturing");
  *status = capturing(stream) ? 1 : 0;
  LEAVE(0);
}

static int captures; /* streams that are being captured */

EXPORT int cuStreamBeginCapture_v2(object_t *stream, int mode) {
  WITH_CONTEXT("cuStreamBeginCapture");
  (void)mode;
  if (check(stream, STREAM)->graph) LEAVE(401);
  stream->graph = add(GRAPH, stack[depth - 1]);
  ++captures;
  LEAVE(0);
}

EXPORT int cuStreamEndCapture(object_t *stream, object_t **graph) {
  pthread_mutex_lock(&lock);
  int refused = refuse("cuStreamEndCapture");
  *graph = check(stream, STREAM)->graph;
  if (!*graph) LEAVE(401);
  stream->graph = NULL;
  --captures;
  LEAVE(refused);
}

static void tell_capture(object_t *captured, int *status, unsigned long long *id, object_t **graph,
                         object_t *const **nodes, size_t *count) {
  *status = captured ? 1 : 0;
  if (id) *id = captured ? (unsigned long long)captured->number : 0;
  if (graph) *graph = captured;
  if (captured) *nodes = &captured->last;
  if (captured) *count = captured->last ? 1 : 0;
}

EXPORT int cuStreamGetCaptureInfo_v2(object_t *stream, int *status, unsigned long long *id, object_t **graph,
                                     object_t *const **nodes, size_t *count) {
  WITH_CONTEXT("cuStreamGetCaptureInfo");
  object_t *captured = check(stream, STREAM)->graph;
  tell_capture(captured, status, id, graph, nodes, count);
#ifndef RECORDER_OLD
  if (captured && captured->last && captured->last->work.programmatic) LEAVE(402);
#endif
  LEAVE(0);
}

#ifndef RECORDER_OLD
EXPORT int cuStreamGetCaptureInfo_v3(object_t *stream, int *status, unsigned long long *id, object_t **graph,
                                     object_t *const **nodes, const void **edges, size_t *count) {
  WITH_CONTEXT("cuStreamGetCaptureInfo");
  static const uint64_t none;
  object_t *captured = check(stream, STREAM)->graph;
  tell_capture(captured, status, id, graph, nodes, count);
  if (!edges && captured && captured->last && captured->last->work.programmatic) LEAVE(402);
  if (edges) *edges = &none;
  LEAVE(0);
}
#endif

EXPORT int cuStreamUpdateCaptureDependencies(object_t *stream, object_t *const *nodes, size_t count, unsigned flags) {
  WITH_CONTEXT("cuStreamUpdateCaptureDependencies");
  object_t *graph = check(stream, STREAM)->graph;
  if (!graph || count != 1 || flags != 1 || check(nodes[0], NODE) != graph->last) LEAVE(1);
  graph->added = 0;
  LEAVE(0);
}

EXPORT int cuThreadExchangeStreamCaptureMode(int *mode) {
  static _Thread_local int current;
  int old = current;
  current = *mode;
  *mode = old;
  return 0;
}

EXPORT int cuEventCreate(object_t **event, unsigned flags) {
  WITH_CONTEXT("cuEventCreate");
  (void)flags;
  *event = add(EVENT, stack[depth - 1]);
  LEAVE(0);
}

EXPORT int cuEventDestroy_v2(object_t *event) {
  FREEING("cuEventDestroy");
  drop(check(event, EVENT));
  LEAVE(result);
}

EXPORT int cuEventRecord(object_t *event, void *stream) {
  WITH_CONTEXT("cuEventRecord");
  char name[16];
  if (capturing(stream)) DIE("an event is recorded in a stream that is being captured");
  note("record e%d in %s", check(event, EVENT)->number, stream_name(stream, name));
  LEAVE(0);
}

EXPORT int cuEventSynchronize(object_t *event) {
  WITH_CONTEXT("cuEventSynchronize");
  note("wait for e%d", check(event, EVENT)->number);
  LEAVE(wait_for_work());
}

/* As if a millisecond lay between events that were made one after the other. */
EXPORT int cuEventElapsedTime(float *milliseconds, object_t *start, object_t *end) {
  WITH_CONTEXT("cuEventElapsedTime");
  *milliseconds = (float)(check(end, EVENT)->number - check(start, EVENT)->number);
  LEAVE(0);
}

EXPORT int cuLaunchKernel(object_t *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared, void *stream, void **params,
                          void **extra) {
  WITH_CONTEXT("cuLaunchKernel");
  work_t work = {.function = check(function, FUNCTION),
                 .grid = {grid_x, grid_y, grid_z},
                 .block = {block_x, block_y, block_z},
                 .shared = shared};
  read_arguments(&work, params, extra);
  int bad = check_launch(&work);
  if (bad) LEAVE(bad);
  enqueue(stream, &work);
  LEAVE(0);
}

typedef struct {
  int id, reserved;
  union {
    int allowed;
    uint64_t words[8];
  } value;
} attribute_t;

typedef struct {
  unsigned grid[3], block[3], shared;
  void *stream;
  const attribute_t *attributes;
  unsigned num_attributes;
} config_t;

EXPORT int cuLaunchKernelEx(const config_t *config, object_t *function, void **params, void **extra) {
  WITH_CONTEXT("cuLaunchKernelEx");
  if (config->num_attributes != 1 || config->attributes->id != 6 || !config->attributes->value.allowed) LEAVE(1);
  work_t work = {.function = check(function, FUNCTION), .shared = config->shared, .programmatic = 1};
  memcpy(work.grid, config->grid, sizeof work.grid);
  memcpy(work.block, config->block, sizeof work.block);
  read_arguments(&work, params, extra);
  int bad = check_launch(&work);
  if (bad) LEAVE(bad);
  enqueue(config->stream, &work);
  LEAVE(0);
}

#ifndef RECORDER_OLD
/* A "map": what was asked for. Where the driver refuses it leaves dirt. */
static int encode(const char *function, uint64_t *map, uint64_t address, uint64_t rank, uint64_t extent, uint64_t box) {
  pthread_mutex_lock(&lock);
  int refused = refuse(function);
  if ((uintptr_t)map % 64) DIE("a tensor map is not aligned");
  memset(map, refused ? 0xa5 : 0, TENSOR_MAP_BYTES);
  if (!refused) memcpy(map, (const uint64_t[]){address, rank, extent, box}, 32);
  LEAVE(refused);
}

EXPORT int cuTensorMapEncodeTiled(uint64_t *map, int type, unsigned rank, void *address, const uint64_t *extents,
                                  const uint64_t *strides, const uint32_t *box, const uint32_t *steps, int interleave,
                                  int swizzle, int promotion, int fill) {
  int other = type != 7 || steps[0] != 1 || interleave != 0 || swizzle != 3 || promotion != 2 || fill != 1;
  if (strides[0] % 16 || (other && !setting("RECORDER_MAPS", 0))) return 1;
  return encode("cuTensorMapEncodeTiled", map, (uintptr_t)address, rank, extents[0], box[0]);
}

EXPORT int cuTensorMapEncodeIm2col(uint64_t *map, int type, unsigned rank, void *address, const uint64_t *extents,
                                   const uint64_t *strides, const int *lower, const int *upper, unsigned channels,
                                   unsigned pixels, const uint32_t *steps, int interleave, int swizzle, int promotion,
                                   int fill) {
  if (type != 7 || strides[0] % 16 || lower[0] != -1 || upper[0] != -2 || pixels != 8 || steps[0] != 1 ||
      interleave != 0 || swizzle != 3 || promotion != 2 || fill != 1) {
    return 1;
  }
  return encode("cuTensorMapEncodeIm2col", map, (uintptr_t)address, rank, extents[0], channels);
}
#endif

EXPORT int cuGraphInstantiateWithFlags(object_t **exec, object_t *graph, unsigned long long flags) {
  WITH_CONTEXT("cuGraphInstantiate");
  (void)flags;
  *exec = add(EXEC, check(graph, GRAPH));
  (*exec)->graph = graph;
  (*exec)->works = calloc((size_t)graph->count + 1, sizeof(work_t));
  int i = (*exec)->count = graph->count;
  for (const object_t *node = graph->last; node; node = node->last) {
    (*exec)->works[--i] = node->work;
    (*exec)->works[i].child = copy_works(node->work.child);
  }
  note("graph x%d of %d nodes", (*exec)->number, graph->count);
  LEAVE(0);
}

EXPORT int cuGraphLaunch(object_t *exec, void *stream) {
  WITH_CONTEXT("cuGraphLaunch");
  char name[16];
  note("launch x%d in %s", check(exec, EXEC)->number, stream_name(stream, name));
  if (capturing(stream)) DIE("a graph is launched into a stream that is being captured");
  for (int i = 0; i < exec->graph->count; ++i) enqueue(stream, &exec->works[i]);
  LEAVE(0);
}

static work_t *find_work(object_t *exec, object_t *node) {
  check(exec, EXEC);
  check(node, NODE);
  if (node->owner != exec->graph) DIE("a node of another graph is changed");
  int i = exec->graph->count - 1;
  for (const object_t *other = exec->graph->last; other != node; other = other->last) --i;
  return &exec->works[i];
}

typedef struct {
  object_t *function;
  unsigned grid[3], block[3], shared;
  void **params, **extra;
} kernel_node_t;

EXPORT int cuGraphExecKernelNodeSetParams(object_t *exec, object_t *node, const kernel_node_t *params) {
  WITH_CONTEXT("cuGraphExecKernelNodeSetParams");
  work_t *work = find_work(exec, node);
  if (work->function != params->function) LEAVE(910);
  memcpy(work->grid, params->grid, sizeof work->grid);
  memcpy(work->block, params->block, sizeof work->block);
  work->shared = params->shared;
  read_arguments(work, params->params, params->extra);
  char line[LINE_BYTES];
  describe(work, line);
  note("change n%d of x%d to %s", node->number, exec->number, line);
  LEAVE(check_launch(work));
}

typedef struct {
  size_t source_origin[4];
  unsigned source_type;
  const void *source_host;
  uint64_t source;
  void *source_array, *reserved0;
  size_t source_pitch, source_height;
  size_t target_origin[4];
  unsigned target_type;
  void *target_host;
  uint64_t target;
  void *target_array, *reserved1;
  size_t target_pitch, target_height;
  size_t width, height, depth;
} copy_node_t;

EXPORT int cuGraphExecMemcpyNodeSetParams(object_t *exec, object_t *node, const copy_node_t *params,
                                          object_t *context) {
  WITH_CONTEXT("cuGraphExecMemcpyNodeSetParams");
  check(context, CONTEXT);
  work_t *work = find_work(exec, node);
  if (work->function || params->source_type != 2 || params->target_type != 2) LEAVE(910);
  if (params->height != 1 || params->depth != 1 || params->width == 0) LEAVE(1);
  work->source = params->source;
  work->target = params->target;
  work->bytes = params->width;
  check_range(work->target, work->bytes);
  check_range(work->source, work->bytes);
  char line[LINE_BYTES];
  describe(work, line);
  note("change n%d of x%d to %s", node->number, exec->number, line);
  LEAVE(0);
}

EXPORT int cuGraphAddChildGraphNode(object_t **added, object_t *graph, object_t *const *after, size_t count,
                                    object_t *child) {
  WITH_CONTEXT("cuGraphAddChildGraphNode");
  if (count != (check(graph, GRAPH)->last ? 1 : 0) || (count && after[0] != graph->last)) {
    DIE("a node does not come after what was captured last");
  }
  const work_t work = {.child = works_of(check(child, GRAPH))};
  *added = add_node(graph, &work);
  graph->added = 1;
  note("add a graph of %d nodes", child->count);
  LEAVE(0);
}

/* A graph of another form cannot take the place of one. */
EXPORT int cuGraphExecChildGraphNodeSetParams(object_t *exec, object_t *node, object_t *child) {
  WITH_CONTEXT("cuGraphExecChildGraphNodeSetParams");
  work_t *work = find_work(exec, node);
  if (!work->child || check(child, GRAPH)->count != work->child->count) LEAVE(910);
  free(work->child);
  work->child = works_of(child);
  note("change n%d of x%d to a graph of %d nodes", node->number, exec->number, child->count);
  LEAVE(0);
}

EXPORT int cuGraphDestroy(object_t *graph) {
  FREEING("cuGraphDestroy");
  check(graph, GRAPH);
  for (object_t *node = graph->last, *before; node; node = before) {
    before = node->last;
    drop(node);
  }
  drop(graph);
  LEAVE(result);
}

EXPORT int cuGraphExecDestroy(object_t *exec) {
  FREEING("cuGraphExecDestroy");
  drop(check(exec, EXEC));
  LEAVE(result);
}

EXPORT recorder_take_fn recorder_take;
EXPORT const char *recorder_take(void) {
  static char *taken;
  pthread_mutex_lock(&lock);
  free(taken);
  taken = text;
  text = NULL;
  text_used = text_room = 0;
  pthread_mutex_unlock(&lock);
  return taken ? taken : "";
}

EXPORT recorder_captures_fn recorder_captures;
EXPORT int recorder_captures(void) {
  pthread_mutex_lock(&lock);
  const int found = captures;
  pthread_mutex_unlock(&lock);
  return found;
}

EXPORT recorder_live_fn recorder_live;
EXPORT const char *recorder_live(void) {
  static char line[512];
  size_t used = 0;
  pthread_mutex_lock(&lock);
  line[0] = 0;
  for (int kind = 0; kind < KINDS; ++kind) {
    int count = 0;
    for (const object_t *object = objects; object; object = object->next) count += (int)object->kind == kind;
    if (!count) continue;
    used += (size_t)snprintf(line + used, sizeof line - used, "%s%d %s", used ? ", " : "", count, kind_names[kind]);
  }
  pthread_mutex_unlock(&lock);
  return line;
}

EXPORT recorder_fail_fn recorder_fail;
EXPORT void recorder_fail(const char *faults) {
  pthread_mutex_lock(&lock);
  read_rules(faults);
  pthread_mutex_unlock(&lock);
}

EXPORT recorder_fault_fn recorder_fault;
EXPORT void recorder_fault(const char *kernel) { snprintf(fault_kernel, sizeof fault_kernel, "%s", kernel); }

EXPORT recorder_depth_fn recorder_depth;
EXPORT int recorder_depth(void) { return depth; }

EXPORT recorder_memory_fn recorder_memory;
EXPORT void *recorder_memory(int number) {
  pthread_mutex_lock(&lock);
  object_t *object = objects;
  while (object && (object->number != number || (object->kind != MEMORY && object->kind != POOLED)))
    object = object->next;
  pthread_mutex_unlock(&lock);
  return object ? object->memory : NULL;
}
