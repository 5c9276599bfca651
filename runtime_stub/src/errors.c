/* errors.c: status names and the messages of the last failures. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "runtime.h"

/* Touched on the error path only: the first access in a thread may allocate. */
static _Thread_local char thread_message[PK_MESSAGE_BYTES];

int32_t pk_fail(packager_session_t *session, int32_t status, const char *format, ...) {
  char *message = thread_message;
  va_list arguments;
  va_start(arguments, format);
  int length = vsnprintf(message, PK_MESSAGE_BYTES, format, arguments);
  va_end(arguments);
  if (length >= PK_MESSAGE_BYTES) memcpy(message + PK_MESSAGE_BYTES - 4, "...", 4);
  if (session) memcpy(session->message, message, PK_MESSAGE_BYTES);
  return status;
}

const char *pk_thread_error(void) { return thread_message; }

const char *pk_session_error(const packager_session_t *session) { return session ? session->message : ""; }

const char *pk_status_name(int32_t status) {
  static const char names[][26] = {
      "PACKAGER_OK",
      "PACKAGER_ERROR_ARGUMENT",
      "PACKAGER_ERROR_RANK",
      "PACKAGER_ERROR_SHAPE",
      "PACKAGER_ERROR_DTYPE",
      "PACKAGER_ERROR_DEVICE",
      "PACKAGER_ERROR_LAYOUT",
      "PACKAGER_ERROR_ALIGNMENT",
      "PACKAGER_ERROR_OVERLAP",
      "PACKAGER_ERROR_BUSY",
      "PACKAGER_ERROR_MEMORY",
      "PACKAGER_ERROR_MACHINE",
      "PACKAGER_ERROR_WEIGHTS",
      "PACKAGER_ERROR_THREADS",
      "PACKAGER_ERROR_KERNEL",
      "PACKAGER_ERROR_CONSTANT",
      "PACKAGER_ERROR_DRIVER",
      "PACKAGER_ERROR_GPU",
      "PACKAGER_ERROR_LIBRARY",
  };
  if (status > 0 || status <= -(int32_t)(sizeof names / sizeof *names)) return "unknown status";
  return names[-status];
}
