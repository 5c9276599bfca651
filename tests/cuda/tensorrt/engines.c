/* engines.c: sessions of several threads that run engines by the code of the tensorrt backend, with the stand-in for
 * the library: for sanitizers. Argument: the library. Prints its version, what was wrong, and what the library has
 * left.
 */
#include "session.h"

#define NUM_THREADS 4
#define NUM_WEIGHTS 3
#define MOST 64
#define CHECK(condition)                                                                               \
  do {                                                                                                 \
    if (!(condition)) fprintf(stderr, "line %d: %s: %s\n", __LINE__, #condition, cuda->said), abort(); \
  } while (0)

extern const pk_library_t LIBRARY;
int32_t engine_static(pk_cuda_t *cuda, const void *x, void *y, void *workspace);
int32_t engine_sized(pk_cuda_t *cuda, const void *a, const void *b, void *y, const void *w, void *workspace, int64_t n);
int32_t engine_large(pk_cuda_t *cuda, const void *x, void *y, void *workspace);
int32_t engine_pending(pk_cuda_t *cuda, const void *x, void *y, void *workspace);
int32_t engine_junk(pk_cuda_t *cuda, const void *x, void *y, void *workspace);
int32_t engine_other(pk_cuda_t *cuda, const void *x, void *y, void *workspace);
int32_t engine_elsewhere(pk_cuda_t *cuda, const void *x, void *y, void *workspace);

static const float weights[NUM_WEIGHTS] = {1, 2, 3};

typedef struct {
  _Alignas(256) char workspace[1 << 14];
  _Alignas(256) float a[2 * MOST], b[2 * MOST], y[2 * MOST];
} memory_t;

static int is_sum(const float *y, const float *a, const float *b, const float *w, int64_t count) {
  for (int64_t i = 0; i < count; ++i) {
    if (y[i] != (a[i] + (b ? b[i] : 0)) * w[i % NUM_WEIGHTS]) return 0;
  }
  return 1;
}

/* Addresses that are aligned, and not; sizes that come again, too large ones, and none. */
static void run_sizes(pk_cuda_t *cuda, memory_t *m, const float *w) {
  static const int64_t sizes[] = {3, 5, 3, MOST, 1, 5};
  for (int i = 0; i < 6; ++i) {
    const int64_t n = sizes[i], shift = i % 3 * 4;
    memset(m->y, 0, sizeof m->y);
    CHECK(!engine_sized(cuda, m->a + shift, m->b, m->y + shift, w, m->workspace + 16 * shift, n));
    CHECK(is_sum(m->y + shift, m->a + shift, m->b, w, n));
    CHECK(m->y[shift + n] == 0);
  }
  CHECK(!engine_sized(cuda, m->a, m->b, m->y, w, m->workspace, 0));
  CHECK(engine_sized(cuda, m->a, m->b, m->y, w, m->workspace, MOST + 1) == 7);
  CHECK(strstr(cuda->said, "cannot take input 'a' of this size: IExecutionContext::setInputShape: Error Code 3"));
}

static void swap(pk_cuda_t *cuda, memory_t *m) {
  float own[NUM_WEIGHTS] = {5, 7, 11};
  ++cuda->number;
  run_sizes(cuda, m, own);
  own[1] = 13; /* at the same address */
  ++cuda->number;
  run_sizes(cuda, m, own);
  ++cuda->number;
  run_sizes(cuda, m, weights);
}

static void fail(pk_cuda_t *cuda, memory_t *m) {
  CHECK(engine_pending(cuda, m->a, m->y, m->workspace) == 1);
  CHECK(strstr(cuda->said, "engine 333333333333 is pending: `packager finalize` builds it"));
  CHECK(engine_junk(cuda, m->a, m->y, m->workspace) == 4);
  CHECK(strstr(cuda->said, "engine 444444444444 is refused: deserializeCudaEngine: Error Code 1: Serialization"));
  CHECK(engine_other(cuda, m->a, m->y, m->workspace) == 5);
  CHECK(strstr(cuda->said, "engine 555555555555 has no output 'z' of the function's type and shape"));
  CHECK(engine_elsewhere(cuda, m->a, m->y, m->workspace) == 4);
  CHECK(strstr(cuda->said, "engine 666666666666 is for GPUs of sm_80, not of sm_90"));
}

static void *run(void *argument) {
  (void)argument;
  pk_cuda_t *cuda = calloc(1, sizeof *cuda);
  memory_t *m = aligned_alloc(256, sizeof *m);
  if (!cuda || !m) abort();
  memset(m, 0, sizeof *m);
  for (int i = 0; i < 2 * MOST; ++i) m->a[i] = (float)i, m->b[i] = 100;
  cuda->preparing = 1;
  CHECK(!engine_sized(cuda, m->a, m->b, m->y, weights, m->workspace, MOST));
  CHECK(!engine_static(cuda, m->a, m->y, m->workspace));
  CHECK(m->y[1] == 0);
  CHECK(engine_pending(cuda, m->a, m->y, m->workspace) == 1);
  cuda->preparing = 0;
  for (int turn = 0; turn < 2; ++turn) {
    CHECK(!engine_static(cuda, m->a, m->y, m->workspace));
    CHECK(is_sum(m->y, m->a, NULL, weights, 6));
    CHECK(!engine_large(cuda, m->a, m->y, m->workspace));
    CHECK(is_sum(m->y, m->a, NULL, weights, 6));
    run_sizes(cuda, m, weights);
    fail(cuda, m);
    swap(cuda, m);
  }
  release(&cuda->own);
  free(cuda);
  free(m);
  return NULL;
}

int main(int argc, char **argv) {
  originals = (const char *)weights, original_bytes = sizeof weights;
  void *library = argc > 1 ? open_library(argv[1], &LIBRARY) : NULL;
  if (!library) return 0;
  pthread_t threads[NUM_THREADS];
  for (int i = 0; i < NUM_THREADS; ++i) pthread_create(&threads[i], NULL, run, NULL);
  for (int i = 0; i < NUM_THREADS; ++i) pthread_join(threads[i], NULL);
  release(&shared);
  const char *(*state)(void);
  void *symbol = dlsym(library, "fake_state");
  memcpy(&state, &symbol, sizeof state);
  printf("%s\n", state());
  return 0;
}
