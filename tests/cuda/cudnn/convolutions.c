/* convolutions.c: sessions of several threads that make and execute plans by the code of the cudnn backend, with the
 * stand-in for the library and next to nothing of packager's runtime: for sanitizers. Prints what the library has left.
 */
#include <pthread.h>
#include <stdio.h>

#include "conv.h"

#define NUM_THREADS 4
#define NUM_TURNS 6
#define MAX_KEPT 8

struct pk_cuda {
  pk_cuda_device_t device;
  const pk_cuda_kept_t *kinds[MAX_KEPT];
  void *values[MAX_KEPT];
  char keys[MAX_KEPT][sizeof(pk_cudnn_key_t)];
  uint64_t bytes[MAX_KEPT];
  int count;
};

const char *fake_state(void);

const pk_cuda_device_t *pk_cuda_device(const pk_cuda_t *cuda) { return &cuda->device; }

int32_t pk_cuda_is_preparing(const pk_cuda_t *cuda) { return cuda->count == 0; }

int32_t pk_cuda_enqueue(pk_cuda_t *cuda, pk_cuda_enqueue_fn *enqueue, const void *problem, uint64_t bytes) {
  (void)bytes;
  return enqueue(cuda, NULL, problem);
}

int32_t pk_cuda_keep_own(pk_cuda_t *cuda, const pk_cuda_kept_t *kind, const void *key, uint64_t bytes, void *context,
                         void **value) {
  for (int i = 0; i < cuda->count; ++i) {
    if (cuda->kinds[i] != kind || cuda->bytes[i] != bytes || memcmp(cuda->keys[i], key, bytes)) continue;
    *value = cuda->values[i];
    return 0;
  }
  const int32_t status = kind->make(key, context, value);
  if (status) return status;
  const int i = cuda->count++;
  cuda->kinds[i] = kind, cuda->values[i] = *value, cuda->bytes[i] = bytes;
  memcpy(cuda->keys[i], key, bytes);
  return 0;
}

static const pk_cudnn_choice_t choices[] = {{80, 12, 2, {{2, 120}, {3, 121}}}, {90, 13, 2, {{2, 130}, {3, 131}}}};

static void fill(pk_cudnn_t *problem, int64_t batch, int32_t version) {
  memset(problem, 0, sizeof *problem);
  pk_cudnn_conv_t *conv = &problem->key.conv;
  conv->batch = batch, conv->channels = 2, conv->filters = 3, conv->groups = 1, conv->axes = 2;
  for (int axis = 0; axis < 2; ++axis) {
    conv->image[axis] = conv->result[axis] = 4, conv->window[axis] = 3;
    conv->before[axis] = conv->after[axis] = conv->stride[axis] = conv->dilation[axis] = 1;
  }
  conv->workspace_bytes = 1 << 20, conv->last = conv->weights_last = conv->bias = conv->residual = 1;
  conv->activation = CUDNN_POINTWISE_RELU_FWD;
  problem->key.choices = choices, problem->key.num_choices = 2, problem->key.planned_batch = 1;
  problem->key.version = version;
}

/* Plans of the build, of another batch, of another version, and none. */
static void *run(void *result) {
  static const int32_t versions[] = {91900, 92000};
  _Alignas(16) float x[64] = {1}, w[64] = {1}, y[128], bias[4] = {1}, residual[128] = {1};
  void *workspace = aligned_alloc(16, 1 << 20);
  pk_cuda_t *cuda = calloc(1, sizeof *cuda);
  int32_t *status = result;
  if (!workspace || !cuda) abort();
  cuda->device.arch = 90;
  for (int turn = 0; turn < NUM_TURNS && !*status; ++turn) {
    pk_cudnn_t problem;
    fill(&problem, turn % 3, versions[turn % 2]);
    problem.x = x, problem.w = w, problem.bias = bias, problem.residual = residual;
    problem.y = y, problem.workspace = workspace;
    *status = pk_cudnn_conv(cuda, &problem);
  }
  for (int i = cuda->count; i-- > 0;) cuda->kinds[i]->release(cuda->values[i]);
  free(cuda);
  free(workspace);
  return NULL;
}

int main(void) {
  pthread_t threads[NUM_THREADS];
  int32_t failed[NUM_THREADS] = {0};
  int32_t version[3];
#define PK_TAKE(name, result, parameters) DNN.name = name;
#define PK_DECLARE(name, result, parameters) result name parameters;
  PK_CUDNN_FUNCTIONS(PK_DECLARE)
  PK_CUDNN_FUNCTIONS(PK_TAKE)
  pk_cudnn_version(pk_cudnn_functions.all, version);
  for (int i = 0; i < NUM_THREADS; ++i) pthread_create(&threads[i], NULL, run, &failed[i]);
  for (int i = 0; i < NUM_THREADS; ++i) pthread_join(threads[i], NULL);
  for (int i = 0; i < NUM_THREADS; ++i) printf("%d ", failed[i]);
  printf("version %d.%d %s\n", version[0], version[1], fake_state());
  return 0;
}
