/* packager_library.h: how a backend's code calls a shared library that the session opens on the target machine. No part
 * of the ABI for programs that load bundles.
 *
 * The backend declares the library in Python (LoadedLibrary: its sonames, functions and versions), and its code defines
 * where its functions go and how it tells its version:
 *
 *     static void *functions[2];
 *     static void version(void *const *opened, int32_t version[3]) {
 *       int packed = ((int (*)(void))opened[0])();
 *       version[0] = packed / 10000, version[1] = packed / 100 % 100, version[2] = packed % 100;
 *     }
 *     const pk_library_t acme_blas = { .functions = functions, .num_functions = 2, .version = version };
 *
 * Before the first session that uses the library exists, the runtime has filled in the array, in the order of the
 * declaration, and found the version to be new enough. It never changes afterwards: calls need no check and no lock.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef PACKAGER_LIBRARY_H_
#define PACKAGER_LIBRARY_H_

#include <stdint.h>

typedef struct {
  void **functions; /* [num_functions] NULL before the library is opened */
  int32_t num_functions;
  /* Writes the version of the library, of which `functions` are: major, minor, patch; zero what it does not have. */
  void (*version)(void *const *functions, int32_t version[3]);
  /* NULL, or says whether a library of this version cannot be used although it is new enough, and writes why, zero-
   * terminated, in at most `room` bytes: `is of another version than ...`. Then the next place is looked at. */
  int32_t (*refuses)(const int32_t version[3], char *why, uint64_t room);
  /* NULL, or a copy of the library's file, of `image_bytes` bytes: taken if the process has none open that can be used.
   */
  const uint8_t *image;
  uint64_t image_bytes;
} pk_library_t;

/* Maps bytes [offset, offset + bytes) of the file that the bundle was loaded from; `offset` is a multiple of 65536.
 * Returns NULL if that fails, and writes why, zero-terminated, in at most `room` bytes. */
const void *pk_own_file_map(uint64_t offset, uint64_t bytes, char *why, uint64_t room);
void pk_own_file_unmap(const void *data, uint64_t bytes);

#endif /* PACKAGER_LIBRARY_H_ */
