/* Runs a model in one engine, when it is told to.
 *
 *     serve [-t THREADS] -i NAME:DTYPE:SHAPE FILE... -o NAME:DTYPE:SHAPE FILE... ENGINE
 *
 * Reads the inputs' data from files of this machine's byte order, loads the model, runs it once, writes the outputs to
 * files, and prints
 *     ready NANOSECONDS NANOSECONDS NANOSECONDS    to open the library, to load the model, of the first run
 * Then it answers each line
 *     run WARMUP SAMPLES CALLS
 * of its standard input with SAMPLES numbers in a line: nanoseconds of CALLS runs in a row, after WARMUP runs that are
 * not measured. SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "engine.h"

static void transfer(const tensor_t *tensor, const char *path, int writing) {
  FILE *file = fopen(path, writing ? "wb" : "rb");
  if (!file) fail("%s cannot be opened", path);
  uint64_t done =
      writing ? fwrite(tensor->view.data, 1, tensor->bytes, file) : fread(tensor->view.data, 1, tensor->bytes, file);
  if (done != tensor->bytes || fclose(file)) fail("%s: not %llu bytes", path, (unsigned long long)tensor->bytes);
}

static void answer(void (*run)(void), int64_t warmup, int64_t samples, int64_t calls) {
  int64_t *taken = malloc(sizeof *taken * (size_t)(samples + 1));
  if (!taken) fail("out of memory");
  for (int64_t i = 0; i < warmup; ++i) run();
  for (int64_t i = 0; i < samples; ++i) {
    int64_t start = now();
    for (int64_t call = 0; call < calls; ++call) run();
    taken[i] = now() - start;
  }
  for (int64_t i = 0; i < samples; ++i) printf("%lld ", (long long)taken[i]);
  printf("\n");
  fflush(stdout);
  free(taken);
}

int main(int argc, char **argv) {
  static tensors_t tensors;
  const char *input_files[MAX_TENSORS], *output_files[MAX_TENSORS];
  int32_t threads = 1;
  prctl(PR_SET_PDEATHSIG, SIGKILL); /* who started it may be killed while it is stopped */
  for (int option; (option = getopt(argc, argv, "+t:i:o:")) != -1;) {
    if (option == 't') threads = atoi(optarg);
    if (option == '?') fail("unknown option");
    if (option == 't') continue;
    if (optind == argc) fail("%s: no file", optarg);
    tensor_t *group = option == 'i' ? tensors.inputs : tensors.outputs;
    int32_t *count = option == 'i' ? &tensors.num_inputs : &tensors.num_outputs;
    parse_tensor(group, count, optarg);
    (option == 'i' ? input_files : output_files)[*count - 1] = argv[optind++];
  }
  if (optind + 1 != argc) fail("expected one engine");
  entrant_t entrant = {0};
  parse_engine(&entrant, argv[optind]);
  for (int32_t i = 0; i < tensors.num_inputs; ++i) transfer(&tensors.inputs[i], input_files[i], 0);
  for (int32_t i = 0; i < tensors.num_outputs; ++i) {
    memset(tensors.outputs[i].view.data, 0xff, tensors.outputs[i].bytes); /* NaN: an engine that writes nothing shows */
  }

  const engine_t *engine = entrant.engine;
  int64_t start = now();
  engine->open(entrant.arguments, threads);
  int64_t opened = now();
  engine->load();
  engine->create(&tensors);
  int64_t loaded = now();
  engine->run();
  int64_t end = now();
  for (int32_t i = 0; i < tensors.num_outputs; ++i) transfer(&tensors.outputs[i], output_files[i], 1);
  printf("ready %lld %lld %lld\n", (long long)(opened - start), (long long)(loaded - opened),
         (long long)(end - loaded));
  fflush(stdout);
  for (long long warmup, samples, calls; scanf(" run %lld %lld %lld", &warmup, &samples, &calls) == 3;) {
    answer(engine->run, warmup, samples, calls);
  }
  return 0;
}
