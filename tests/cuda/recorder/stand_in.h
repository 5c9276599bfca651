/* stand_in.h: what stand-ins for vendors' libraries share, which compute on the host in the memory of the recorder's
 * GPU. Before it is included STAND_IN is the name that they abort with. */
#ifndef STAND_IN_H_
#define STAND_IN_H_

#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EXPORT __attribute__((visibility("default")))
#define DIE(...) (fprintf(stderr, STAND_IN ": " __VA_ARGS__), fputc('\n', stderr), abort())

static int setting(const char *name, int otherwise) {
  const char *value = getenv(name);
  return value ? atoi(value) : otherwise;
}

/* A function of the recorder. */
static void *driver(const char *name) {
  static void *library;
  if (!library) library = dlopen("libcuda.so.1", RTLD_NOW);
  void *function = library ? dlsym(library, name) : NULL;
  if (!function) DIE("%s", dlerror());
  return function;
}

static int is_capturing(void *stream) {
  int (*ask)(void *, int *), status = 0;
  void *function = driver("cuStreamIsCapturing");
  memcpy(&ask, &function, sizeof ask);
  if (ask(stream, &status)) DIE("the stream cannot be used");
  return status;
}

/* Two copies of a result onto itself, in place of the kernels that a library would enqueue; whether it failed. */
static int enqueue_copies(void *stream, void *result, size_t bytes) {
  int (*copy)(uint64_t, uint64_t, size_t, void *);
  void *function = driver("cuMemcpyDtoDAsync_v2");
  memcpy(&copy, &function, sizeof copy);
  for (int i = 0; i < 2; ++i) {
    if (copy((uintptr_t)result, (uintptr_t)result, bytes, stream)) return 1;
  }
  return 0;
}

/* Elements as the libraries number their types: 0 is float, 2 is half, all others are bfloat16. */
static inline double load(int type, const void *data, int64_t index) {
  if (type == 0) return ((const float *)data)[index];
  uint16_t half = ((const uint16_t *)data)[index];
  if (type == 2) {
    _Float16 value;
    memcpy(&value, &half, 2);
    return (double)value;
  }
  uint32_t bits = (uint32_t)half << 16;
  float value;
  memcpy(&value, &bits, 4);
  return value;
}

static inline void store(int type, void *data, int64_t index, double value) {
  float single = (float)value;
  uint32_t bits;
  if (type == 0) {
    ((float *)data)[index] = single;
  } else if (type == 2) {
    _Float16 half = (_Float16)single;
    memcpy((uint16_t *)data + index, &half, 2);
  } else {
    memcpy(&bits, &single, 4);
    ((uint16_t *)data)[index] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
  }
}

#endif /* STAND_IN_H_ */
