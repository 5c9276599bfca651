/* real.c: what the code of the tensorrt backend does with a real library and no GPU: a runtime is made and destroyed,
 * or refused; an engine is refused. Argument: the library. Prints its version, then the status of each function and
 * what the error says. */
#include "session.h"

extern const pk_library_t LIBRARY;
int32_t engine_junk(pk_cuda_t *cuda, const void *x, void *y, void *workspace);
int32_t engine_real(pk_cuda_t *cuda, const void *x, void *y, void *workspace);

int main(int argc, char **argv) {
  static _Alignas(256) char workspace[4096], x[256], y[256];
  if (argc < 2 || !open_library(argv[1], &LIBRARY)) return 0;
  int32_t (*const functions[])(pk_cuda_t *, const void *, void *, void *) = {engine_junk, engine_real};
  for (int turn = 0; turn < 2; ++turn) {
    pk_cuda_t cuda = {.preparing = turn};
    for (int i = 0; i < 2; ++i) {
      const int32_t status = functions[i](&cuda, x, y, workspace);
      printf("%d %s\n", status, cuda.said);
    }
    release(&cuda.own);
    release(&shared);
  }
  return 0;
}
