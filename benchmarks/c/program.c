/* program.c: what the programs that run engines share: failing, libraries, the clock, the command line.
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

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

int64_t now(void) {
  struct timespec time;
  clock_gettime(CLOCK_MONOTONIC, &time);
  return time.tv_sec * (int64_t)1000000000 + time.tv_nsec;
}

static void fill(tensor_t *tensor) {
  uint32_t state = 1;
  uint64_t count = tensor->bytes / (tensor->view.dtype.bits / 8);
  for (uint64_t i = 0; i < count; ++i) {
    state = state * 1664525 + 1013904223;
    if (tensor->view.dtype.code == kDLInt) {
      ((int64_t *)tensor->view.data)[i] = 1; /* valid as a token and as a mask */
    } else {
      ((float *)tensor->view.data)[i] = (float)(state >> 8) / (1 << 23) - 1;
    }
  }
}

void parse_tensor(tensor_t *tensors, int32_t *count, char *text) {
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
  fill(tensor);
}

void parse_engine(entrant_t *entrant, char *text) {
  const char *name = strsep(&text, "=");
  for (size_t i = 0; i < sizeof engines / sizeof *engines; ++i) {
    if (!strcmp(name, engines[i]->name)) entrant->engine = engines[i];
  }
  if (!entrant->engine) fail("there is no engine %s", name);
  int32_t count = 0;
  for (char *argument; count < MAX_ARGUMENTS && (argument = strsep(&text, ",")) != NULL;) {
    entrant->arguments[count++] = argument;
  }
  if (count != entrant->engine->num_arguments) fail("%s takes %d argument(s)", name, entrant->engine->num_arguments);
}
