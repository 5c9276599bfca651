/* kept.c: what backends keep on a device as long as there are sessions on it: handles of libraries, chosen algorithms.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "gpu.h"

static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

static const pk_kept_t *find(const pk_gpu_t *gpu, const pk_cuda_kept_t *kind, const void *key, uint64_t bytes) {
  const pk_kept_t *kept = atomic_load_explicit(&gpu->kept, memory_order_acquire);
  while (kept && (kept->kind != kind || kept->bytes != bytes || memcmp(kept->key, key, bytes))) kept = kept->next;
  return kept;
}

/* Under the lock. */
static int32_t make(pk_gpu_t *gpu, const pk_cuda_kept_t *kind, const void *key, uint64_t bytes, void *context,
                    void **value) {
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
  kept->next = atomic_load_explicit(&gpu->kept, memory_order_relaxed);
  atomic_store_explicit(&gpu->kept, kept, memory_order_release);
  *value = kept->value;
  return 0;
}

int32_t pk_cuda_keep(pk_cuda_t *cuda, const pk_cuda_kept_t *kind, const void *key, uint64_t bytes, void *context,
                     void **value) {
  const pk_kept_t *kept = find(cuda->gpu, kind, key, bytes);
  int32_t status = 0;
  if (!kept) {
    pthread_mutex_lock(&making);
    kept = find(cuda->gpu, kind, key, bytes); /* another thread may have been first */
    if (!kept) status = make(cuda->gpu, kind, key, bytes, context, value);
    pthread_mutex_unlock(&making);
  }
  if (kept) *value = kept->value;
  return status;
}

void pk_kept_release(pk_gpu_t *gpu) {
  pk_kept_t *kept = atomic_exchange_explicit(&gpu->kept, NULL, memory_order_relaxed);
  while (kept) {
    pk_kept_t *next = kept->next;
    kept->kind->release(kept->value);
    free(kept);
    kept = next;
  }
}
