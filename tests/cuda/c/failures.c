/* What a session says, and leaves behind, where the driver refuses. Arguments: a bundle, then what a case asks for. */
#include "host.h"

/* Arguments: status, message; twice, because a failure leaves nothing behind. */
static void refused(char **arguments) {
  host_start(0);
  bundle_t bundle = bundle_open(arguments[0]);
  for (int i = 0; i < 2; ++i) {
    packager_session_t *session;
    recorder_fail(getenv("RECORDER_FAIL"));
    CHECK_EQ(bundle.table->session_create(NULL, &session), atoi(arguments[1]));
    CHECK(session == NULL);
    CHECK_TEXT(bundle.table->thread_error(), arguments[2]);
    host_check_context();
    CHECK_TEXT(recorder_live(), "");
  }
  CHECK_EQ(dlclose(bundle.handle), 0);
}

/* Without libcuda.so.1, or with one that is not it. Arguments: what the message has. */
static void no_driver(char **arguments) {
  bundle_t bundle = bundle_open(arguments[0]);
  packager_session_t *session;
  CHECK_EQ(bundle.table->session_create(NULL, &session), PACKAGER_ERROR_DRIVER);
  CHECK(session == NULL);
  CHECK_HAS(bundle.table->thread_error(), arguments[1]);
  CHECK_EQ(dlclose(bundle.handle), 0);
}

/* Whatever call fails while a session is created: there is a message, and nothing is left. */
static void creation(char **arguments) {
  static const char *const functions[] = {
      "cuInit",           "cuDriverGetVersion",   "cuDeviceGetCount",         "cuDeviceGet",
      "cuDeviceGetName",  "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuStreamCreate",
      "cuModuleLoadData", "cuModuleGetFunction",  "cuFuncSetAttribute",       "cuFuncGetAttribute",
      "cuFuncLoad",       "cuMemAlloc",           "cuMemcpyHtoDAsync",        "cuStreamSynchronize",
      "cuEventCreate",    "cuStreamGetId",        "cuMemAllocAsync"};
  host_start(1);
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  int failures = 0;
  for (size_t i = 0; i < sizeof functions / sizeof *functions; ++i) {
    for (int nth = 1;; ++nth) {
      char rule[80];
      snprintf(rule, sizeof rule, "%s:%d:2", functions[i], nth);
      recorder_fail(rule);
      packager_session_t *session;
      int32_t status = t->session_create(NULL, &session);
      host_check_context();
      recorder_fail("");
      if (!status) {
        CHECK(nth > 1); /* else the function is not called at all */
        CHECK_OK(t, t->session_destroy(session));
      }
      CHECK_TEXT(recorder_live(), "1 context");
      if (!status) break;
      ++failures;
      CHECK_HAS(t->thread_error(), "CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
      CHECK(status == PACKAGER_ERROR_MEMORY || status == PACKAGER_ERROR_DRIVER);
    }
  }
  CHECK_EQ(failures, 32);
  host_end();
  CHECK_EQ(dlclose(bundle.handle), 0);
}

/* Whatever call fails in a run, as out of memory: the session goes on. */
static void running(char **arguments) {
  static const char *const functions[] = {"cuMemAlloc",        "cuMemHostAlloc",      "cuMemcpyHtoDAsync",
                                          "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync",   "cuLaunchKernel",
                                          "cuEventRecord",     "cuStreamSynchronize", "cuStreamIsCapturing",
                                          "cuStreamGetId",     "cuStreamWaitEvent",   "cuGraphLaunch"};
  host_start(1);
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  packager_session_options_t options = {.struct_size = sizeof options};
  for (size_t i = 0; i < sizeof functions / sizeof *functions; ++i) {
    options.graph = i == 11 ? PACKAGER_GRAPH_ON : PACKAGER_GRAPH_OFF;
    int failures = 0;
    for (int nth = 1, status = 1; status; ++nth) {
      tensors_t *h = tensors_new(8), *d = tensors_on_device(8);
      packager_session_t *session = session_open(t, &options);
      void *stream;
      CHECK_EQ(cu_stream_create(&stream, 1), 0);
      CHECK_OK(t, tensors_run(t, session, d, (void *)1));
      char rule[80];
      snprintf(rule, sizeof rule, "%s:%d:2", functions[i], nth);
      recorder_fail(rule);
      status = tensors_run(t, session, h, stream);
      if (!status) status = tensors_run(t, session, d, stream);
      recorder_fail("");
      if (status) {
        ++failures;
        CHECK(status == PACKAGER_ERROR_MEMORY);
        CHECK_HAS(t->session_error(session), "CUDA_ERROR_OUT_OF_MEMORY (out of memory)");
      }
      memset(h->echo, 0, sizeof h->echo);
      CHECK_OK(t, tensors_run(t, session, h, stream));
      tensors_check_echo(h);
      CHECK_OK(t, t->session_destroy(session));
      CHECK_EQ(cu_stream_destroy(stream), 0);
      tensors_free_device(d);
      free(h);
      recorder_take();
    }
    if (!failures) FAIL("%s is not called", functions[i]);
  }
  host_end();
  CHECK_EQ(dlclose(bundle.handle), 0);
}

/* The bundle's launch is one that the device cannot do. */
static void launch(char **arguments) {
  host_start(0);
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  packager_session_t *session = session_open(t, NULL);
  tensors_t *h = tensors_new(8);
  for (int i = 0; i < 4; ++i) {
    CHECK_EQ(tensors_run(t, session, h, NULL), PACKAGER_ERROR_KERNEL);
    CHECK_TEXT(t->session_error(session), "call 2 (add): CUDA_ERROR_INVALID_VALUE (invalid argument)");
  }
  CHECK_OK(t, t->session_destroy(session));
  free(h);
  host_end();
  CHECK_EQ(dlclose(bundle.handle), 0);
}

#define FAULT "CUDA_ERROR_ILLEGAL_ADDRESS (an illegal memory access was encountered)"

/* A kernel faults. Arguments: 1 for launch_blocking. */
static void fault(char **arguments) {
  host_start(1);
  bundle_t bundle = bundle_open(arguments[0]);
  const packager_bundle_v1_t *t = bundle.table;
  packager_session_options_t options = {.struct_size = sizeof options, .launch_blocking = atoi(arguments[1])};
  packager_session_t *session = session_open(t, &options), *other = session_open(t, &options);
  const char *message = options.launch_blocking ? "call 2 (add): the GPU reported " FAULT
                                                  "; this process can use it no more"
                                                : "the GPU reported " FAULT
                                                  ", in this run or in earlier work; this process can use it no more "
                                                  "(a session with launch_blocking = 1 tells "
                                                  "in which primitive function)";
  tensors_t *h = tensors_new(8);
  CHECK_OK(t, tensors_run(t, session, h, NULL));
  CHECK_EQ(strstr(recorder_take(), "wait for s2\nlaunch add") != NULL, options.launch_blocking);
  recorder_fault("add");
  for (int i = 0; i < 3; ++i) {
    CHECK_EQ(tensors_run(t, session, h, NULL), PACKAGER_ERROR_GPU);
    CHECK_TEXT(t->session_error(session), message);
  }
  CHECK_EQ(tensors_run(t, other, h, NULL), PACKAGER_ERROR_GPU);
  CHECK_HAS(t->session_error(other), "the GPU reported " FAULT ", in this run or in earlier work; this process");
  CHECK_EQ(t->session_profile(other, h->inputs, 1, h->outputs, 2, (packager_profile_fn *)abort, NULL),
           PACKAGER_ERROR_GPU);
  packager_session_t *third;
  CHECK_EQ(t->session_create(NULL, &third), PACKAGER_ERROR_GPU);
  CHECK_HAS(t->thread_error(), FAULT);
  const char *name = "w";
  int64_t four[] = {4};
  const DLTensor value = {h->x, {kDLCPU, 0}, 1, {kDLFloat, 32, 1}, four, NULL, 0}, *values[] = {&value};
  CHECK_EQ(t->session_set_constants(session, &name, values, 1), PACKAGER_ERROR_GPU);
  CHECK_OK(t, t->session_destroy(session));
  CHECK_OK(t, t->session_destroy(other));
  CHECK_TEXT(recorder_live(), "1 context");
  free(h);
  host_end();
  CHECK_EQ(dlclose(bundle.handle), 0);
}

int main(int argc, char **argv) {
  static const case_t cases[] = {{"refused", refused}, {"no_driver", no_driver}, {"creation", creation},
                                 {"running", running}, {"launch", launch},       {"fault", fault}};
  return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
