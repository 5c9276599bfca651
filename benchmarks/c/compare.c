/* Runs the same model in several engines, in turns, on one thread.
 *
 *     compare [-r ROUNDS] [-n CALLS] -i NAME:DTYPE:SHAPE... -o NAME:DTYPE:SHAPE... ENGINE...
 *
 * An ENGINE is NAME=ARGUMENT[,ARGUMENT]...; a shape is 1,3,224,224. In a round each engine makes CALLS timed calls in
 * a row, after one that is not timed. Prints
 *     phase ENGINE open|load|create|first NANOSECONDS
 *     difference ENGINE VALUE      the greatest from the first engine's outputs, as a part of their greatest value
 *     round ENGINE NANOSECONDS     per call
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine.h"

#define MAX_ENGINES 4

static void print_phase(const engine_t *engine, const char *phase, int64_t *start) {
  int64_t end = now();
  printf("phase %s %s %lld\n", engine->name, phase, (long long)(end - *start));
  *start = now();
}

static void start_engine(const entrant_t *entrant, tensors_t *tensors) {
  const engine_t *engine = entrant->engine;
  int64_t start = now();
  engine->open(entrant->arguments, 1);
  print_phase(engine, "open", &start);
  engine->load();
  print_phase(engine, "load", &start);
  engine->create(tensors);
  print_phase(engine, "create", &start);
  engine->run();
  print_phase(engine, "first", &start);
}

/* Outputs are float32. */
static void print_difference(const engine_t *engine, const tensor_t *output, float *expected, int is_first) {
  const float *got = output->view.data;
  if (is_first) memcpy(expected, got, output->bytes);
  double difference = 0, greatest = 0;
  for (uint64_t i = 0; i < output->bytes / sizeof(float); ++i) {
    difference = fmax(difference, fabs((double)got[i] - (double)expected[i]));
    greatest = fmax(greatest, fabs((double)expected[i]));
  }
  printf("difference %s %g\n", engine->name, difference / greatest);
}

static void run_round(const engine_t *engine, int64_t calls) {
  engine->run();
  int64_t start = now();
  for (int64_t i = 0; i < calls; ++i) engine->run();
  printf("round %s %.1f\n", engine->name, (double)(now() - start) / (double)calls);
}

int main(int argc, char **argv) {
  static tensors_t tensors;
  entrant_t entrants[MAX_ENGINES] = {0};
  int32_t rounds = 0, num_entrants = 0;
  int64_t calls = 1;
  for (int option; (option = getopt(argc, argv, "r:n:i:o:")) != -1;) {
    if (option == 'r') rounds = atoi(optarg);
    if (option == 'n') calls = atoll(optarg);
    if (option == 'i') parse_tensor(tensors.inputs, &tensors.num_inputs, optarg);
    if (option == 'o') parse_tensor(tensors.outputs, &tensors.num_outputs, optarg);
    if (option == '?') fail("unknown option");
  }
  for (; optind < argc; ++optind) {
    if (num_entrants == MAX_ENGINES) fail("more than %d engines", MAX_ENGINES);
    parse_engine(&entrants[num_entrants++], argv[optind]);
  }
  if (tensors.num_outputs != 1) fail("the model has to have one output");

  float *expected = malloc(tensors.outputs[0].bytes);
  if (!expected) fail("out of memory");
  for (int32_t i = 0; i < num_entrants; ++i) {
    memset(tensors.outputs[0].view.data, 0xff, tensors.outputs[0].bytes); /* NaN: an engine that writes nothing shows */
    start_engine(&entrants[i], &tensors);
    print_difference(entrants[i].engine, &tensors.outputs[0], expected, i == 0);
  }
  for (int32_t round = 0; round < rounds; ++round) {
    for (int32_t i = 0; i < num_entrants; ++i) run_round(entrants[i].engine, calls);
    fflush(stdout);
  }
  free(expected);
  return 0;
}
