/* TVM's Relax virtual machine through the C API of tvm-ffi, whose header its wheel ships.
 *
 * A run calls the packed function "main", as a C++ program does, and copies the one output, which the machine
 * allocates from its pool, to where the other engines write theirs. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <tvm/ffi/c_api.h>
/* Only now: packager.h then uses the definitions of DLPack that the header above brought. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine.h"

enum { POOLED_ALLOCATOR = 2 };

static int (*get_global)(const TVMFFIByteArray *name, TVMFFIObjectHandle *function);
static int (*call_function)(TVMFFIObjectHandle function, TVMFFIAny *arguments, int32_t count, TVMFFIAny *result);
static int (*from_dlpack)(DLManagedTensor *tensor, int32_t alignment, int32_t contiguous, TVMFFIObjectHandle *result);
static int (*release)(TVMFFIObjectHandle object);
static void (*take_error)(TVMFFIObjectHandle *error);

static const char *path;
static TVMFFIAny executable;
static TVMFFIObjectHandle main_function;
static DLManagedTensor views[MAX_TENSORS];
static TVMFFIAny inputs[MAX_TENSORS];
static int32_t num_inputs;
static tensor_t *output;

/* What an object holds follows its header. */
static const void *content(TVMFFIObjectHandle object) { return (const TVMFFIObject *)object + 1; }

static void check(int status, const char *what) {
  TVMFFIObjectHandle error = NULL;
  if (!status) return;
  take_error(&error);
  if (!error) fail("TVM: %s", what);
  fail("TVM: %s: %s", what, ((const TVMFFIErrorCell *)content(error))->message.data);
}

static TVMFFIAny text(const char *value) { return (TVMFFIAny){.type_index = kTVMFFIRawStr, .v_c_str = value}; }
static TVMFFIAny integer(int64_t value) { return (TVMFFIAny){.type_index = kTVMFFIInt, .v_int64 = value}; }

static TVMFFIObjectHandle global(const char *name) {
  TVMFFIByteArray bytes = {name, strlen(name)};
  TVMFFIObjectHandle function;
  check(get_global(&bytes, &function), name);
  return function;
}

static TVMFFIObjectHandle member(TVMFFIAny module, const char *name) {
  TVMFFIAny result = {0}, arguments[] = {module, text(name), {.type_index = kTVMFFIBool, .v_int64 = 1}};
  check(call_function(global("ffi.ModuleGetFunction"), arguments, 3, &result), name);
  if (result.type_index != kTVMFFIFunction) fail("TVM: the module has no function %s", name);
  return result.v_obj;
}

static void open(const char *const *arguments, int32_t threads) {
  char count[16];
  snprintf(count, sizeof count, "%d", (int)threads);
  setenv("TVM_NUM_THREADS", count, 1);
  void *ffi = library(arguments[0], RTLD_NOW | RTLD_GLOBAL);
  symbol(ffi, "TVMFFIFunctionGetGlobal", &get_global);
  symbol(ffi, "TVMFFIFunctionCall", &call_function);
  symbol(ffi, "TVMFFITensorFromDLPack", &from_dlpack);
  symbol(ffi, "TVMFFIObjectDecRef", &release);
  symbol(ffi, "TVMFFIErrorMoveFromRaised", &take_error);
  library(arguments[1], RTLD_NOW | RTLD_GLOBAL);
  path = arguments[2];
}

static void load(void) {
  TVMFFIAny argument = text(path);
  check(call_function(global("ffi.ModuleLoadFromFile"), &argument, 1, &executable), path);
}

static void keep(DLManagedTensor *tensor) { (void)tensor; } /* the program owns the memory */

static void create(tensors_t *tensors) {
  TVMFFIAny machine = {0}, ignored = {0}, device[] = {integer(kDLCPU), integer(0), integer(POOLED_ALLOCATOR)};
  check(call_function(member(executable, "vm_load_executable"), NULL, 0, &machine), "vm_load_executable");
  check(call_function(member(machine, "vm_initialization"), device, 3, &ignored), "vm_initialization");
  main_function = member(machine, "main");
  if (tensors->num_outputs != 1) fail("TVM is measured on models of one output");
  num_inputs = tensors->num_inputs;
  output = &tensors->outputs[0];
  for (int32_t i = 0; i < num_inputs; ++i) {
    views[i] = (DLManagedTensor){.dl_tensor = tensors->inputs[i].view, .deleter = keep};
    inputs[i].type_index = kTVMFFITensor;
    check(from_dlpack(&views[i], 64, 1, (TVMFFIObjectHandle *)&inputs[i].v_obj), "from_dlpack");
  }
}

static void run(void) {
  TVMFFIAny result = {0};
  check(call_function(main_function, inputs, num_inputs, &result), "main");
  if (result.type_index != kTVMFFITensor) fail("TVM: main returns no tensor");
  memcpy(output->view.data, ((const DLTensor *)content(result.v_obj))->data, output->bytes);
  release(result.v_obj);
}

const engine_t tvm_engine = {"tvm", 3, open, load, create, run};
