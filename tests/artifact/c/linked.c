/* Two models linked into one program, without dlopen: both sessions live at once and take turns. C99 and C++11.
 *
 *     linked FIRST_INPUT FIRST_OUTPUT SECOND_INPUT SECOND_OUTPUT
 *
 * Files of float32; the batch follows from the size of the input. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "first.h"
#include "second.h"

#if FIRST_NUM_INPUTS != 1 || FIRST_NUM_OUTPUTS != 1 || SECOND_NUM_INPUTS != 1 || SECOND_NUM_OUTPUTS != 1
#error "one input and one output each"
#endif

#define MAX_VALUES 65536

typedef struct {
  const packager_bundle_v1_t *bundle;
  packager_session_t *session;
  float input[MAX_VALUES], output[MAX_VALUES];
  int64_t input_shape[8], output_shape[8];
  DLTensor x, y;
} net_t;

static net_t nets[2];

static void check(const net_t *net, const char *call, int32_t status) {
  if (status == PACKAGER_OK) return;
  fprintf(stderr, "%s: %s: %s\n", call, net->bundle->status_name(status), net->bundle->thread_error());
  exit(1);
}

static void describe(DLTensor *tensor, float *data, int64_t *shape, const packager_tensor_info_t *info) {
  memset(tensor, 0, sizeof *tensor);
  tensor->data = data;
  tensor->device.device_type = kDLCPU;
  tensor->ndim = info->ndim;
  tensor->dtype = info->dtype;
  tensor->shape = shape;
}

static size_t count(const DLTensor *tensor) {
  size_t product = 1;
  int32_t i;
  for (i = 0; i < tensor->ndim; ++i) product *= (size_t)tensor->shape[i];
  return product;
}

static void open_net(net_t *net, const packager_bundle_v1_t *bundle, const char *path, int input, int output) {
  const packager_tensor_info_t *info = &bundle->inputs[input];
  FILE *file = fopen(path, "rb");
  size_t values = file ? fread(net->input, sizeof(float), MAX_VALUES, file) : 0, row = 1;
  int32_t i;
  const DLTensor *x = &net->x;
  if (file) fclose(file);
  net->bundle = bundle;
  describe(&net->x, net->input, net->input_shape, info);
  describe(&net->y, net->output, net->output_shape, &bundle->outputs[output]);
  for (i = 1; i < info->ndim; ++i) row *= (size_t)(net->input_shape[i] = info->shape[i]);
  net->input_shape[0] = (int64_t)(values / row);
  check(net, "set_threads", bundle->set_threads(2));
  check(net, "session_create", bundle->session_create(NULL, &net->session));
  check(net, "session_output_shape", bundle->session_output_shape(net->session, &x, 1, output, net->output_shape));
}

static void run_net(net_t *net) {
  const DLTensor *x = &net->x;
  DLTensor *y = &net->y;
  memset(net->output, 0xff, sizeof net->output);
  check(net, "session_run", net->bundle->session_run(net->session, &x, 1, &y, 1, NULL));
}

static void close_net(net_t *net, const char *path) {
  FILE *file = fopen(path, "wb");
  size_t values = count(&net->y);
  if (!file || fwrite(net->output, sizeof(float), values, file) != values || fclose(file)) exit(2);
  check(net, "session_destroy", net->bundle->session_destroy(net->session));
}

int main(int argc, char **argv) {
  int turn;
  if (argc != 5) return 2;
  open_net(&nets[0], first_bundle_v1(), argv[1], FIRST_INPUT_IMAGE, FIRST_OUTPUT_LOGITS);
  open_net(&nets[1], second_bundle_v1(), argv[3], SECOND_INPUT_IMAGE, SECOND_OUTPUT_LOGITS);
  for (turn = 0; turn < 3; ++turn) {
    run_net(&nets[0]);
    run_net(&nets[1]);
  }
  close_net(&nets[0], argv[2]);
  close_net(&nets[1], argv[4]);
  return 0;
}
