/* dynamic_linker.h: dlopen and its kin, for the files of the runtime that open libraries. */
#ifndef PK_DYNAMIC_LINKER_H_
#define PK_DYNAMIC_LINKER_H_

#include <dlfcn.h>

/* As in pool.c: these were in libdl.so.2 before glibc 2.34. A program that has opened the bundle has them; where it is
 * not in sight, they are NULL. */
#ifdef PK_SHARED
#ifdef __aarch64__
#define PK_OLD_GLIBC "GLIBC_2.17"
#else
#define PK_OLD_GLIBC "GLIBC_2.2.5"
#endif
extern void *pk_dlopen(const char *name, int flags) __attribute__((weak, visibility("default")));
extern void *pk_dlsym(void *library, const char *symbol) __attribute__((weak, visibility("default")));
extern char *pk_dlerror(void) __attribute__((weak, visibility("default")));
__asm__(".symver pk_dlopen, dlopen@" PK_OLD_GLIBC);
__asm__(".symver pk_dlsym, dlsym@" PK_OLD_GLIBC);
__asm__(".symver pk_dlerror, dlerror@" PK_OLD_GLIBC);
static inline int pk_have_dl(void) { return pk_dlopen && pk_dlsym && pk_dlerror; }
#else
#define pk_dlopen dlopen
#define pk_dlsym dlsym
#define pk_dlerror dlerror
static inline int pk_have_dl(void) { return 1; }
#endif

#endif /* PK_DYNAMIC_LINKER_H_ */
