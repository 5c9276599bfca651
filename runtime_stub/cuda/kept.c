/* kept.c: what backends keep on a device as long as there are sessions on it, or for one session: handles of libraries,
 * chosen algorithms, counters of kernels. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

static const pk_kept_t *find(const pk_kept_t *kept, const pk_cuda_kept_t *kind, const void *key, uint64_t bytes) {
  while (kept && (kept->kind != kind || kept->bytes != bytes || memcmp(kept->key, key, bytes))) kept = kept->next;
  return kept;
}

static int32_t make(const pk_cuda_kept_t *kind, const void *key, uint64_t bytes, void *context, pk_kept_t **made) {
  pk_kept_t *kept = malloc(sizeof *kept + bytes);
  if (!kept) return PK_NO_MEMORY;
  int32_t status = kind->make(key, context, &kept->value);
  if (status) {
    free(kept);
    return status;
  }
  kept->kind = kind;
  kept->bytes = bytes;
  memcpy(kept->key, key, bytes);
  *made = kept;
  return 0;
}

static void release(pk_kept_t *kept) {
  while (kept) {
    pk_kept_t *next = kept->next;
    kept->kind->release(kept->value);
    free(kept);
    kept = next;
  }
}

/* Under the lock. */
static int32_t make_shared(pk_gpu_t *gpu, const pk_cuda_kept_t *kind, const void *key, uint64_t bytes, void *context,
                           const pk_kept_t **found) {
  pk_kept_t *newest = atomic_load_explicit(&gpu->kept, memory_order_relaxed), *made;
  *found = find(newest, kind, key, bytes); /* another thread may have been first */
  if (*found) return 0;
  int32_t status = make(kind, key, bytes, context, &made);
  if (status) return status;
  made->next = newest;
  atomic_store_explicit(&gpu->kept, made, memory_order_release);
  *found = made;
  return 0;
}

int32_t pk_cuda_keep(pk_cuda_t *cuda, const pk_cuda_kept_t *kind, const void *key, uint64_t bytes, void *context,
                     void **value) {
  const pk_kept_t *kept = find(atomic_load_explicit(&cuda->gpu->kept, memory_order_acquire), kind, key, bytes);
  int32_t status = 0;
  if (!kept) {
    pthread_mutex_lock(&making);
    status = make_shared(cuda->gpu, kind, key, bytes, context, &kept);
    pthread_mutex_unlock(&making);
  }
  if (!status) *value = kept->value;
  return status;
}

int32_t pk_cuda_keep_own(pk_cuda_t *cuda, const pk_cuda_kept_t *kind, const void *key, uint64_t bytes, void *context,
                         void **value) {
  const pk_kept_t *kept = find(cuda->kept, kind, key, bytes);
  if (!kept) {
    pk_kept_t *made;
    int32_t status = make(kind, key, bytes, context, &made);
    if (status) return status;
    made->next = cuda->kept;
    kept = cuda->kept = made;
  }
  *value = kept->value;
  return 0;
}

/* Also while the run is captured: nothing of this is a part of it. */
static CUresult make_counters(pk_cuda_t *cuda) {
  CUstream stream = cuda->gpu->uploads;
  CUresult result = pk_driver.cuMemAlloc(&cuda->counters, PK_CUDA_COUNTER_BYTES);
  if (result) return result;
  result = pk_driver.cuMemsetD8Async(cuda->counters, 0, PK_CUDA_COUNTER_BYTES, stream);
  if (!result) result = pk_driver.cuStreamSynchronize(stream);
  if (!result) return 0;
  pk_driver.cuMemFree(cuda->counters);
  cuda->counters = 0;
  return result;
}

int32_t pk_cuda_counters(pk_cuda_t *cuda, void **counters) {
  if (!cuda->counters) {
    int mode = pk_relax_captures();
    CUresult result = make_counters(cuda);
    pk_restore_captures(mode);
    if (result) return pk_fail_launch(cuda, PK_COPY, result);
  }
  *counters = (void *)(uintptr_t)cuda->counters;
  return 0;
}

void pk_kept_release(pk_gpu_t *gpu) { release(atomic_exchange_explicit(&gpu->kept, NULL, memory_order_relaxed)); }

void pk_kept_release_own(pk_cuda_t *cuda) {
  release(cuda->kept);
  if (cuda->counters) pk_driver.cuMemFree(cuda->counters);
}
