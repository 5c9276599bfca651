/* Runs the bundle of a table: reads 4 row numbers from stdin and writes the rows, of 1024 bytes, to stdout. */
#include <dlfcn.h>
#include <stdio.h>

#include "packager.h"

int main(int argc, char **argv) {
  void *library = dlopen(argv[argc - 1], RTLD_NOW | RTLD_LOCAL);
  if (!library) return fprintf(stderr, "%s\n", dlerror()), 1;
  packager_bundle_v1_fn *entry;
  *(void **)&entry = dlsym(library, PACKAGER_ENTRY_SYMBOL);
  packager_session_t *session;
  if (entry()->session_create(NULL, &session)) return fprintf(stderr, "%s\n", entry()->thread_error()), 1;
  static int64_t rows[4];
  static uint8_t taken[4 * 1024];
  int64_t rows_shape[] = {4}, taken_shape[] = {4, 1024};
  if (fread(rows, sizeof rows, 1, stdin) != 1) return 1;
  DLTensor in = {rows, {kDLCPU, 0}, 1, {kDLInt, 64, 1}, rows_shape, NULL, 0};
  DLTensor out = {taken, {kDLCPU, 0}, 2, {kDLUInt, 8, 1}, taken_shape, NULL, 0};
  const DLTensor *inputs[] = {&in};
  DLTensor *outputs[] = {&out};
  if (entry()->session_run(session, inputs, 1, outputs, 1, NULL))
    return fprintf(stderr, "%s\n", entry()->session_error(session)), 1;
  return fwrite(taken, sizeof taken, 1, stdout) != 1;
}
