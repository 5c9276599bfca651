/* host.c: runs a packager bundle from C99 with nothing but packager.h.
 *
 *     cc -std=c99 -I runtime_stub/include samples/hosts/c/host.c -o host -ldl
 *     ./host ./model.so input.f32 output.f32
 *
 * The input file holds the model's one float32 input, little-endian, row-major. Where the first extent of the input is
 * symbolic it follows from the size of the file. All outputs are written one after another.
 */
#include <dlfcn.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "packager.h"

/* Everything that main() has to give back; zero means not there yet. */
typedef struct {
  void *library;
  const packager_bundle_v1_t *bundle;
  packager_session_t *session;
  DLTensor input;
  DLTensor *outputs; /* [bundle->num_outputs] */
} host_t;

static int fail(const char *what, const char *why) {
  fprintf(stderr, "error: %s: %s\n", what, why);
  return 0;
}

/* Reports a call of the bundle that failed. */
static int check(const host_t *host, const char *call, int32_t status) {
  if (status == PACKAGER_OK) return 1;
  fprintf(stderr, "error: %s: %s: %s\n", call, host->bundle->status_name(status),
          host->session != NULL ? host->bundle->session_error(host->session) : host->bundle->thread_error());
  return 0;
}

static int is_float32(DLDataType dtype) { return dtype.code == kDLFloat && dtype.bits == 32 && dtype.lanes == 1; }

static void print_tensor(const char *role, const packager_tensor_info_t *info) {
  static const char *const names[] = {"int", "uint", "float", "", "bfloat", "", "bool"};
  const char *name = info->dtype.code < sizeof names / sizeof names[0] ? names[info->dtype.code] : "";
  int32_t axis;
  printf("%s %s: %s%d [", role, info->name, name, (int)info->dtype.bits);
  for (axis = 0; axis < info->ndim; axis++) {
    if (axis > 0) printf(", ");
    if (info->shape[axis] == PACKAGER_DIM_SYMBOLIC) {
      printf("%s", info->dims[axis]);
    } else {
      printf("%" PRId64, info->shape[axis]);
    }
  }
  printf("]\n");
}

/* Gives the tensor memory of its own for `ndim` extents. */
static int allocate_shape(DLTensor *tensor, const packager_tensor_info_t *info) {
  tensor->device.device_type = kDLCPU;
  tensor->ndim = info->ndim;
  tensor->dtype = info->dtype;
  tensor->shape = calloc((size_t)info->ndim + 1, sizeof *tensor->shape); /* + 1: a scalar has no extents */
  return tensor->shape != NULL;
}

static size_t count_elements(const DLTensor *tensor) {
  size_t count = 1;
  int32_t axis;
  for (axis = 0; axis < tensor->ndim; axis++) count *= (size_t)tensor->shape[axis];
  return count;
}

static int open_bundle(host_t *host, const char *path) {
  packager_bundle_v1_fn *entry;
  void *symbol;
  host->library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (host->library == NULL) return fail("dlopen", dlerror());
  symbol = dlsym(host->library, PACKAGER_ENTRY_SYMBOL);
  if (symbol == NULL) return fail("dlsym", dlerror());
  memcpy(&entry, &symbol, sizeof entry); /* ISO C has no cast from an object to a function pointer */
  host->bundle = entry();
  if (host->bundle->abi_version != PACKAGER_ABI_VERSION) return fail(path, "made for another version of packager.h");
  return check(host, "session_create", host->bundle->session_create(NULL, &host->session));
}

/* Reads the whole file into host->input and derives a symbolic first extent from its size. */
static int read_input(host_t *host, const char *path) {
  const packager_tensor_info_t *info = &host->bundle->inputs[0];
  DLTensor *input = &host->input;
  size_t elements = 1;
  long bytes;
  int read;
  FILE *file;
  int32_t axis;
  if (host->bundle->num_inputs != 1 || !is_float32(info->dtype))
    return fail(path, "needs a model of one float32 input");
  if (!allocate_shape(input, info)) return fail(path, "out of memory");
  for (axis = 0; axis < info->ndim; axis++) {
    if (info->shape[axis] == PACKAGER_DIM_SYMBOLIC && axis > 0) return fail(info->name, "only the first dim may vary");
    input->shape[axis] = info->shape[axis];
    if (info->shape[axis] != PACKAGER_DIM_SYMBOLIC) elements *= (size_t)info->shape[axis];
  }

  file = fopen(path, "rb");
  if (file == NULL) return fail(path, "cannot be opened");
  bytes = fseek(file, 0, SEEK_END) == 0 ? ftell(file) : -1;
  rewind(file);
  input->data = bytes > 0 ? malloc((size_t)bytes) : NULL;
  read = input->data != NULL && fread(input->data, 1, (size_t)bytes, file) == (size_t)bytes;
  fclose(file);
  if (!read) return fail(path, "is empty or cannot be read");

  if (elements == 0 || (size_t)bytes % (elements * sizeof(float)) != 0) {
    return fail(path, "its size is no multiple of that of the input");
  }
  if (info->ndim > 0 && info->shape[0] == PACKAGER_DIM_SYMBOLIC) {
    input->shape[0] = (int64_t)((size_t)bytes / (elements * sizeof(float)));
  }
  if (count_elements(input) * sizeof(float) != (size_t)bytes) return fail(path, "its size is not that of the input");
  return 1;
}

static int run(host_t *host) {
  const packager_bundle_v1_t *bundle = host->bundle;
  const DLTensor *input = &host->input;
  DLTensor **outputs;
  int32_t i;
  int done;
  host->outputs = calloc((size_t)bundle->num_outputs, sizeof *host->outputs);
  if (host->outputs == NULL) return fail("outputs", "out of memory");
  for (i = 0; i < bundle->num_outputs; i++) {
    DLTensor *output = &host->outputs[i];
    if (!allocate_shape(output, &bundle->outputs[i])) return fail("outputs", "out of memory");
    if (!check(host, "session_output_shape",
               bundle->session_output_shape(host->session, &input, 1, i, output->shape))) {
      return 0;
    }
    output->data = malloc(count_elements(output) * ((output->dtype.bits + 7u) / 8u) + 1); /* + 1: a dim may be zero */
    if (output->data == NULL) return fail("outputs", "out of memory");
  }
  outputs = malloc((size_t)bundle->num_outputs * sizeof *outputs);
  if (outputs == NULL) return fail("outputs", "out of memory");
  for (i = 0; i < bundle->num_outputs; i++) outputs[i] = &host->outputs[i];
  done = check(host, "session_run", bundle->session_run(host->session, &input, 1, outputs, bundle->num_outputs, NULL));
  free(outputs);
  return done;
}

static int write_outputs(const host_t *host, const char *path) {
  FILE *file = fopen(path, "wb");
  int written = file != NULL;
  int32_t i;
  for (i = 0; written && i < host->bundle->num_outputs; i++) {
    size_t bytes = count_elements(&host->outputs[i]) * ((host->outputs[i].dtype.bits + 7u) / 8u);
    written = fwrite(host->outputs[i].data, 1, bytes, file) == bytes;
  }
  if (file != NULL && fclose(file) != 0) written = 0;
  return written ? 1 : fail(path, "cannot be written");
}

static int release(host_t *host) {
  int released = 1;
  int32_t i;
  for (i = 0; host->outputs != NULL && i < host->bundle->num_outputs; i++) {
    free(host->outputs[i].data);
    free(host->outputs[i].shape);
  }
  free(host->outputs);
  free(host->input.data);
  free(host->input.shape);
  if (host->session != NULL) {
    released = check(host, "session_destroy", host->bundle->session_destroy(host->session));
  }
  if (released && host->library != NULL && dlclose(host->library) != 0) released = fail("dlclose", dlerror());
  return released;
}

int main(int argc, char **argv) {
  host_t host = {0};
  int done;
  int32_t i;
  if (argc != 4) {
    fprintf(stderr, "usage: %s BUNDLE INPUT OUTPUT\n", argc > 0 ? argv[0] : "host");
    return 1;
  }
  done = open_bundle(&host, argv[1]);
  if (done) {
    printf("model %s\n", host.bundle->name);
    for (i = 0; i < host.bundle->num_inputs; i++) print_tensor("input", &host.bundle->inputs[i]);
    for (i = 0; i < host.bundle->num_outputs; i++) print_tensor("output", &host.bundle->outputs[i]);
    done = read_input(&host, argv[2]) && run(&host) && write_outputs(&host, argv[3]);
  }
  if (!release(&host)) done = 0;
  return done ? 0 : 1;
}
