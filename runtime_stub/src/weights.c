/* weights.c: constants in a file beside the bundle, mapped once for all sessions. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime.h"

/* All under pk_lock(). */
static const uint8_t *mapping;
static int32_t users;

static int32_t fail_path(const char *why) {
  return pk_fail(NULL, PACKAGER_ERROR_WEIGHTS, "external weights '%s': %s", pk_model.external->file_name, why);
}

/* Writes a path in the folder of `self`: of the name that the weights were built with, or, `renamed`, of the name that
 * they have when they were renamed together with the bundle. */
static int32_t find_weights(const char *self, int renamed, char path[PATH_MAX]) {
  const char *slash = strrchr(self, '/');
  const char *file = slash ? slash + 1 : self;
  const char *dot = strrchr(file, '.');
  int folder = (int)(file - self), stem = dot ? (int)(dot - file) : (int)strlen(file);
  int length = renamed ? snprintf(path, PATH_MAX, "%.*s.safetensors", folder + stem, self)
                       : snprintf(path, PATH_MAX, "%.*s%s", folder, self, pk_model.external->file_name);
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

/* Without a file `renamed` fails quietly: the message is that of the first name. */
static int32_t open_weights(const char *self, int renamed) {
  char path[PATH_MAX];
  int32_t status = find_weights(self, renamed, path);
  if (status) return status;
  int file = open(path, O_RDONLY | O_CLOEXEC);
  if (file < 0 && renamed) return PACKAGER_ERROR_WEIGHTS;
  if (file < 0) {
    return pk_fail(NULL, PACKAGER_ERROR_WEIGHTS, "external weights '%s' cannot be opened: %m%s", path,
                   *path == '/' ? "" : " (the bundle was loaded by a relative path: did the current folder change?)");
  }
  status = map_file(path, file, &mapping);
  close(file);
  return status;
}

static int32_t map_weights(void) {
  char self[PATH_MAX];
  const char *why = pk_own_path(self, sizeof self);
  if (why) return fail_path(why);
  int32_t status = open_weights(self, 0);
  return status ? open_weights(self, 1) : PACKAGER_OK;
}

int32_t pk_weights_acquire(const uint8_t **constants) {
  *constants = pk_model.embedded_constants;
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
