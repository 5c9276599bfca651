/* A bundle through its C ABI, and a bare kernel of one. SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <string.h>

#include "engine.h"

static const char *path;
static int32_t threads;
static const packager_bundle_v1_t *bundle;
static packager_session_t *session;
static const DLTensor *inputs[MAX_TENSORS];
static DLTensor *outputs[MAX_TENSORS];
static int32_t num_inputs, num_outputs;

static void open(const char *const *arguments, int32_t thread_count) {
  path = arguments[0];
  threads = thread_count;
}

static void load(void) {
  packager_bundle_v1_fn *entry;
  symbol(library(path, RTLD_NOW | RTLD_LOCAL), PACKAGER_ENTRY_SYMBOL, &entry);
  bundle = entry();
}

static void create(tensors_t *tensors) {
  if (bundle->set_threads(threads) || bundle->session_create(NULL, &session)) fail("%s", bundle->thread_error());
  num_inputs = tensors->num_inputs;
  num_outputs = tensors->num_outputs;
  for (int32_t i = 0; i < num_inputs; ++i) inputs[i] = &tensors->inputs[i].view;
  for (int32_t i = 0; i < num_outputs; ++i) outputs[i] = &tensors->outputs[i].view;
}

static void run(void) {
  if (bundle->session_run(session, inputs, num_inputs, outputs, num_outputs, NULL)) {
    fail("%s", bundle->session_error(session));
  }
}

const engine_t packager_engine = {"packager", 1, open, load, create, run};

/* The kernel of a model of one operator, linked into a library of its own. */
typedef int32_t unary_fn(const void *, void *);
typedef int32_t binary_fn(const void *, const void *, void *);
static const char *kernel_path, *kernel_symbol;
static unary_fn *unary;
static binary_fn *binary;
static const void *kernel_inputs[2];
static void *kernel_output;

static void kernel_open(const char *const *arguments, int32_t thread_count) {
  kernel_path = arguments[0];
  kernel_symbol = arguments[1];
  if (thread_count != 1) fail("a kernel is measured with one thread");
}

static void kernel_load(void) {}

static void kernel_create(tensors_t *tensors) {
  void *handle = library(kernel_path, RTLD_NOW | RTLD_LOCAL);
  if (tensors->num_outputs != 1 || tensors->num_inputs > 2) fail("the kernel has to have 1 or 2 inputs and 1 output");
  if (tensors->num_inputs == 1) {
    symbol(handle, kernel_symbol, &unary);
  } else {
    symbol(handle, kernel_symbol, &binary);
  }
  for (int32_t i = 0; i < tensors->num_inputs; ++i) kernel_inputs[i] = tensors->inputs[i].view.data;
  kernel_output = tensors->outputs[0].view.data;
}

static void kernel_run(void) {
  int32_t status =
      unary ? unary(kernel_inputs[0], kernel_output) : binary(kernel_inputs[0], kernel_inputs[1], kernel_output);
  if (status) fail("the kernel failed");
}

const engine_t kernel_engine = {"kernel", 2, kernel_open, kernel_load, kernel_create, kernel_run};
