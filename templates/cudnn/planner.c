/* planner.c: runs where a bundle is built, with cuDNN and no GPU: which engines take which problems on a device.
 *
 *     planner DRIVER LIBCUBLASLT LIBCUDNN DEVICE.json CANDIDATES PROBLEMS > plans
 *
 * DRIVER stands for libcuda.so.1 where there is none. A problem is a line: the numbers of a pk_cudnn_conv_t in the
 * order of its fields. For each the output has a line: the plans, best first, with `;` between them, each an engine
 * followed by knob=value, separated by spaces; nothing where no engine takes the problem. The first line is the
 * library's version, as cudnnGetVersion packs it. */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>

#include "heuristics.h"

static int fail(const char *what) {
  fprintf(stderr, "%s\n", what);
  return 1;
}

static int open_library(const char *driver, const char *cublaslt, const char *cudnn) {
  if (!dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) && !dlopen(driver, RTLD_NOW | RTLD_LOCAL)) return fail(dlerror());
  /* cuDNN ends the process where it does not find cuBLASLt. */
  if (!dlopen(cublaslt, RTLD_NOW | RTLD_LOCAL)) return fail(dlerror());
  void *library = dlopen(cudnn, RTLD_NOW | RTLD_LOCAL);
  if (!library) return fail(dlerror());
  static const char *const names[] = {
#define PK_NAME(name, result, parameters) #name,
      PK_CUDNN_FUNCTIONS(PK_NAME)
#undef PK_NAME
  };
  for (int i = 0; i < PK_NUM_CUDNN_FUNCTIONS; ++i) {
    if (!(pk_cudnn_functions.all[i] = dlsym(library, names[i]))) return fail(dlerror());
  }
  return 0;
}

static int describe(const char *path, pk_cudnn_scope_t *scope, pk_cudnn_place_t *place) {
  static char text[1 << 14];
  FILE *file = fopen(path, "rb");
  if (!file) return fail(path);
  const size_t bytes = fread(text, 1, sizeof text - 1, file);
  fclose(file);
  place->description = pk_cudnn_create(scope, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
  pk_cudnn_set(scope, place->description, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
               (int64_t)bytes + 1, text);
  pk_cudnn_finalize(scope, place->description);
  return scope->status ? fail("the library refuses the description of the device") : 0;
}

static int read_numbers(FILE *file, int64_t *numbers, int count) {
  for (int i = 0; i < count; ++i) {
    if (fscanf(file, "%" SCNd64, &numbers[i]) != 1) return i ? -1 : 0;
  }
  return 1;
}

/* Returns 1, or 0 at the end. */
static int read_problem(FILE *file, pk_cudnn_conv_t *conv) {
  int64_t wide[4 + 7 * PK_CUDNN_MAX_AXES + 1], narrow[8];
  int found = read_numbers(file, wide, sizeof wide / sizeof *wide);
  if (found == 1 && read_numbers(file, narrow, 8) != 1) found = -1;
  if (found != 1) return found;
  int32_t flags[8];
  for (int i = 0; i < 8; ++i) flags[i] = (int32_t)narrow[i];
  memcpy(conv, wide, sizeof wide);
  memcpy((char *)conv + sizeof wide, flags, sizeof flags);
  return 1;
}

/* Whether a session can make the plan from what is written of it. */
static int can_restore(const pk_cudnn_conv_t *conv, const pk_cudnn_place_t *place, cudnnBackendDescriptor_t graph,
                       const pk_cudnn_choice_t *choice) {
  pk_cudnn_scope_t scope = {0, 0, {NULL}};
  int64_t workspace = 0;
  const int can = pk_cudnn_restore(&scope, conv, place, graph, choice, &workspace) != NULL;
  pk_cudnn_destroy_to(&scope, 0);
  return can;
}

static void write_choice(const pk_cudnn_choice_t *choice) {
  printf("%" PRId32, choice->engine);
  for (int32_t i = 0; i < choice->num_knobs; ++i) {
    printf(" %" PRId32 "=%" PRId32, choice->knobs[i][0], choice->knobs[i][1]);
  }
}

int main(int argc, char **argv) {
  static pk_cudnn_choice_t choices[PK_CUDNN_MAX_ANSWERS];
  pk_cudnn_scope_t scope = {0, 0, {NULL}};
  pk_cudnn_place_t place = {NULL, NULL};
  pk_cudnn_conv_t conv;
  int found;
  if (argc != 7) return fail("DRIVER LIBCUBLASLT LIBCUDNN DEVICE.json CANDIDATES PROBLEMS");
  if (open_library(argv[1], argv[2], argv[3]) || describe(argv[4], &scope, &place)) return 1;
  FILE *problems = fopen(argv[6], "r");
  if (!problems) return fail(argv[6]);
  printf("%zu\n", DNN.cudnnGetVersion());
  while ((found = read_problem(problems, &conv)) == 1) {
    pk_cudnn_scope_t parts = {0, 0, {NULL}};
    cudnnBackendDescriptor_t graph = pk_cudnn_graph(&parts, &conv, &place);
    const int32_t asked = atoi(argv[5]) < PK_CUDNN_MAX_ANSWERS ? atoi(argv[5]) : PK_CUDNN_MAX_ANSWERS;
    const int32_t count = parts.status ? 0 : pk_cudnn_ask(&conv, &place, graph, asked, choices);
    int written = 0;
    for (int32_t i = 0; i < count; ++i) {
      if (!can_restore(&conv, &place, graph, &choices[i])) continue;
      if (written++) printf(" ; ");
      write_choice(&choices[i]);
    }
    printf("\n");
    pk_cudnn_destroy_to(&parts, 0);
  }
  pk_cudnn_destroy_to(&scope, 0);
  fclose(problems);
  return found ? fail("a problem lacks numbers") : 0;
}
