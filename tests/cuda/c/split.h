/* split.h: the run of model.c with -DMODEL_SEGMENTS, which the host reads two numbers of: the first 16 bytes of x.
 *   segment 1: scale and add, as in model.c
 *   read taken, 0 or 1, and count, at most 5000
 *   segment 2, a graph for each `taken`: keep, where it is taken; then scale and add
 *   count times segment 3: keep and scale
 *   segment 4, which has count launches, in a loop: keep                                                            */
static int32_t compute(const pk_call_t *call, int32_t number, int64_t n) {
  pk_cuda_step(call->cuda, number);
  if (scale(call->cuda, call->arena, call->inputs[0], call->constants[0], n)) return number;
  pk_cuda_step(call->cuda, number + 1);
  return add(call->cuda, call->outputs[0], call->arena, call->constants[1], n) ? number + 1 : 0;
}

static int32_t keep(const pk_call_t *call, int32_t number, int64_t n) {
  pk_cuda_step(call->cuda, number);
  return pk_cuda_copy(call->cuda, call->outputs[1], call->inputs[0], (uint64_t)n * 16) ? number : 0;
}

static int32_t first(const pk_call_t *call) { return compute(call, 1, call->dims[0]); }

static int32_t second(const pk_call_t *call) {
  int32_t failed = call->extents[0] ? keep(call, 3, call->dims[0]) : 0;
  return failed ? failed : compute(call, 4, call->dims[0]);
}

static int32_t third(const pk_call_t *call) {
  int32_t failed = keep(call, 6, call->dims[0]);
  if (failed) return failed;
  pk_cuda_step(call->cuda, 7);
  return scale(call->cuda, call->arena, call->inputs[0], call->constants[0], call->dims[0]) ? 7 : 0;
}

static int32_t fourth(const pk_call_t *call) {
  int32_t failed = 0;
  for (int64_t i = 0; i < call->extents[1] && !failed; ++i) failed = keep(call, 8, call->dims[0]);
  return failed;
}

static int32_t run(const pk_call_t *call) {
  int32_t failed = pk_cuda_segment(call, 1, 2, 0, NULL, first);
  if (failed) return failed;
  const void *const sources[] = {call->inputs[0], (const uint8_t *)call->inputs[0] + 8};
  int64_t *const targets[] = {&call->extents[0], &call->extents[1]};
  if (pk_cuda_extents(call->cuda, 2, sources, targets)) return 2;
  const int64_t taken = call->extents[0], count = call->extents[1];
  if (taken < 0 || taken > 1) return pk_outside(call, 0, taken, 1);
  if (count < 0 || count > 5000) return pk_outside(call, 1, count, 5000);
  if ((failed = pk_cuda_segment(call, 2, 3, 1, (const int64_t[]){taken}, second))) return failed;
  for (int64_t i = 0; i < count && i < 3; ++i) {
    if ((failed = pk_cuda_segment(call, 3, 2, 0, NULL, third))) return failed;
  }
  return pk_cuda_segment(call, 4, count, 1, &count, fourth);
}

static void room(const int64_t *values, int64_t *extents) {
  for (int i = 0; i < 6; i += 2) {
    extents[i] = values[0];
    extents[i + 1] = 4;
  }
}
static const char *const computed[] = {"taken of If", "count of Loop"};
