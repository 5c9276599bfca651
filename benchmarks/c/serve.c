/* Runs a model in one engine, when it is told to.
 *
 *     serve [-t THREADS] -i NAME:DTYPE:SHAPE FILE... -o NAME:DTYPE:SHAPE FILE... ENGINE
 *
 * Reads the inputs' data from files of this machine's byte order, loads the model, runs it once, writes the outputs to
 * files, and prints
 *     ready NANOSECONDS NANOSECONDS NANOSECONDS    to open the library, to load the model, of the first run
 * Then it answers each line
 *     run WARMUP SAMPLES CALLS
 * of its standard input with SAMPLES numbers in a line: nanoseconds of CALLS runs in a row, after WARMUP runs that are
 * not measured. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "engine.h"

static const engine_t *const engines[] = {&packager_engine, &onnxruntime_engine, &tvm_engine, &kernel_engine,
                                          &fma_engine};

void fail(const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  fputs("error: ", stderr);
  vfprintf(stderr, format, arguments);
  fputc('\n', stderr);
  va_end(arguments);
  exit(1);
}

void *library(const char *path, int flags) {
  void *handle = dlopen(path, flags);
  if (!handle) fail("%s", dlerror());
  return handle;
}

void symbol(void *handle, const char *name, void *function) {
  void *address = dlsym(handle, name);
  if (!address) fail("%s", dlerror());
  memcpy(function, &address, sizeof address);
}

static int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * (int64_t)1000000000 + time.tv_nsec;
}

/* Read NAME:DTYPE:SHAPE, the shape as 1,3,224,224, into the next of `tensors`. The text is cut up and has to stay. */
static void parse_tensor(tensor_t *tensors, int32_t *count, char *text) {
  char *rest = text;
  const char *name = strsep(&rest, ":"), *dtype = strsep(&rest, ":");
  if (*count == MAX_TENSORS || !dtype || !rest) fail("%s: not NAME:DTYPE:SHAPE, or too many tensors", text);
  tensor_t *tensor = &tensors[(*count)++];
  tensor->name = name;
  if (!strcmp(dtype, "float32")) {
    tensor->view.dtype = (DLDataType){kDLFloat, 32, 1};
  } else if (!strcmp(dtype, "int64")) {
    tensor->view.dtype = (DLDataType){kDLInt, 64, 1};
  } else {
    fail("%s: dtype is neither float32 nor int64", name);
  }
  tensor->bytes = tensor->view.dtype.bits / 8;
  for (char *extent; (extent = strsep(&rest, ",")) != NULL; tensor->view.ndim++) {
    if (tensor->view.ndim == MAX_RANK) fail("%s: more than %d axes", name, MAX_RANK);
    tensor->shape[tensor->view.ndim] = atoll(extent);
    tensor->bytes *= (uint64_t)atoll(extent);
  }
  tensor->view.device.device_type = kDLCPU;
  tensor->view.shape = tensor->shape;
  if (posix_memalign(&tensor->view.data, 64, tensor->bytes)) fail("out of memory");
}

/* Read NAME=ARGUMENT[,ARGUMENT]... */
static const engine_t *parse_engine(const char **arguments, char *text) {
  const char *name = strsep(&text, "=");
  const engine_t *engine = NULL;
  for (size_t i = 0; i < sizeof engines / sizeof *engines; ++i) {
    if (!strcmp(name, engines[i]->name)) engine = engines[i];
  }
  if (!engine) fail("there is no engine %s", name);
  int32_t count = 0;
  for (char *argument; count < MAX_ARGUMENTS && (argument = strsep(&text, ",")) != NULL;) arguments[count++] = argument;
  if (count != engine->num_arguments) fail("%s takes %d argument(s)", name, engine->num_arguments);
  return engine;
}

static void transfer(const tensor_t *tensor, const char *path, int writing) {
  FILE *file = fopen(path, writing ? "wb" : "rb");
  if (!file) fail("%s cannot be opened", path);
  uint64_t done =
      writing ? fwrite(tensor->view.data, 1, tensor->bytes, file) : fread(tensor->view.data, 1, tensor->bytes, file);
  if (done != tensor->bytes || fclose(file)) fail("%s: not %llu bytes", path, (unsigned long long)tensor->bytes);
}

static void answer(void (*run)(void), int64_t warmup, int64_t samples, int64_t calls) {
  int64_t *taken = malloc(sizeof *taken * (size_t)(samples + 1));
  if (!taken) fail("out of memory");
  for (int64_t i = 0; i < warmup; ++i) run();
  for (int64_t i = 0; i < samples; ++i) {
    int64_t start = now();
    for (int64_t call = 0; call < calls; ++call) run();
    taken[i] = now() - start;
  }
  for (int64_t i = 0; i < samples; ++i) printf("%lld ", (long long)taken[i]);
  printf("\n");
  fflush(stdout);
  free(taken);
}

int main(int argc, char **argv) {
  static tensors_t tensors;
  const char *input_files[MAX_TENSORS], *output_files[MAX_TENSORS];
  int32_t threads = 1;
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* who started it may be killed while it is stopped */
  for (int option; (option = getopt(argc, argv, "+t:i:o:")) != -1;) {
    if (option == 't') threads = atoi(optarg);
    if (option == '?') fail("unknown option");
    if (option == 't') continue;
    if (optind == argc) fail("%s: no file", optarg);
    tensor_t *group = option == 'i' ? tensors.inputs : tensors.outputs;
    int32_t *count = option == 'i' ? &tensors.num_inputs : &tensors.num_outputs;
    parse_tensor(group, count, optarg);
    (option == 'i' ? input_files : output_files)[*count - 1] = argv[optind++];
  }
  if (optind + 1 != argc) fail("expected one engine");
  const char *arguments[MAX_ARGUMENTS];
  const engine_t *engine = parse_engine(arguments, argv[optind]);
  for (int32_t i = 0; i < tensors.num_inputs; ++i) transfer(&tensors.inputs[i], input_files[i], 0);
  for (int32_t i = 0; i < tensors.num_outputs; ++i) {
    memset(tensors.outputs[i].view.data, 0xff, tensors.outputs[i].bytes); /* NaN: an engine that writes nothing shows */
  }

  int64_t start = now();
  engine->open(arguments, threads);
  int64_t opened = now();
  engine->load();
  engine->create(&tensors);
  int64_t loaded = now();
  engine->run();
  int64_t end = now();
  for (int32_t i = 0; i < tensors.num_outputs; ++i) transfer(&tensors.outputs[i], output_files[i], 1);
  printf("ready %lld %lld %lld\n", (long long)(opened - start), (long long)(loaded - opened),
         (long long)(end - loaded));
  fflush(stdout);
  for (long long warmup, samples, calls; scanf(" run %lld %lld %lld", &warmup, &samples, &calls) == 3;) {
    answer(engine->run, warmup, samples, calls);
  }
  return 0;
}
