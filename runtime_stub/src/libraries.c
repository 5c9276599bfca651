/* libraries.c: opens the shared libraries that a bundle's code calls. */
#define _GNU_SOURCE
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "dynamic_linker.h"
#include "runtime.h"

/* What pk_library_texts says of a library; see packager/bundle/loaded_libraries.py. */
typedef struct {
  const char *symbol, *least, *chosen_with;
  const char *sonames, *functions; /* texts one after the other, then an empty one */
} declaration_t;

/* Where libraries are looked for, and what came of it. */
typedef struct {
  const char *folders; /* the session's library_path, or NULL */
  char text[PK_MESSAGE_BYTES];
  size_t used;
} search_t;

static const char *after(const char *text) { return text + strlen(text) + 1; }

static const char *after_list(const char *texts) {
  while (*texts) texts = after(texts);
  return texts + 1;
}

static int32_t count_texts(const char *texts) {
  int32_t count = 0;
  for (; *texts; texts = after(texts)) ++count;
  return count;
}

static declaration_t declaration(int32_t library) {
  const char *text = pk_model.loaded->texts;
  for (;; --library) {
    declaration_t found = {.symbol = text};
    found.least = after(found.symbol);
    found.chosen_with = after(found.least);
    found.sonames = after(after(found.chosen_with)); /* between: whether it is optional, for readers of the file */
    found.functions = after_list(found.sonames);
    if (library == 0) return found;
    text = after_list(found.functions);
  }
}

__attribute__((format(printf, 2, 3))) static void note(search_t *search, const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  size_t room = sizeof search->text - search->used;
  int length = vsnprintf(search->text + search->used, room, format, arguments);
  va_end(arguments);
  if (length > 0) search->used += (size_t)length < room ? (size_t)length : room - 1;
}

static void read_version(const char *text, int32_t version[3]) {
  memset(version, 0, 3 * sizeof *version);
  char *end;
  for (int i = 0; i < 3 && *text; ++i, text = *end ? end + 1 : end) version[i] = (int32_t)strtol(text, &end, 10);
}

static int compare(const int32_t a[3], const int32_t b[3]) {
  for (int i = 0; i < 3; ++i) {
    if (a[i] != b[i]) return a[i] < b[i] ? -1 : 1;
  }
  return 0;
}

/* Whether a library that was opened can be used; its functions are then filled in. `name` is how it was found. */
static int accept(const pk_library_t *library, const declaration_t *declared, void *handle, const char *name,
                  search_t *search) {
  int32_t count = 0;
  for (const char *symbol = declared->functions; *symbol; symbol = after(symbol), ++count) {
    void *function = pk_dlsym(handle, symbol);
    if (!function) {
      note(search, "; %s has no %s", name, symbol);
      memset(library->functions, 0, (size_t)count * sizeof *library->functions);
      return 0;
    }
    library->functions[count] = function;
  }
  int32_t version[3] = {0, 0, 0}, least[3];
  library->version(library->functions, version);
  read_version(declared->least, least);
  char why[PK_MESSAGE_BYTES / 4] = "";
  const int is_older = compare(version, least) < 0;
  if (!is_older && (!library->refuses || !library->refuses(version, why, sizeof why))) return 1;
  note(search, "; %s is version %" PRId32 ".%" PRId32 ".%" PRId32, name, version[0], version[1], version[2]);
  if (*why) note(search, ": %s", why);
  memset(library->functions, 0, (size_t)count * sizeof *library->functions);
  return 0;
}

/* What the process has open already, by whichever path: two copies of a library, each with its state, need not be. */
static int find_open(const pk_library_t *library, const declaration_t *declared, search_t *search) {
  int found = 0;
  for (const char *soname = declared->sonames; *soname; soname = after(soname)) {
    void *handle = pk_dlopen(soname, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD);
    if (!handle) continue;
    char name[PATH_MAX];
    snprintf(name, sizeof name, "%s, which is open in this process,", soname);
    if (accept(library, declared, handle, name, search)) return 1;
    found = 1;
  }
  if (!found) note(search, "; none is open in this process");
  return 0;
}

static int write_all(int file, const uint8_t *data, uint64_t bytes) {
  while (bytes > 0) {
    const ssize_t written = write(file, data, bytes);
    if (written < 0 && errno != EINTR) return 0;
    if (written > 0) data += written, bytes -= (uint64_t)written;
  }
  return 1;
}

/* The bundle's own copy, by a file that is in memory alone. It stays open: the dynamic linker knows libraries by their
 * paths too, and another one may not come under this number. */
static int find_embedded(const pk_library_t *library, const declaration_t *declared, search_t *search) {
  if (!library->image) return 0;
  const int file = (int)syscall(SYS_memfd_create, declared->sonames, MFD_CLOEXEC);
  if (file < 0 || !write_all(file, library->image, library->image_bytes)) {
    note(search, "; the bundle's copy cannot be put into a file in memory: %m");
    if (file >= 0) close(file);
    return 0;
  }
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", file);
  void *handle = pk_dlopen(path, RTLD_NOW | RTLD_LOCAL);
  if (!handle) note(search, "; the bundle's copy cannot be opened: %s", pk_dlerror());
  return handle && accept(library, declared, handle, "the bundle's copy", search);
}

enum { ABSENT, REFUSED, ACCEPTED };

static int find_in_folder(const pk_library_t *library, const declaration_t *declared, const char *folder, size_t length,
                          search_t *search) {
  int found = ABSENT;
  for (const char *soname = declared->sonames; *soname; soname = after(soname)) {
    char path[PATH_MAX];
    if (snprintf(path, sizeof path, "%.*s/%s", (int)length, folder, soname) >= PATH_MAX || access(path, F_OK)) continue;
    found = REFUSED;
    void *handle = pk_dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
      note(search, "; %s cannot be opened: %s", path, pk_dlerror());
    } else if (accept(library, declared, handle, path, search)) {
      return ACCEPTED;
    }
  }
  return found;
}

static int find_in_path(const pk_library_t *library, const declaration_t *declared, search_t *search) {
  const char *first = search->folders;
  int found = ABSENT;
  size_t count = 0;
  for (const char *folder = first; folder && *folder && found != ACCEPTED;) {
    size_t length = strcspn(folder, ":");
    if (length) {
      int here = find_in_folder(library, declared, folder, length, search);
      if (here > found) found = here;
      if (count++ == 0) first = folder;
    }
    folder += length + (folder[length] == ':');
  }
  if (found == ABSENT && count) {
    note(search, "; not in library_path ('%.*s'", (int)strcspn(first, ":"), first);
    if (count > 1) note(search, " and %zu more folders", count - 1);
    note(search, ")");
  }
  return found == ACCEPTED;
}

/* A bundle that is linked into a program has no folder of its own. */
static int find_beside_bundle(const pk_library_t *library, const declaration_t *declared, search_t *search) {
#ifdef PK_SHARED
  char path[PATH_MAX];
  const char *why = pk_own_path(path, sizeof path);
  if (why) {
    note(search, "; the bundle's folder: %s", why);
    return 0;
  }
  char *slash = strrchr(path, '/');
  const char *folder = slash ? path : ".";
  if (slash) *slash = 0;
  int found = find_in_folder(library, declared, folder, strlen(folder), search);
  if (found == ABSENT) note(search, "; not beside the bundle ('%s')", folder);
  return found == ACCEPTED;
#else
  (void)library, (void)declared, (void)search;
  return 0;
#endif
}

static int find_by_linker(const pk_library_t *library, const declaration_t *declared, search_t *search) {
  for (const char *soname = declared->sonames; *soname; soname = after(soname)) {
    /* The dynamic linker has one library of a soname: that was refused above. */
    if (pk_dlopen(soname, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) continue;
    void *handle = pk_dlopen(soname, RTLD_NOW | RTLD_LOCAL);
    if (!handle) {
      note(search, "; the dynamic linker: %s", pk_dlerror());
    } else if (accept(library, declared, handle, soname, search)) {
      return 1;
    }
  }
  return 0;
}

/* Under pk_lock(). Opened libraries stay open until the process ends, those that were refused too: such libraries have
 * threads and handlers of their own, and other bundles or the program may have got to know them meanwhile. Until a
 * library is found, no session uses it, so nobody else reads its functions. */
static int open_library(const pk_library_t *library, const declaration_t *declared, search_t *search) {
  if (library->functions[0]) return 1;
  search->used = 0;
  int32_t declared_functions = count_texts(declared->functions);
  if (library->num_functions != declared_functions) {
    note(search,
         "%s: the code has room for %" PRId32 " functions, and %" PRId32 " are declared: a fault of its backend",
         declared->symbol, library->num_functions, declared_functions);
    return 0;
  }
  const char *soname = declared->sonames;
  note(search, "%s", soname);
  while (*(soname = after(soname))) note(search, " or %s", soname);
  note(search, " of version %s or newer, which the model calls, was not found", declared->least);
  if (!pk_have_dl()) {
    note(search, ": this program has no dlopen, which it is opened with: link it with -ldl");
    return 0;
  }
  return find_open(library, declared, search) || find_embedded(library, declared, search) ||
         find_in_path(library, declared, search) || find_beside_bundle(library, declared, search) ||
         find_by_linker(library, declared, search);
}

/* Calls outside of choices are made by every session. */
static int is_used(const pk_library_use_t *use, int32_t library, const uint8_t *selection) {
  return use->library == library && (use->choice < 0 || selection[use->choice] == use->alternative);
}

/* Lets the session do without a library, if its choices allow that. Returns whether they do. */
static int avoid(int32_t library, uint8_t *selection, int change) {
  const pk_libraries_t *loaded = pk_model.loaded;
  for (int32_t i = 0; i < loaded->num_uses; ++i) {
    const pk_library_use_t *use = &loaded->uses[i];
    if (!is_used(use, library, selection)) continue;
    if (use->choice < 0 || loaded->fallbacks[use->choice] < 0) return 0;
    if (change) selection[use->choice] = (uint8_t)loaded->fallbacks[use->choice];
  }
  return 1;
}

static int any_use(int32_t library, const uint8_t *selection) {
  for (int32_t i = 0; i < pk_model.loaded->num_uses; ++i) {
    if (is_used(&pk_model.loaded->uses[i], library, selection)) return 1;
  }
  return 0;
}

static void say(const packager_session_options_t *options, packager_log_level_t level, const char *message) {
  if (options->log) options->log(options->log_context, level, message);
}

static void compare_version(const packager_session_options_t *options, const pk_library_t *library,
                            const declaration_t *declared) {
  int32_t wanted[3], version[3] = {0, 0, 0};
  read_version(declared->chosen_with, wanted);
  library->version(library->functions, version);
  if (!*declared->chosen_with || !compare(version, wanted)) return;
  char message[PK_MESSAGE_BYTES];
  snprintf(message, sizeof message,
           "%s: the bundle was built for version %s of %s; this is %" PRId32 ".%" PRId32 ".%" PRId32, pk_model.name,
           declared->chosen_with, declared->sonames, version[0], version[1], version[2]);
  say(options, PACKAGER_LOG_INFO, message);
}

int32_t pk_open_libraries(const packager_session_options_t *options, uint8_t *selection) {
  const pk_libraries_t *loaded = pk_model.loaded;
  search_t search = {.folders = options->library_path};
  for (int32_t i = 0; i < loaded->num_libraries; ++i) {
    if (!any_use(i, selection)) continue;
    const declaration_t declared = declaration(i);
    pk_lock();
    int opened = open_library(loaded->libraries[i], &declared, &search);
    pk_unlock();
    if (opened) {
      compare_version(options, loaded->libraries[i], &declared);
      continue;
    }
    if (options->selection && avoid(i, selection, 0)) {
      return pk_fail(NULL, PACKAGER_ERROR_LIBRARY, "the selection needs a library: %s", search.text);
    }
    if (!avoid(i, selection, 0)) return pk_fail(NULL, PACKAGER_ERROR_LIBRARY, "%s", search.text);
    avoid(i, selection, 1);
    char message[PK_MESSAGE_BYTES + 64];
    snprintf(message, sizeof message, "%s: slower alternatives are used, without a library: %s", pk_model.name,
             search.text);
    say(options, PACKAGER_LOG_WARNING, message);
  }
  return PACKAGER_OK;
}

int32_t pk_avoid_library(const pk_library_t *library, const packager_session_options_t *options, uint8_t *selection) {
  int32_t number = 0;
  while (number < pk_model.loaded->num_libraries && pk_model.loaded->libraries[number] != library) ++number;
  if (number == pk_model.loaded->num_libraries || options->selection) return 0;
  if (!any_use(number, selection) || !avoid(number, selection, 0)) return 0;
  avoid(number, selection, 1);
  char message[PK_MESSAGE_BYTES + 64];
  snprintf(message, sizeof message, "%s: slower alternatives are used, without a library: %s", pk_model.name,
           pk_thread_error());
  say(options, PACKAGER_LOG_WARNING, message);
  return 1;
}
