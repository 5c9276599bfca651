/* What the code of a backend that calls a library needs of a bundle's runtime, without a bundle: each call goes to the
 * library at once, in the stream that the caller gives, and what is kept is kept for the process. For one thread. */
#include <stdlib.h>
#include <string.h>

#include "packager_cuda.h"

struct pk_cuda {
  void *stream;
  pk_cuda_device_t device;
};

typedef struct kept {
  const pk_cuda_kept_t *kind;
  void *key, *value;
  uint64_t bytes;
  struct kept *next;
} kept_t;

static kept_t *kept;

const pk_cuda_device_t *pk_cuda_device(const pk_cuda_t *cuda) { return &cuda->device; }

int32_t pk_cuda_is_preparing(const pk_cuda_t *cuda) {
  (void)cuda;
  return 0;
}

int32_t pk_cuda_keep(pk_cuda_t *cuda, const pk_cuda_kept_t *kind, const void *key, uint64_t bytes, void *context,
                     void **value) {
  (void)cuda;
  kept_t *found = kept;
  while (found && (found->kind != kind || found->bytes != bytes || memcmp(found->key, key, bytes))) found = found->next;
  if (!found) {
    void *made;
    const int32_t status = kind->make(key, context, &made);
    if (status) return status;
    found = malloc(sizeof *found);
    *found = (kept_t){kind, malloc(bytes + 1), made, bytes, kept};
    memcpy(found->key, key, bytes);
    kept = found;
  }
  *value = found->value;
  return 0;
}

int32_t pk_cuda_keep_own(pk_cuda_t *cuda, const pk_cuda_kept_t *kind, const void *key, uint64_t bytes, void *context,
                         void **value) {
  return pk_cuda_keep(cuda, kind, key, bytes, context, value);
}

int32_t pk_cuda_enqueue(pk_cuda_t *cuda, pk_cuda_enqueue_fn *enqueue, const void *problem, uint64_t bytes) {
  (void)bytes;
  return enqueue(cuda, cuda->stream, problem);
}
