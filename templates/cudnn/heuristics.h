/* The library's answers to a problem, best first: engines that need no compiler on the target, whose results do not
 * depend on the order of threads, and whose arithmetic is that of the types. */
#ifndef PK_CUDNN_HEURISTICS_H_
#define PK_CUDNN_HEURISTICS_H_

#include "graph.h"

/* Winograd and FFT round transformed images to half precision. */
static int pk_cudnn_has_note(pk_cudnn_scope_t *scope, cudnnBackendDescriptor_t engine, int attribute, int type,
                             const int32_t *unwanted, int num_unwanted) {
  int32_t notes[32];
  int64_t count = 0;
  if (scope->status) return 0;
  scope->status = DNN.cudnnBackendGetAttribute(engine, attribute, type, 32, &count, notes);
  for (int64_t i = 0; i < count && i < 32; ++i) {
    for (int k = 0; k < num_unwanted; ++k) {
      if (notes[i] == unwanted[k]) return 1;
    }
  }
  return 0;
}

static int pk_cudnn_is_wanted(pk_cudnn_scope_t *scope, cudnnBackendDescriptor_t engine) {
  static const int32_t behavior[] = {CUDNN_BEHAVIOR_NOTE_RUNTIME_COMPILATION};
  static const int32_t numerical[] = {CUDNN_NUMERICAL_NOTE_REDUCED_PRECISION_REDUCTION, CUDNN_NUMERICAL_NOTE_FFT,
                                      CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC, CUDNN_NUMERICAL_NOTE_WINOGRAD};
  return !pk_cudnn_has_note(scope, engine, CUDNN_ATTR_ENGINE_BEHAVIOR_NOTE, CUDNN_TYPE_BEHAVIOR_NOTE, behavior, 1) &&
         !pk_cudnn_has_note(scope, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, numerical, 4);
}

static void pk_cudnn_get(pk_cudnn_scope_t *scope, cudnnBackendDescriptor_t descriptor, int attribute, int type,
                         int64_t room, int64_t *count, void *elements) {
  if (!scope->status) {
    scope->status = DNN.cudnnBackendGetAttribute(descriptor, attribute, type, room, count, elements);
  }
}

/* Reads a configuration. Returns whether it is one to take. */
static int pk_cudnn_read(pk_cudnn_scope_t *scope, cudnnBackendDescriptor_t config, pk_cudnn_choice_t *choice) {
  cudnnBackendDescriptor_t knobs[PK_CUDNN_MAX_KNOBS];
  int64_t count = 0, one = 0, index = 0, value = 0;
  memset(choice, 0, sizeof *choice);
  cudnnBackendDescriptor_t engine = pk_cudnn_create(scope, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
  pk_cudnn_get(scope, config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &one, &engine);
  pk_cudnn_get(scope, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &one, &index);
  choice->engine = (int32_t)index;
  if (scope->status || !pk_cudnn_is_wanted(scope, engine)) return 0;
  for (int i = 0; i < PK_CUDNN_MAX_KNOBS; ++i) {
    knobs[i] = pk_cudnn_create(scope, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
  }
  pk_cudnn_get(scope, config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, PK_CUDNN_MAX_KNOBS,
               &count, knobs);
  if (scope->status || count > PK_CUDNN_MAX_KNOBS) return 0;
  choice->num_knobs = (int32_t)count;
  for (int64_t i = 0; i < count; ++i) {
    pk_cudnn_get(scope, knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &one,
                 &choice->knobs[i][0]);
    pk_cudnn_get(scope, knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &one, &value);
    choice->knobs[i][1] = (int32_t)value;
    if (choice->knobs[i][1] != value) return 0;
  }
  return !scope->status;
}

/* Asks in one mode. The configurations are the caller's; returns how many there are. */
static int64_t pk_cudnn_configurations(pk_cudnn_scope_t *scope, const pk_cudnn_place_t *place,
                                       cudnnBackendDescriptor_t graph, int mode, cudnnBackendDescriptor_t *configs) {
  int64_t count = 0;
  cudnnBackendDescriptor_t heuristics = pk_cudnn_create(scope, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
  pk_cudnn_set_descriptor(scope, heuristics, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
  pk_cudnn_set_int(scope, heuristics, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, mode);
  if (place->description) {
    pk_cudnn_set_descriptor(scope, heuristics, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, place->description);
  }
  pk_cudnn_finalize(scope, heuristics);
  for (int i = 0; i < PK_CUDNN_MAX_ANSWERS && !scope->status; ++i) {
    scope->status = DNN.cudnnBackendCreateDescriptor(CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, &configs[i]);
  }
  pk_cudnn_get(scope, heuristics, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR, PK_CUDNN_MAX_ANSWERS,
               &count, configs);
  if (scope->status) return 0;
  return count < PK_CUDNN_MAX_ANSWERS ? count : PK_CUDNN_MAX_ANSWERS;
}

static int pk_cudnn_is_known(const pk_cudnn_choice_t *choices, int32_t count, const pk_cudnn_choice_t *choice) {
  for (int32_t i = 0; i < count; ++i) {
    if (!memcmp(&choices[i], choice, sizeof *choice)) return 1;
  }
  return 0;
}

/* Takes the answers of one mode of which a plan can be made. Returns how many choices there are then; what goes wrong
 * with one answer leaves the others. */
static int32_t pk_cudnn_ask_mode(const pk_cudnn_conv_t *conv, const pk_cudnn_place_t *place,
                                 cudnnBackendDescriptor_t graph, int mode, int32_t room, pk_cudnn_choice_t *choices,
                                 int32_t taken) {
  cudnnBackendDescriptor_t configs[PK_CUDNN_MAX_ANSWERS] = {NULL};
  pk_cudnn_scope_t scope = {0, 0, {NULL}};
  const int64_t count = pk_cudnn_configurations(&scope, place, graph, mode, configs);
  pk_cudnn_destroy_to(&scope, 0);
  for (int64_t i = 0; i < count && taken < room; ++i) {
    int64_t workspace = 0;
    scope.status = 0;
    if (pk_cudnn_read(&scope, configs[i], &choices[taken]) && !pk_cudnn_is_known(choices, taken, &choices[taken]) &&
        pk_cudnn_plan(&scope, conv, place, configs[i], &workspace)) {
      ++taken;
    }
    pk_cudnn_destroy_to(&scope, 0);
  }
  for (int i = 0; i < PK_CUDNN_MAX_ANSWERS; ++i) {
    if (configs[i]) DNN.cudnnBackendDestroyDescriptor(configs[i]);
  }
  return taken;
}

/* Writes the library's best answers, at most `room` of them. Returns how many there are. */
static int32_t pk_cudnn_ask(const pk_cudnn_conv_t *conv, const pk_cudnn_place_t *place, cudnnBackendDescriptor_t graph,
                            int32_t room, pk_cudnn_choice_t *choices) {
  int32_t taken = pk_cudnn_ask_mode(conv, place, graph, CUDNN_HEUR_MODE_A, room, choices, 0);
  return pk_cudnn_ask_mode(conv, place, graph, CUDNN_HEUR_MODE_FALLBACK, room, choices, taken);
}

#endif /* PK_CUDNN_HEURISTICS_H_ */
