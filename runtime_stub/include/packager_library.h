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
 *     const pk_library_t acme_blas = { functions, 2, version };
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
} pk_library_t;

#endif /* PACKAGER_LIBRARY_H_ */
