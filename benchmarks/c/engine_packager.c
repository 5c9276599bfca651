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

/* The kernel of a model of one unary operator, linked into a library of its own. */
static const char *kernel_path, *kernel_symbol;
static int32_t (*kernel)(const void *, void *);
static const void *kernel_input;
static void *kernel_output;

static void kernel_open(const char *const *arguments, int32_t thread_count) {
  kernel_path = arguments[0];
  kernel_symbol = arguments[1];
  if (thread_count != 1) fail("a kernel is measured with one thread");
}

static void kernel_load(void) { symbol(library(kernel_path, RTLD_NOW | RTLD_LOCAL), kernel_symbol, &kernel); }

static void kernel_create(tensors_t *tensors) {
  if (tensors->num_outputs != 1 || tensors->num_inputs != 1) fail("the kernel has to have one input and one output");
  kernel_input = tensors->inputs[0].view.data;
  kernel_output = tensors->outputs[0].view.data;
}

static void kernel_run(void) {
  if (kernel(kernel_input, kernel_output)) fail("the kernel failed");
}

const engine_t kernel_engine = {"kernel", 2, kernel_open, kernel_load, kernel_create, kernel_run};
