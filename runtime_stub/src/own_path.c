/* own_path.c: the file that the bundle was loaded from. */
#define _GNU_SOURCE
#include <link.h>
#include <stdio.h>
#include <unistd.h>

#include "runtime.h"

/* Finds the file that this code was loaded from. dl_iterate_phdr, because dladdr is not in libc.so.6 before 2.34. */
static int find_bundle(struct dl_phdr_info *info, size_t size, void *result) {
  (void)size;
  uintptr_t address = (uintptr_t)&pk_model;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr) *segment = &info->dlpi_phdr[i];
    uintptr_t begin = info->dlpi_addr + segment->p_vaddr;
    if (segment->p_type != PT_LOAD || address < begin || address >= begin + segment->p_memsz) continue;
    *(const char **)result = info->dlpi_name;
    return 1;
  }
  return 0;
}

const char *pk_own_path(char *path, size_t bytes) {
  const char *name = "";
  dl_iterate_phdr(find_bundle, &name);
  if (*name) return (size_t)snprintf(path, bytes, "%s", name) < bytes ? NULL : "its path is too long";
  ssize_t length = readlink("/proc/self/exe", path, bytes - 1); /* the loader has no name for the program */
  if (length < 0) return "the program's folder is unknown: /proc/self/exe cannot be read";
  path[length] = 0;
  return NULL;
}
