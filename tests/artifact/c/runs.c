/* Runs the models of the bundles that it is given, or of the archive that it is linked with (-DENTRY=...): their one
 * float32 input counts from 0, in rows of a symbolic dim. Prints each path, and what the output holds. */
#include <dlfcn.h>
#include <stdio.h>

#include "packager.h"

#define ROWS 2
#define MAX_VALUES 64

static int run(const packager_bundle_v1_t *bundle) {
  const packager_tensor_info_t *infos[2] = {&bundle->inputs[0], &bundle->outputs[0]};
  float values[MAX_VALUES], results[MAX_VALUES];
  int64_t shapes[2][8];
  DLTensor tensors[2];
  const DLTensor *inputs[] = {&tensors[0]};
  DLTensor *outputs[] = {&tensors[1]};
  packager_session_t *session = NULL;
  int i, axis;
  for (i = 0; i < MAX_VALUES; i++) values[i] = (float)i;
  for (i = 0; i < 2; i++) {
    DLTensor tensor = {0};
    tensor.data = i ? results : values;
    tensor.device.device_type = kDLCPU;
    tensor.ndim = infos[i]->ndim;
    tensor.dtype = infos[i]->dtype;
    tensor.shape = shapes[i];
    for (axis = 0; axis < infos[i]->ndim; axis++)
      shapes[i][axis] = infos[i]->shape[axis] == PACKAGER_DIM_SYMBOLIC ? ROWS : infos[i]->shape[axis];
    tensors[i] = tensor;
  }
  if (bundle->session_create(NULL, &session)) return 1;
  if (bundle->session_run(session, inputs, 1, outputs, 1, NULL)) return 2;
  bundle->session_destroy(session);
  for (i = 0; i < (int)(shapes[1][0] * shapes[1][1]); i++) printf("%a ", (double)results[i]);
  printf("\n");
  return 0;
}

#ifdef ENTRY
const packager_bundle_v1_t *ENTRY(void);
int main(void) { return run(ENTRY()); }
#else
int main(int argc, char **argv) {
  int i;
  for (i = 1; i < argc; i++) {
    void *library;
    const packager_bundle_v1_t *(*entry)(void);
    printf("%s\n", argv[i]);
    fflush(stdout);
    library = dlopen(argv[i], RTLD_NOW | RTLD_LOCAL);
    if (!library) return fprintf(stderr, "%s\n", dlerror()), 3;
    *(void **)&entry = dlsym(library, PACKAGER_ENTRY_SYMBOL);
    if (!entry || run(entry())) return 4;
    dlclose(library);
  }
  return 0;
}
#endif
