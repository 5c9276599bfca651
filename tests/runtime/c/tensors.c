/* What session_run accepts and refuses. Arguments: the dynamic bundle. */
#include "check.h"

static bundle_t bundle;
static packager_session_t *session;
static dynamic_t *d;

static void open_bundle(char **arguments) {
  bundle = bundle_open(arguments[0]);
  session = session_open(bundle.table, NULL);
  d = dynamic_new(5);
}

static void close_bundle(void) {
  CHECK_OK(bundle.table, bundle.table->session_destroy(session));
  free(d);
  CHECK_EQ(dlclose(bundle.handle), 0);
}

/* Expects a refusal with this message, that nothing was written, and that the session then runs again. */
static void refuse(int32_t expected, const char *message) {
  d->sum[0] = 12345;
  CHECK_EQ(dynamic_run(bundle.table, session, d), expected);
  CHECK_TEXT(bundle.table->session_error(session), message);
  CHECK_TEXT(bundle.table->thread_error(), message);
  CHECK(d->sum[0] == 12345);
  free(d);
  d = dynamic_new(5);
  dynamic_run_checked(bundle.table, session, d);
}

static void report_nothing(void *context, const char *symbol, int64_t start, int64_t duration) {
  (void)context;
  FAIL("reported %s %" PRId64 " %" PRId64, symbol, start, duration);
}

static void arguments(char **argv) {
  open_bundle(argv);
  const packager_bundle_v1_t *table = bundle.table;
  CHECK_EQ(table->session_run(NULL, d->inputs, 2, d->outputs, 2, NULL), PACKAGER_ERROR_ARGUMENT);
  CHECK_TEXT(table->thread_error(), "session_run: session is NULL");
  CHECK_TEXT(table->session_error(NULL), "");
  CHECK_TEXT(table->session_error(session), "");
  CHECK_EQ(table->session_run(session, d->inputs, 1, d->outputs, 2, NULL), PACKAGER_ERROR_ARGUMENT);
  CHECK_TEXT(table->session_error(session), "number of inputs is 1, expected 2");
  CHECK_EQ(table->session_run(session, d->inputs, 2, d->outputs, 3, NULL), PACKAGER_ERROR_ARGUMENT);
  CHECK_TEXT(table->session_error(session), "number of outputs is 3, expected 2");
  CHECK_EQ(table->session_run(session, NULL, 2, d->outputs, 2, NULL), PACKAGER_ERROR_ARGUMENT);
  CHECK_TEXT(table->session_error(session), "the array of inputs is NULL");
  CHECK_EQ(table->session_run(session, d->inputs, 2, NULL, 2, NULL), PACKAGER_ERROR_ARGUMENT);
  CHECK_TEXT(table->session_error(session), "the array of outputs is NULL");
  CHECK_EQ(table->session_run(session, d->inputs, 2, d->outputs, 2, d), PACKAGER_ERROR_ARGUMENT);
  CHECK_TEXT(table->session_error(session), "stream is given, expected NULL for a CPU bundle");
  CHECK(table->session_stream(session) == NULL);
  CHECK_EQ(table->session_profile(session, d->inputs, 1, d->outputs, 2, report_nothing, NULL), PACKAGER_ERROR_ARGUMENT);
  CHECK_TEXT(table->session_error(session), "number of inputs is 1, expected 2");
  CHECK_EQ(table->session_profile(session, d->inputs, 2, d->outputs, 2, NULL, NULL), PACKAGER_ERROR_ARGUMENT);
  CHECK_TEXT(table->session_error(session), "session_profile: report is NULL");
  d->inputs[1] = NULL;
  refuse(PACKAGER_ERROR_ARGUMENT, "input 'b': the tensor is NULL");
  d->outputs[0] = NULL;
  refuse(PACKAGER_ERROR_ARGUMENT, "output 'sum': the tensor is NULL");
  d->ta.shape = NULL;
  refuse(PACKAGER_ERROR_ARGUMENT, "input 'a': shape is NULL");
  d->ta.data = NULL;
  refuse(PACKAGER_ERROR_ARGUMENT, "input 'a': data is NULL");
  d->tgrid.data = NULL;
  refuse(PACKAGER_ERROR_ARGUMENT, "output 'grid': data is NULL");
  close_bundle();
}

static void kinds(char **argv) {
  open_bundle(argv);
  d->ta.ndim = 3;
  refuse(PACKAGER_ERROR_RANK, "input 'a': rank is 3, expected 2");
  d->tgrid.ndim = 0;
  refuse(PACKAGER_ERROR_RANK, "output 'grid': rank is 0, expected 1");
  d->ta.dtype.bits = 64;
  refuse(PACKAGER_ERROR_DTYPE, "input 'a': dtype is float64, expected float32");
  d->tb.dtype = (DLDataType){kDLBool, 8, 1};
  refuse(PACKAGER_ERROR_DTYPE, "input 'b': dtype is bool, expected float32");
  d->tb.dtype.lanes = 4;
  refuse(PACKAGER_ERROR_DTYPE, "input 'b': dtype is float32x4, expected float32");
  d->tb.dtype = (DLDataType){kDLBfloat, 16, 1};
  refuse(PACKAGER_ERROR_DTYPE, "input 'b': dtype is bfloat16, expected float32");
  d->tb.dtype = (DLDataType){kDLFloat8_e5m2, 8, 1};
  refuse(PACKAGER_ERROR_DTYPE, "input 'b': dtype is float8_e5m2, expected float32");
  d->tb.dtype = (DLDataType){kDLInt, 4, 1};
  refuse(PACKAGER_ERROR_DTYPE, "input 'b': dtype is int4, expected float32");
  d->tgrid.dtype = (DLDataType){99, 64, 1};
  refuse(PACKAGER_ERROR_DTYPE, "output 'grid': dtype is code 99, 64 bits, x1, expected int64");
  d->tsum.device.device_type = kDLCUDA;
  refuse(PACKAGER_ERROR_DEVICE, "output 'sum': device type is 2, expected 1 (CPU)");
  d->ta.device.device_type = kDLCUDAHost;
  dynamic_run_checked(bundle.table, session, d);
  close_bundle();
}

static void shapes(char **argv) {
  open_bundle(argv);
  d->a_shape[1] = 5;
  refuse(PACKAGER_ERROR_SHAPE, "input 'a': axis 1 is 5, expected 4");
  d->b_shape[0] = 6;
  refuse(PACKAGER_ERROR_SHAPE, "input 'b': axis 0 is 6, expected 5 (n)");
  d->a_shape[0] = 4097;
  refuse(PACKAGER_ERROR_SHAPE, "input 'a': dim n = 4097 is outside 0..4096");
  d->a_shape[0] = -1;
  refuse(PACKAGER_ERROR_SHAPE, "input 'a': dim n = -1 is outside 0..4096");
  d->a_shape[0] = INT64_MAX;
  refuse(PACKAGER_ERROR_SHAPE, "input 'a': dim n = 9223372036854775807 is outside 0..4096");
  d->grid_shape[0] = 10;
  refuse(PACKAGER_ERROR_SHAPE, "output 'grid': axis 0 is 10, expected 11 (2*n+1)");
  close_bundle();
}

static void layouts(char **argv) {
  open_bundle(argv);
  int64_t compact[] = {4, 1}, transposed[] = {1, 5}, padded[] = {8, 1}, odd[] = {77, 1}, negative[] = {-4, 1};
  d->ta.strides = compact;
  d->tsum.strides = compact;
  dynamic_run_checked(bundle.table, session, d);
  d->ta.strides = transposed;
  refuse(PACKAGER_ERROR_LAYOUT, "input 'a': stride of axis 1 is 5, expected 1 (compact row-major)");
  d->tsum.strides = padded;
  refuse(PACKAGER_ERROR_LAYOUT, "output 'sum': stride of axis 0 is 8, expected 4 (compact row-major)");
  d->ta.strides = negative;
  refuse(PACKAGER_ERROR_LAYOUT, "input 'a': stride of axis 0 is -4, expected 4 (compact row-major)");
  free(d);
  d = dynamic_new(1); /* the stride of an extent of 1 does not matter */
  d->ta.strides = odd;
  dynamic_run_checked(bundle.table, session, d);
  close_bundle();
}

static void memory(char **argv) {
  open_bundle(argv);
  d->ta.data = (char *)d->a + 2;
  refuse(PACKAGER_ERROR_ALIGNMENT, "input 'a': data (with its byte_offset of 0) is not aligned to 4 bytes");
  d->tgrid.byte_offset = 4;
  refuse(PACKAGER_ERROR_ALIGNMENT, "output 'grid': data (with its byte_offset of 4) is not aligned to 8 bytes");
  d->ta.data = (char *)d->a - 64; /* the offset brings it back */
  d->ta.byte_offset = 64;
  dynamic_run_checked(bundle.table, session, d);
  d->ta.data = (char *)d->a - 2; /* unaligned data, aligned with the offset */
  d->ta.byte_offset = 2;
  dynamic_run_checked(bundle.table, session, d);
  d->ta.byte_offset = 0;
  d->ta.data = d->a;
  d->tb.data = d->a; /* inputs may be the same memory */
  CHECK_OK(bundle.table, dynamic_run(bundle.table, session, d));
  close_bundle();
}

static void overlaps(char **argv) {
  open_bundle(argv);
  d->tsum.data = d->b;
  refuse(PACKAGER_ERROR_OVERLAP, "output 'sum' overlaps input 'b'");
  d->tsum.data = d->a + 19; /* the last element of a */
  refuse(PACKAGER_ERROR_OVERLAP, "output 'sum' overlaps input 'a'");
  d->tgrid.data = d->sum + 18;
  refuse(PACKAGER_ERROR_OVERLAP, "output 'grid' overlaps output 'sum'");
  d->tsum.data = d->a + 20; /* right behind the 5 rows of a */
  CHECK_OK(bundle.table, dynamic_run(bundle.table, session, d));
  close_bundle();
}

static void empty(char **argv) {
  open_bundle(argv);
  free(d);
  d = dynamic_new(0);
  d->ta.data = NULL;
  d->tb.data = (char *)d->b + 1; /* of no element: neither alignment nor overlap matter */
  d->tsum.data = (char *)d->grid + 4;
  int64_t strides[] = {3, 9};
  d->ta.strides = strides;
  CHECK_OK(bundle.table, dynamic_run(bundle.table, session, d));
  CHECK_EQ(d->grid[0], 0);
  close_bundle();
}

static void output_shape(char **argv) {
  open_bundle(argv);
  const packager_bundle_v1_t *table = bundle.table;
  int64_t shape[2] = {-7, -7};
  d->ta.data = d->tb.data = NULL;
  CHECK_OK(table, table->session_output_shape(session, d->inputs, 2, 0, shape));
  CHECK_EQ(shape[0], 5);
  CHECK_EQ(shape[1], 4);
  CHECK_OK(table, table->session_output_shape(session, d->inputs, 2, 1, shape));
  CHECK_EQ(shape[0], 11);
  CHECK_EQ(shape[1], 4); /* grid has one axis */
  CHECK_EQ(table->session_output_shape(session, d->inputs, 2, 2, shape), PACKAGER_ERROR_ARGUMENT);
  CHECK_TEXT(table->session_error(session), "there is no output 2, expected 0..1");
  CHECK_EQ(table->session_output_shape(session, d->inputs, 2, -1, shape), PACKAGER_ERROR_ARGUMENT);
  CHECK_EQ(table->session_output_shape(session, d->inputs, 2, 0, NULL), PACKAGER_ERROR_ARGUMENT);
  CHECK_EQ(table->session_output_shape(NULL, d->inputs, 2, 0, shape), PACKAGER_ERROR_ARGUMENT);
  d->a_shape[0] = 5000;
  CHECK_EQ(table->session_output_shape(session, d->inputs, 2, 0, shape), PACKAGER_ERROR_SHAPE);
  CHECK_TEXT(table->thread_error(), "input 'a': dim n = 5000 is outside 0..4096");
  close_bundle();
}

typedef struct {
  const char *symbols[4];
  int64_t start[4], duration[4];
  int count;
} profile_t;

static void report_call(void *context, const char *symbol, int64_t start, int64_t duration) {
  profile_t *profile = context;
  if (profile->count == 4) FAIL("more than 4 calls, the last is %s", symbol);
  profile->symbols[profile->count] = symbol;
  profile->start[profile->count] = start;
  profile->duration[profile->count++] = duration;
}

/* A run that is measured computes as others do, and calls follow one another. */
static void profile(char **argv) {
  open_bundle(argv);
  const packager_bundle_v1_t *table = bundle.table;
  for (int threads = 1; threads <= 3; threads += 2) {
    profile_t found = {0};
    CHECK_OK(table, table->set_threads(threads));
    memset(d->sum, 0xff, sizeof(float) * 20);
    CHECK_OK(table, table->session_profile(session, d->inputs, 2, d->outputs, 2, report_call, &found));
    dynamic_check(d);
    CHECK_EQ(found.count, 2);
    CHECK_TEXT(found.symbols[0], "scale");
    CHECK_TEXT(found.symbols[1], "add");
    CHECK_EQ(found.start[0], 0);
    CHECK(found.duration[0] >= 0 && found.duration[1] >= 0);
    CHECK_EQ(found.start[1], found.duration[0]);
    dynamic_run_checked(table, session, d); /* and is not measured */
  }
  d->b[0] = -777; /* makes "add" fail */
  CHECK_EQ(table->session_profile(session, d->inputs, 2, d->outputs, 2, report_nothing, NULL), PACKAGER_ERROR_KERNEL);
  CHECK_TEXT(table->session_error(session), "call 2 (add) reported failure");
  close_bundle();
}

int main(int argc, char **argv) {
  static const case_t cases[] = {
      {"arguments", arguments}, {"kinds", kinds},       {"shapes", shapes}, {"layouts", layouts},
      {"memory", memory},       {"overlaps", overlaps}, {"empty", empty},   {"output_shape", output_shape},
      {"profile", profile}};
  return run_case(cases, sizeof cases / sizeof *cases, argc, argv);
}
