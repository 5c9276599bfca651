/* memory.c: growable arrays in host memory. */
#include <stdlib.h>

#include "gpu.h"

int pk_grow(void **array, uint64_t *capacity, uint64_t count, uint64_t size) {
  if (count <= *capacity) return 1;
  uint64_t larger = *capacity * 2 > count ? *capacity * 2 : count + 16;
  void *grown = realloc(*array, larger * size);
  if (!grown) return 0;
  *array = grown;
  *capacity = larger;
  return 1;
}
