/* Runs the same model in several engines, in turns.
 *
 *     compare [-t THREADS] [-r ROUNDS] [-n CALLS] [-b SECONDS] -i NAME:DTYPE:SHAPE... -o NAME:DTYPE:SHAPE... ENGINE...
 *
 * An ENGINE is NAME=ARGUMENT[,ARGUMENT]...; a shape is 1,3,224,224. In a round each engine makes CALLS timed calls in
 * a row, after one that is not timed. An engine whose timed calls have taken SECONDS sits out the remaining rounds.
 * Prints
 *     phase ENGINE open|load|create|first NANOSECONDS
 *     difference ENGINE VALUE      the greatest from the first engine's outputs, as a part of their greatest value
 *     round ENGINE NANOSECONDS     per call
 * SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine.h"

#define MAX_ENGINES 4
#define PAUSE_NS 20000000 /* worker threads of the last engine have stopped spinning after it */

typedef struct {
  entrant_t entrant;
  int64_t spent;
} contestant_t;

static void print_phase(const engine_t *engine, const char *phase, int64_t *start) {
  int64_t end = now();
  printf("phase %s %s %lld\n", engine->name, phase, (long long)(end - *start));
  *start = now();
}

static void start_engine(const entrant_t *entrant, tensors_t *tensors, int32_t threads) {
  const engine_t *engine = entrant->engine;
  int64_t start = now();
  engine->open(entrant->arguments, threads);
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

static void run_round(contestant_t *contestant, int64_t calls, int32_t threads) {
  void (*run)(void) = contestant->entrant.engine->run;
  if (threads > 1) nanosleep(&(struct timespec){0, PAUSE_NS}, NULL);
  run();
  int64_t start = now();
  for (int64_t i = 0; i < calls; ++i) run();
  int64_t elapsed = now() - start;
  contestant->spent += elapsed;
  printf("round %s %.1f\n", contestant->entrant.engine->name, (double)elapsed / (double)calls);
}

int main(int argc, char **argv) {
  static tensors_t tensors;
  contestant_t contestants[MAX_ENGINES] = {0};
  int32_t threads = 1, rounds = 0, num_contestants = 0;
  int64_t calls = 1;
  double seconds = INFINITY;
  for (int option; (option = getopt(argc, argv, "t:r:n:b:i:o:")) != -1;) {
    if (option == 't') threads = atoi(optarg);
    if (option == 'r') rounds = atoi(optarg);
    if (option == 'n') calls = atoll(optarg);
    if (option == 'b') seconds = atof(optarg);
    if (option == 'i') parse_tensor(tensors.inputs, &tensors.num_inputs, optarg);
    if (option == 'o') parse_tensor(tensors.outputs, &tensors.num_outputs, optarg);
    if (option == '?') fail("unknown option");
  }
  for (; optind < argc; ++optind) {
    if (num_contestants == MAX_ENGINES) fail("more than %d engines", MAX_ENGINES);
    parse_engine(&contestants[num_contestants++].entrant, argv[optind]);
  }
  if (tensors.num_outputs != 1) fail("the model has to have one output");

  float *expected = malloc(tensors.outputs[0].bytes);
  if (!expected) fail("out of memory");
  for (int32_t i = 0; i < num_contestants; ++i) {
    memset(tensors.outputs[0].view.data, 0xff, tensors.outputs[0].bytes); /* NaN: an engine that writes nothing shows */
    start_engine(&contestants[i].entrant, &tensors, threads);
    print_difference(contestants[i].entrant.engine, &tensors.outputs[0], expected, i == 0);
  }
  for (int32_t round = 0; round < rounds; ++round) {
    for (int32_t i = 0; i < num_contestants; ++i) {
      if ((double)contestants[i].spent < seconds * 1e9) run_round(&contestants[i], calls, threads);
    }
    fflush(stdout);
  }
  free(expected);
  return 0;
}
