/* Creating and destroying sessions, their options, loading and unloading. Arguments: dynamic bundle, static bundle. */
#define _GNU_SOURCE
#include <dirent.h>
#include <malloc.h>

#include "check.h"

static void table(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  CHECK_TEXT(t->name, "dynamic");
  CHECK_EQ(t->manifest_size, 4);
  CHECK_EQ(memcmp(t->manifest, "{}  ", 4), 0);
  CHECK_EQ(t->num_inputs, 2);
  CHECK_TEXT(t->inputs[1].name, "b");
  CHECK_EQ(t->inputs[0].shape[0], PACKAGER_DIM_SYMBOLIC);
  CHECK_EQ(t->inputs[0].max_shape[0], 4096);
  CHECK_TEXT(t->outputs[1].dims[0], "2*n+1");
  for (int i = 0; i < 2; ++i) CHECK(t->reserved[i] == NULL);
  CHECK(t->num_entries == 1 && t->entries[0] == t);
  CHECK(t->num_states == 0 && t->states == NULL && t->state_bytes == 0);
  CHECK(t->session_cpu_level(NULL) == NULL);
  CHECK(t->session_stream(NULL) == NULL);
  CHECK_EQ(t->num_constants, 1);
  CHECK_TEXT(t->constants[0].name, "w");
  static const char *const names[] = {"PACKAGER_OK",
                                      "PACKAGER_ERROR_ARGUMENT",
                                      "PACKAGER_ERROR_RANK",
                                      "PACKAGER_ERROR_SHAPE",
                                      "PACKAGER_ERROR_DTYPE",
                                      "PACKAGER_ERROR_DEVICE",
                                      "PACKAGER_ERROR_LAYOUT",
                                      "PACKAGER_ERROR_ALIGNMENT",
                                      "PACKAGER_ERROR_OVERLAP",
                                      "PACKAGER_ERROR_BUSY",
                                      "PACKAGER_ERROR_MEMORY",
                                      "PACKAGER_ERROR_MACHINE",
                                      "PACKAGER_ERROR_WEIGHTS",
                                      "PACKAGER_ERROR_THREADS",
                                      "PACKAGER_ERROR_KERNEL",
                                      "PACKAGER_ERROR_CONSTANT",
                                      "PACKAGER_ERROR_DRIVER",
                                      "PACKAGER_ERROR_GPU",
                                      "PACKAGER_ERROR_LIBRARY"};
  for (int i = 0; i < 19; ++i) CHECK_TEXT(t->status_name(-i), names[i]);
  CHECK_TEXT(t->status_name(-19), "unknown status");
  CHECK_TEXT(t->status_name(1), "unknown status");
  CHECK_TEXT(t->status_name(INT32_MIN), "unknown status");
  CHECK_TEXT(t->thread_error(), "");
  CHECK_OK(t, t->session_destroy(NULL));
  CHECK_EQ(t->session_create(NULL, NULL), PACKAGER_ERROR_ARGUMENT);
  CHECK_EQ(dlclose(bundle.handle), 0);
}

static void refuse_options(const packager_bundle_v1_t *t, const void *options, const char *message) {
  packager_session_t *session = (packager_session_t *)&session;
  CHECK_EQ(t->session_create(options, &session), PACKAGER_ERROR_ARGUMENT);
  CHECK(session == NULL);
  CHECK_TEXT(t->thread_error(), message);
}

static void *allocate_64(void *context, uint64_t size, uint64_t alignment) {
  void *memory;
  ++*(int *)context;
  return posix_memalign(&memory, alignment, size) ? NULL : memory;
}

static void release_64(void *context, void *memory) {
  --*(int *)context;
  free(memory);
}

static void options(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  packager_session_options_t options = {.struct_size = sizeof options};
  CHECK_OK(t, t->session_destroy(session_open(t, &options)));

  options.struct_size = 0;
  refuse_options(t, &options, "options: struct_size is 0, expected sizeof(packager_session_options_t)");
  options.struct_size = 103;
  refuse_options(t, &options, "options: struct_size is 103, expected sizeof(packager_session_options_t)");
  options.struct_size = 0x70000000;
  refuse_options(t, &options, "options: struct_size is 1879048192, expected sizeof(packager_session_options_t)");
  static const uint8_t selection[] = {1, 2};
  options = (packager_session_options_t){.struct_size = sizeof options, .num_selected = 1, .selection = selection};
  refuse_options(t, &options, "options: selection has 1 entries, expected NULL or 0 entries");
  options.num_selected = 0;
  refuse_options(t, &options, "options: selection has 0 entries, expected NULL or 0 entries");
  options = (packager_session_options_t){.struct_size = sizeof options, .num_selected = -1};
  refuse_options(t, &options, "options: selection has -1 entries, expected NULL or 0 entries");
  options = (packager_session_options_t){.struct_size = sizeof options, .device_index = 2};
  refuse_options(t, &options, "options: device_index is 2, expected 0 for a CPU bundle");
  static const char cuda_only[] =
      "options: graph, launch_blocking, device_arena or device_arena_bytes is set, expected 0 for a CPU bundle";
  options = (packager_session_options_t){.struct_size = sizeof options, .graph = PACKAGER_GRAPH_OFF};
  refuse_options(t, &options, cuda_only);
  options = (packager_session_options_t){.struct_size = sizeof options, .launch_blocking = 1};
  refuse_options(t, &options, cuda_only);
  options = (packager_session_options_t){.struct_size = sizeof options, .device_arena = &options};
  refuse_options(t, &options, cuda_only);
  options = (packager_session_options_t){.struct_size = sizeof options, .device_arena_bytes = 1};
  refuse_options(t, &options, cuda_only);
  options = (packager_session_options_t){.struct_size = sizeof options, .max_threads = -1};
  refuse_options(t, &options, "options: max_threads is -1, expected 0 or more");
  options = (packager_session_options_t){.struct_size = sizeof options, .allocate = allocate_64};
  refuse_options(t, &options, "options: allocate and release must be given both or neither");

  /* From a newer header: what this bundle does not know may be there, but not set. */
  struct {
    packager_session_options_t known;
    uint64_t future[2];
  } newer = {.known = {.struct_size = sizeof newer}, .future = {0, 0}};
  CHECK_OK(t, t->session_destroy(session_open(t, &newer.known)));
  newer.future[1] = 1;
  refuse_options(t, &newer, "options: byte 128 is set, which this bundle does not know (it knows 120 bytes)");

  /* From an older header: what stands behind struct_size is not read. */
  options = (packager_session_options_t){.struct_size = 16, .selection = selection, .allocate = allocate_64};
  CHECK_OK(t, t->session_destroy(session_open(t, &options)));
  CHECK_EQ(dlclose(bundle.handle), 0);
}

static float second_of(const packager_bundle_v1_t *t, const packager_session_options_t *options) {
  packager_session_t *session = session_open(t, options);
  static_t tensors;
  static_init(&tensors);
  CHECK_OK(t, static_run(t, session, &tensors));
  CHECK_OK(t, t->session_destroy(session));
  return tensors.y[1];
}

/* Of a bundle with candidates {1, 2}, sealed with {0, 1}. */
static void selection(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  CHECK(second_of(t, NULL) == -1);
  uint8_t chosen[] = {0, 0, 0};
  packager_session_options_t options = {.struct_size = sizeof options, .num_selected = 2, .selection = chosen};
  CHECK(second_of(t, &options) == 3);
  chosen[1] = 1;
  CHECK(second_of(t, &options) == -1);
  chosen[1] = 2;
  refuse_options(t, &options, "selection[1] is 2, expected less than 2");
  chosen[0] = 1;
  refuse_options(t, &options, "selection[0] is 1, expected less than 1");
  options.num_selected = 3;
  refuse_options(t, &options, "options: selection has 3 entries, expected NULL or 2 entries");
  CHECK_EQ(dlclose(bundle.handle), 0);
}

static void *allocate_nothing(void *context, uint64_t size, uint64_t alignment) {
  CHECK(size > 0);
  CHECK_EQ(alignment, 64);
  ++*(int *)context;
  return NULL;
}

static char misaligned[1 << 18];
static void *allocate_misaligned(void *context, uint64_t size, uint64_t alignment) {
  CHECK(size + alignment < sizeof misaligned);
  ++*(int *)context;
  return misaligned + (alignment - (uintptr_t)misaligned % alignment) + 8;
}
static void release_misaligned(void *context, void *memory) {
  (void)memory;
  --*(int *)context;
}

static void allocator(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  int live = 0;
  packager_session_options_t options = {
      .struct_size = sizeof options, .allocate = allocate_64, .release = release_64, .allocator_context = &live};
  packager_session_t *session = session_open(t, &options);
  CHECK_EQ(live, 1); /* one block holds it all */
  dynamic_t *d = dynamic_new(100);
  dynamic_run_checked(t, session, d);
  CHECK_EQ(live, 1);
  CHECK_OK(t, t->session_destroy(session));
  CHECK_EQ(live, 0);

  options.allocate = allocate_nothing;
  CHECK_EQ(t->session_create(&options, &session), PACKAGER_ERROR_MEMORY);
  CHECK(session == NULL);
  CHECK_HAS(t->thread_error(), "could not allocate ");
  CHECK_EQ(live, 1); /* asked once, and nothing to release */
  live = 0;
  options.allocate = allocate_misaligned;
  options.release = release_misaligned;
  CHECK_EQ(t->session_create(&options, &session), PACKAGER_ERROR_MEMORY);
  CHECK_TEXT(t->thread_error(), "the allocator returned memory that is not aligned to 64 bytes");
  CHECK_EQ(live, 0); /* given back */
  free(d);
  CHECK_EQ(dlclose(bundle.handle), 0);
}

/* Every second allocation fails; those that succeed must be released. */
typedef struct {
  int calls, live;
} flaky_t;

static void *allocate_flaky(void *context, uint64_t size, uint64_t alignment) {
  flaky_t *flaky = context;
  return ++flaky->calls % 2 ? NULL : allocate_64(&flaky->live, size, alignment);
}

static void release_flaky(void *context, void *memory) { release_64(&((flaky_t *)context)->live, memory); }

static void flaky_allocator(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  flaky_t flaky = {0, 0};
  packager_session_options_t options = {
      .struct_size = sizeof options, .allocate = allocate_flaky, .release = release_flaky, .allocator_context = &flaky};
  dynamic_t *d = dynamic_new(64);
  CHECK_OK(t, t->set_threads(2));
  for (int i = 0; i < 20; ++i) {
    packager_session_t *session;
    int32_t status = t->session_create(&options, &session);
    CHECK_EQ(status, i % 2 ? PACKAGER_OK : PACKAGER_ERROR_MEMORY);
    if (status) continue;
    dynamic_run_checked(t, session, d);
    CHECK_OK(t, t->session_destroy(session));
  }
  CHECK_EQ(flaky.live, 0);
  free(d);
  CHECK_EQ(dlclose(bundle.handle), 0);
}

typedef struct {
  int count;
  int32_t level;
  char message[256];
} log_t;

static void write_log(void *context, int32_t level, const char *message) {
  log_t *log = context;
  ++log->count;
  log->level = level;
  snprintf(log->message, sizeof log->message, "%s", message);
}

static void logging(char **arguments) {
  bundle_t bundle = bundle_open(arguments[1]);
  const packager_bundle_v1_t *t = bundle.table;
  log_t log = {0, -1, ""};
  int calls = 0;
  packager_session_options_t options = {.struct_size = sizeof options, .log = write_log, .log_context = &log};
  packager_session_t *session = session_open(t, &options);
  CHECK_EQ(log.count, 1);
  CHECK_EQ(log.level, PACKAGER_LOG_INFO);
  CHECK_TEXT(log.message, "static: session created, arena of 24 bytes, 1 thread(s)");
  CHECK_OK(t, t->session_destroy(session));
  options.allocate = allocate_nothing;
  options.release = release_64;
  options.allocator_context = &calls;
  CHECK_EQ(t->session_create(&options, &session), PACKAGER_ERROR_MEMORY);
  CHECK_EQ(log.count, 2);
  CHECK_EQ(log.level, PACKAGER_LOG_ERROR);
  CHECK_TEXT(log.message, t->thread_error());
  CHECK_EQ(dlclose(bundle.handle), 0);
}

static void two_bundles(char **arguments) {
  bundle_t dynamic = bundle_open(arguments[0]), fixed = bundle_open(arguments[1]);
  CHECK_OK(dynamic.table, dynamic.table->set_threads(2));
  CHECK_OK(fixed.table, fixed.table->set_threads(3));
  packager_session_t *a = session_open(dynamic.table, NULL), *b = session_open(fixed.table, NULL);
  dynamic_t *d = dynamic_new(100);
  static_t s;
  static_init(&s);
  for (int i = 0; i < 100; ++i) {
    dynamic_run_checked(dynamic.table, a, d);
    CHECK_OK(fixed.table, static_run(fixed.table, b, &s));
    static_check(&s);
  }
  s.shape[1] = 4;
  CHECK_EQ(static_run(fixed.table, b, &s), PACKAGER_ERROR_SHAPE);
  CHECK_TEXT(fixed.table->thread_error(), "input 'x': axis 1 is 4, expected 3");
  CHECK_TEXT(dynamic.table->thread_error(), "");
  CHECK_OK(dynamic.table, dynamic.table->session_destroy(a));
  CHECK_EQ(dlclose(dynamic.handle), 0);
  s.shape[1] = 3;
  CHECK_OK(fixed.table, static_run(fixed.table, b, &s));
  CHECK_OK(fixed.table, fixed.table->session_destroy(b));
  CHECK_EQ(dlclose(fixed.handle), 0);
  free(d);
}

static int count_entries(const char *path) {
  DIR *folder = opendir(path);
  CHECK(folder != NULL);
  int count = 0;
  while (readdir(folder)) ++count;
  closedir(folder);
  return count;
}

static int count_mappings(void) {
  FILE *file = fopen("/proc/self/maps", "r");
  CHECK(file != NULL);
  int lines = 0;
  for (int c; (c = fgetc(file)) != EOF;) lines += c == '\n';
  fclose(file);
  return lines;
}

static long resident_pages(void) {
  long size, resident;
  FILE *file = fopen("/proc/self/statm", "r");
  CHECK(file && fscanf(file, "%ld %ld", &size, &resident) == 2);
  fclose(file);
  return resident;
}

/* arguments[2] cycles of load, run, fail, unload; nothing may grow after the first tenth. arguments[3] is 1 where the
 * process is not full of a sanitizer's own memory. */
static void cycles(char **arguments) {
  int count = atoi(arguments[2]), exact = atoi(arguments[3]);
  int tasks = 0, files = 0, mappings = 0;
  long pages = 0;
  size_t heap = 0;
  dynamic_t *d = dynamic_new(64);
  for (int i = 0; i < count; ++i) {
    bundle_t bundle = bundle_open(arguments[0]);
    CHECK_OK(bundle.table, bundle.table->set_threads(2));
    packager_session_t *session = session_open(bundle.table, NULL);
    dynamic_run_checked(bundle.table, session, d);
    d->ta.ndim = 1;
    CHECK_EQ(dynamic_run(bundle.table, session, d), PACKAGER_ERROR_RANK);
    d->ta.ndim = 2;
    CHECK_OK(bundle.table, bundle.table->session_destroy(session));
    CHECK_EQ(dlclose(bundle.handle), 0);
    CHECK(dlopen(arguments[0], RTLD_NOW | RTLD_NOLOAD) == NULL); /* it is really gone */
    if (i == count / 10) {
      tasks = count_entries("/proc/self/task");
      files = count_entries("/proc/self/fd");
      mappings = count_mappings();
      heap = mallinfo2().uordblks;
      pages = resident_pages();
    }
  }
  free(d);
  CHECK_EQ(count_entries("/proc/self/fd"), files);
  if (!exact) return;
  CHECK_EQ(count_entries("/proc/self/task"), tasks);
  CHECK_EQ(count_mappings(), mappings);
  CHECK(mallinfo2().uordblks <= heap);
  CHECK(resident_pages() <= pages + 16);
}

int main(int argc, char **argv) {
  static const case_t cases[] = {{"table", table},
                                 {"options", options},
                                 {"selection", selection},
                                 {"allocator", allocator},
                                 {"flaky_allocator", flaky_allocator},
                                 {"logging", logging},
                                 {"two_bundles", two_bundles},
                                 {"cycles", cycles}};
  return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
