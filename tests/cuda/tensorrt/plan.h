/* plan.h: what the stand-in for TensorRT takes for an engine: each output is the sum of the inputs times the weights,
 * which repeat; all float. See plan_bytes() of ../engines.py. */
#ifndef PLAN_H_
#define PLAN_H_

#include <stdint.h>

#define MAX_TENSORS 4
#define MAX_WEIGHTS 16

typedef struct {
  char name[32];
  int32_t mode, type, rank, padding;
  int64_t extents[8]; /* -1: from 1 to 64 */
} plan_tensor_t;

typedef struct {
  char magic[8]; /* FAKEPLAN */
  int32_t version, memory, refittable, num_tensors, num_weights, padding;
  char weights_name[32];
  float weights[MAX_WEIGHTS];
  plan_tensor_t tensors[MAX_TENSORS];
} plan_t;

#endif /* PLAN_H_ */
