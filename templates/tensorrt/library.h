/* The library of each form, its versions, and what it says. */
#ifndef PK_TENSORRT_LIBRARY_H_
#define PK_TENSORRT_LIBRARY_H_

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "packager_library.h"
#include "slots.h"

#define PK_TRT_TEXT_BYTES 400
#define PK_TRT_MAX_FUNCTIONS 3

/* As packager/bundle/gpu/engines.py reads and writes it. */
typedef struct {
  char key[64];
  uint64_t offset; /* in the bundle's file; 0: the code has the engine */
  uint64_t bytes;  /* 0: nobody has built it yet */
  uint64_t memory; /* that a run of it needs */
  int32_t form;
  int32_t version[4]; /* of the library that has built it */
  int32_t arch;       /* of the GPU that it is for, as 90; 0: several */
  uint8_t sha256[32];
} pk_trt_record_t;
_Static_assert(sizeof(pk_trt_record_t) == 144, "layout of a record");

typedef struct {
  const pk_trt_record_t *records;
  int32_t count;
} pk_trt_records_t;

/* Defined by the module. The records may differ from what it was compiled with: engines are appended later. */
static pk_trt_records_t pk_trt_records(void);

/* By form. */
static void *pk_trt_functions[PK_TRT_LEAN + 1][PK_TRT_MAX_FUNCTIONS];

static int32_t pk_trt_packed_version(int32_t form) {
  pk_trt_version_fn *get;
  memcpy(&get, &pk_trt_functions[form][PK_TRT_GET_VERSION], sizeof get);
  return get();
}

static void pk_trt_version(void *const *functions, int32_t version[3]) {
  pk_trt_version_fn *get;
  memcpy(&get, &functions[PK_TRT_GET_VERSION], sizeof get);
  pk_trt_unpack_version(get(), version);
}

/* An engine runs in the version that has built it; a version-compatible one, which the lean form runs, in later ones of
 * the same major version too. */
static int pk_trt_fits(const pk_trt_record_t *record, const int32_t version[3]) {
  const int32_t *built = record->version;
  if (record->form != PK_TRT_LEAN) return !memcmp(built, version, 3 * sizeof *version);
  return built[0] == version[0] && (built[1] < version[1] || (built[1] == version[1] && built[2] <= version[2]));
}

static int32_t pk_trt_refuses(int32_t form, const int32_t version[3], char *why, uint64_t room) {
  if (!pk_trt_find_slots(form, version[0])) {
    snprintf(why, room, "the bundle does not know the binary interface of that major version");
    return 1;
  }
  const pk_trt_records_t all = pk_trt_records();
  for (int32_t i = 0; i < all.count; ++i) {
    const pk_trt_record_t *record = &all.records[i];
    if (record->form != form || !record->bytes || pk_trt_fits(record, version)) continue;
    snprintf(why, room, "an engine was built by %" PRId32 ".%" PRId32 ".%" PRId32 " and runs in no other version%s",
             record->version[0], record->version[1], record->version[2],
             form == PK_TRT_LEAN ? " but later ones of that major version" : "");
    return 1;
  }
  return 0;
}

/* What the library says while it is called: in the thread that calls it, or in one of its own. The first error is the
 * cause; others follow from it. */
typedef struct {
  int32_t calls; /* this thread has called the library */
  char text[PK_TRT_TEXT_BYTES];
} pk_trt_heard_t;
static _Thread_local pk_trt_heard_t pk_trt_heard;
static struct {
  pthread_mutex_t lock;
  char text[PK_TRT_TEXT_BYTES];
} pk_trt_elsewhere = {PTHREAD_MUTEX_INITIALIZER, ""};

static void pk_trt_log(void *logger, int32_t severity, const char *message) {
  (void)logger;
  if (severity > PK_TRT_ERROR || !message) return;
  if (pk_trt_heard.calls) {
    if (!*pk_trt_heard.text) snprintf(pk_trt_heard.text, sizeof pk_trt_heard.text, "%s", message);
    return;
  }
  pthread_mutex_lock(&pk_trt_elsewhere.lock);
  if (!*pk_trt_elsewhere.text) snprintf(pk_trt_elsewhere.text, sizeof pk_trt_elsewhere.text, "%s", message);
  pthread_mutex_unlock(&pk_trt_elsewhere.lock);
}

static void pk_trt_hush(void) {
  pk_trt_heard.calls = 1;
  *pk_trt_heard.text = 0;
  pthread_mutex_lock(&pk_trt_elsewhere.lock);
  *pk_trt_elsewhere.text = 0;
  pthread_mutex_unlock(&pk_trt_elsewhere.lock);
}

/* Writes what fails, and what the library has said since pk_trt_hush(). */
__attribute__((format(printf, 2, 3))) static void pk_trt_explain(char why[PK_TRT_TEXT_BYTES], const char *format, ...) {
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(why, PK_TRT_TEXT_BYTES, format, arguments);
  va_end(arguments);
  if (length < 0 || length >= PK_TRT_TEXT_BYTES) return;
  pthread_mutex_lock(&pk_trt_elsewhere.lock);
  const char *said = *pk_trt_heard.text ? pk_trt_heard.text : pk_trt_elsewhere.text;
  const int more = *said ? snprintf(why + length, (size_t)(PK_TRT_TEXT_BYTES - length), ": %s", said) : 0;
  pthread_mutex_unlock(&pk_trt_elsewhere.lock);
  if (more < 0) why[length] = 0;
}

/* ILogger. Until version 10 its table begins with `log`; from then on it has the methods of an interface of a
 * version. */
typedef struct {
  const char *name;
  int32_t major, minor;
} pk_trt_interface_t;
static int32_t pk_trt_language(void *logger) { return (void)logger, 0; }
static pk_trt_interface_t pk_trt_interface(void *logger) { return (void)logger, (pk_trt_interface_t){"ILogger", 1, 0}; }
static void pk_trt_keep_logger(void *logger) { (void)logger; } /* destructors: it is nobody's to destroy */

static void *pk_trt_logger(const pk_trt_slots_t *slots) {
#define PK_TRT_METHOD(function) (pk_trt_method_t *)(function)
  static pk_trt_method_t *const plain[] = {PK_TRT_METHOD(pk_trt_log), PK_TRT_METHOD(pk_trt_keep_logger),
                                           PK_TRT_METHOD(pk_trt_keep_logger)};
  static pk_trt_method_t *const versioned[] = {PK_TRT_METHOD(pk_trt_language), PK_TRT_METHOD(pk_trt_interface),
                                               PK_TRT_METHOD(pk_trt_keep_logger), PK_TRT_METHOD(pk_trt_keep_logger),
                                               PK_TRT_METHOD(pk_trt_log)};
#undef PK_TRT_METHOD
  static struct {
    pk_trt_method_t *const *methods;
  } loggers[2] = {{plain}, {versioned}};
  return &loggers[slots->logger != 0];
}

/* What a function or method returned: an object, or NULL. Where creating fails, some versions return the address of a
 * part of one that is not there. */
static pk_trt_object_t *pk_trt_object(pk_trt_object_t *made) { return (uintptr_t)made < 4096 ? NULL : made; }

static void pk_trt_destroy(pk_trt_object_t *object) {
  if (object) ((pk_trt_destroy_fn *)object->methods[1])(object);
}

/* The library of a form as the sessions of a device use it. */
typedef struct {
  const pk_trt_slots_t *slots;
  pk_trt_object_t *runtime;
} pk_trt_library_t;

enum {
  PK_TRT_PENDING = 1,   /* the engine is not built yet */
  PK_TRT_FILE = 2,      /* the bundle's file cannot be read */
  PK_TRT_RUNTIME = 3,   /* the library cannot be used */
  PK_TRT_ENGINE = 4,    /* the library refuses the engine, or it is for another GPU */
  PK_TRT_INTERFACE = 5, /* its inputs and outputs are not those of the function */
  PK_TRT_CONTEXT = 6,   /* the session's part of it cannot be made */
  PK_TRT_SIZE = 7,      /* the engine is not for inputs of these sizes */
  PK_TRT_EXECUTE = 8,   /* a run of it cannot be enqueued */
  PK_TRT_CONSTANTS = 9, /* constants that were swapped cannot be put into it */
  PK_TRT_HOST_MEMORY = 10
};

/* `why` gets the text where it fails. The device's context is current. */
static int32_t pk_trt_open(int32_t form, pk_trt_library_t *library, char why[PK_TRT_TEXT_BYTES]) {
  int32_t version[3];
  const int32_t packed = pk_trt_packed_version(form);
  pk_trt_unpack_version(packed, version);
  library->slots = pk_trt_find_slots(form, version[0]);
  pk_trt_create_runtime_fn *create;
  memcpy(&create, &pk_trt_functions[form][PK_TRT_CREATE_RUNTIME], sizeof create);
  pk_trt_hush();
  library->runtime = library->slots ? pk_trt_object(create(pk_trt_logger(library->slots), packed)) : NULL;
  if (library->runtime) return 0;
  pk_trt_explain(why, "TensorRT %" PRId32 ".%" PRId32 ".%" PRId32 " makes no runtime", version[0], version[1],
                 version[2]);
  return PK_TRT_RUNTIME;
}

#endif /* PK_TENSORRT_LIBRARY_H_ */
