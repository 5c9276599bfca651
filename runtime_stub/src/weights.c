/* weights.c: constants in a file beside the bundle, mapped once for all sessions. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime.h"

/* All under pk_lock(). */
static const uint8_t *mapping;
static int32_t users;

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

static int32_t fail_path(const char *why) {
  return pk_fail(NULL, PACKAGER_ERROR_WEIGHTS, "external weights '%s': %s", pk_model.external->file_name, why);
}

/* Writes the path of the weights: the bundle's folder and the weights' name. */
static int32_t find_weights(char path[PATH_MAX]) {
  const char *bundle = "";
  dl_iterate_phdr(find_bundle, &bundle);
  char program[PATH_MAX];
  if (!*bundle) { /* linked into the program: the loader has no name for that */
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0) return fail_path("the program's folder is unknown: /proc/self/exe cannot be read");
    program[length] = 0;
    bundle = program;
  }
  const char *slash = strrchr(bundle, '/');
  int folder = slash ? (int)(slash - bundle) + 1 : 0;
  int length = snprintf(path, PATH_MAX, "%.*s%s", folder, bundle, pk_model.external->file_name);
  return length < PATH_MAX ? PACKAGER_OK : fail_path("its path is too long");
}

static int32_t check_header(const char *path, const uint8_t *data) {
  const pk_external_weights_t *expected = pk_model.external;
  if (!memcmp(data, expected->header, expected->header_bytes)) return PACKAGER_OK;
  uint64_t at = 0;
  while (data[at] == expected->header[at]) ++at;
  return pk_fail(NULL, PACKAGER_ERROR_WEIGHTS,
                 "external weights '%s': the header differs from byte %" PRIu64 " on: not the file of this bundle",
                 path, at);
}

static int32_t map_file(const char *path, int file, const uint8_t **mapped) {
  uint64_t expected = pk_model.external->file_bytes;
  off_t size = lseek(file, 0, SEEK_END);
  if (size < 0) return pk_fail(NULL, PACKAGER_ERROR_WEIGHTS, "external weights '%s': cannot be measured: %m", path);
  if ((uint64_t)size != expected) {
    return pk_fail(NULL, PACKAGER_ERROR_WEIGHTS,
                   "external weights '%s': the file has %" PRId64 " bytes, expected %" PRIu64, path, (int64_t)size,
                   expected);
  }
  void *data = mmap(NULL, expected, PROT_READ, MAP_PRIVATE, file, 0);
  if (data == MAP_FAILED) {
    return pk_fail(NULL, PACKAGER_ERROR_WEIGHTS, "external weights '%s': cannot be mapped: %m", path);
  }
  int32_t status = check_header(path, data);
  if (status) {
    munmap(data, expected);
    return status;
  }
  *mapped = data;
  return PACKAGER_OK;
}

static int32_t map_weights(void) {
  char path[PATH_MAX];
  int32_t status = find_weights(path);
  if (status) return status;
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0) {
    return pk_fail(NULL, PACKAGER_ERROR_WEIGHTS, "external weights '%s' cannot be opened: %m%s", path,
                   *path == '/' ? "" : " (the bundle was loaded by a relative path: did the current folder change?)");
  }
  status = map_file(path, file, &mapping);
  close(file);
  return status;
}

int32_t pk_weights_acquire(const uint8_t **constants) {
  *constants = pk_model.constants;
  if (!pk_model.external) return PACKAGER_OK;
  if (users == 0) {
    int32_t status = map_weights();
    if (status) return status;
  }
  ++users;
  *constants = mapping + pk_model.external->header_bytes;
  return PACKAGER_OK;
}

void pk_weights_release(void) {
  if (!pk_model.external || --users > 0) return;
  munmap((void *)mapping, pk_model.external->file_bytes);
  mapping = NULL;
}
