/* own_path.c: the file that the bundle was loaded from. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include "packager_library.h"
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

const void *pk_own_file_map(uint64_t offset, uint64_t bytes, char *why, uint64_t room) {
  char path[PATH_MAX];
  const char *unknown = pk_own_path(path, sizeof path);
  if (unknown) {
    snprintf(why, room, "%s", unknown);
    return NULL;
  }
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    snprintf(why, room, "%s cannot be opened: %m", path);
    return NULL;
  }
  const off_t size = lseek(file, 0, SEEK_END);
  void *data = MAP_FAILED;
  if (size < 0 || (uint64_t)size < offset || (uint64_t)size - offset < bytes) {
    snprintf(why, room, "%s has %" PRId64 " bytes: it is cut short, or not the file of this bundle any more", path,
             (int64_t)size);
  } else {
    data = mmap(NULL, bytes, PROT_READ, MAP_PRIVATE, file, (off_t)offset);
    if (data == MAP_FAILED) snprintf(why, room, "%s cannot be mapped: %m", path);
  }
  close(file);
  return data == MAP_FAILED ? NULL : data;
}

void pk_own_file_unmap(const void *data, uint64_t bytes) { munmap((void *)data, bytes); }
