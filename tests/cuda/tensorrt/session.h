/* session.h: next to nothing of packager's runtime, for programs that call the functions of a module of engines. */
#ifndef SESSION_H_
#define SESSION_H_

#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "packager_cuda.h"
#include "packager_library.h"

#define MAX_KEPT 16
#define MAX_KEY 16
#define ALIGNMENT 256 /* of device memory */

typedef struct {
  const pk_cuda_kept_t *kind;
  void *value;
  char key[MAX_KEY];
  uint64_t bytes;
} kept_t;

typedef struct {
  kept_t values[MAX_KEPT];
  int count;
} all_kept_t;

struct pk_cuda {
  all_kept_t own;
  int preparing;
  uint64_t number;
  char said[512];
};

static all_kept_t shared;
static const char *originals; /* constants of the bundle */
static uint64_t original_bytes;
static pthread_mutex_t making = PTHREAD_MUTEX_INITIALIZER;

static int32_t keep(all_kept_t *all, const pk_cuda_kept_t *kind, const void *key, uint64_t bytes, void *context,
                    void **value) {
  for (int i = 0; i < all->count; ++i) {
    const kept_t *kept = &all->values[i];
    if (kept->kind != kind || kept->bytes != bytes || memcmp(kept->key, key, bytes)) continue;
    *value = kept->value;
    return 0;
  }
  if (bytes > MAX_KEY || all->count == MAX_KEPT) abort();
  const int32_t status = kind->make(key, context, value);
  if (status) return status;
  kept_t *kept = &all->values[all->count++];
  kept->kind = kind, kept->value = *value, kept->bytes = bytes;
  memcpy(kept->key, key, bytes);
  return 0;
}

static void release(all_kept_t *all) {
  while (all->count > 0) {
    const kept_t *kept = &all->values[--all->count];
    kept->kind->release(kept->value);
  }
}

int32_t pk_cuda_keep(pk_cuda_t *cuda, const pk_cuda_kept_t *kind, const void *key, uint64_t bytes, void *context,
                     void **value) {
  (void)cuda;
  pthread_mutex_lock(&making);
  const int32_t status = keep(&shared, kind, key, bytes, context, value);
  pthread_mutex_unlock(&making);
  return status;
}

int32_t pk_cuda_keep_own(pk_cuda_t *cuda, const pk_cuda_kept_t *kind, const void *key, uint64_t bytes, void *context,
                         void **value) {
  return keep(&cuda->own, kind, key, bytes, context, value);
}

const pk_cuda_device_t *pk_cuda_device(const pk_cuda_t *cuda) {
  static const pk_cuda_device_t device = {90, 132};
  (void)cuda;
  return &device;
}

int32_t pk_cuda_is_preparing(const pk_cuda_t *cuda) { return cuda->preparing; }

/* While a session is prepared the runtime captures, and nothing runs. */
int32_t pk_cuda_enqueue(pk_cuda_t *cuda, pk_cuda_enqueue_fn *enqueue, const void *problem, uint64_t bytes) {
  (void)bytes;
  return enqueue(cuda, NULL, problem);
}

int32_t pk_cuda_copy(pk_cuda_t *cuda, void *target, const void *source, uint64_t bytes) {
  if (!cuda->preparing) memcpy(target, source, bytes);
  return 0;
}

void pk_cuda_do_without(pk_cuda_t *cuda, const pk_library_t *library) { (void)cuda, (void)library; }

void pk_cuda_explain(pk_cuda_t *cuda, const char *why) { snprintf(cuda->said, sizeof cuda->said, "%s", why); }

uint64_t pk_cuda_constants_number(const pk_cuda_t *cuda) { return cuda->number; }

int32_t pk_cuda_is_swapped(const pk_cuda_t *cuda, const void *constant) {
  (void)cuda;
  return (const char *)constant < originals || (const char *)constant >= originals + original_bytes;
}

int32_t pk_cuda_read_constant(pk_cuda_t *cuda, void *host, const void *constant, uint64_t bytes) {
  (void)cuda;
  memcpy(host, constant, bytes);
  return 0;
}

int32_t pk_cuda_warm_up(pk_cuda_t *cuda, pk_cuda_first_run_fn *first_run, void *context, uint64_t bytes) {
  const size_t room = (size_t)(bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
  void *memory = aligned_alloc(ALIGNMENT, room);
  if (!memory) abort();
  memset(memory, 0, room);
  const int32_t status = first_run(cuda, NULL, memory, context);
  free(memory);
  return status;
}

const void *pk_own_file_map(uint64_t offset, uint64_t bytes, char *why, uint64_t room) {
  snprintf(why, room, "no file has %d bytes at %d", (int)bytes, (int)offset);
  return NULL;
}

void pk_own_file_unmap(const void *data, uint64_t bytes) { (void)data, (void)bytes; }

/* Opens the library of a path; returns its handle, or NULL if its version is refused. */
static void *open_library(const char *path, const pk_library_t *library) {
  static const char *const names[] = {"getInferLibVersion", "createInferRuntime_INTERNAL",
                                      "createInferRefitter_INTERNAL"};
  void *handle = dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) {
    fprintf(stderr, "%s\n", dlerror());
    exit(2);
  }
  for (int32_t i = 0; i < library->num_functions; ++i) {
    library->functions[i] = dlsym(handle, names[i]);
    if (!library->functions[i]) exit(3);
  }
  int32_t version[3];
  char why[256] = "";
  library->version(library->functions, version);
  const int refused = library->refuses(version, why, sizeof why);
  printf("version %d.%d.%d%s%s\n", version[0], version[1], version[2], refused ? " refused: " : "", why);
  return refused ? NULL : handle;
}

#endif /* SESSION_H_ */
