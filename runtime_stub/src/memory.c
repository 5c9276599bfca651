/* memory.c: memory of the host, by the caller's allocator or by the C library's. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <stdlib.h>
#include <sys/mman.h>

#include "runtime.h"

/* Huge pages for larger blocks: the TLB covers a few thousand pages. */
#define HUGE_PAGE ((uint64_t)2 << 20)

int32_t pk_allocate(const pk_allocator_t *allocator, uint64_t bytes, const char *what, void **memory) {
  void *block = NULL;
  if (allocator->allocate) {
    block = allocator->allocate(allocator->context, bytes, PK_ALIGNMENT);
    if (block && (uintptr_t)block % PK_ALIGNMENT) {
      allocator->release(allocator->context, block);
      return pk_fail(NULL, PACKAGER_ERROR_MEMORY, "the allocator returned memory that is not aligned to %d bytes",
                     PK_ALIGNMENT);
    }
  } else if (posix_memalign(&block, bytes < HUGE_PAGE ? PK_ALIGNMENT : HUGE_PAGE, bytes)) {
    block = NULL;
  } else if (bytes >= HUGE_PAGE) {
    madvise(block, bytes, MADV_HUGEPAGE); /* only a hint */
  }
  if (!block) return pk_fail(NULL, PACKAGER_ERROR_MEMORY, "could not allocate %" PRIu64 " bytes for %s", bytes, what);
  *memory = block;
  return PACKAGER_OK;
}

void pk_release(const pk_allocator_t *allocator, void *memory) {
  if (allocator->release) {
    allocator->release(allocator->context, memory);
  } else {
    free(memory);
  }
}
