/* What a function of a recurrent layer states, for kernels' host code. */
#pragma once

#include <stdint.h>

/* All steps of an LSTM or a GRU, of one direction or two. */
typedef struct {
  const void *x;     /* [steps, batch, directions, gates, hidden]: products of the inputs, with biases */
  const void *w;     /* recurrent weights, as the kernel wants them */
  const void *bias;  /* [directions, hidden], added to the product that a reset gate multiplies; or NULL */
  const void *h, *c; /* [directions, batch, hidden], the first states; NULL: zeros */
  void *y;           /* [steps, batch, directions, hidden], then final states */
  int64_t steps, batch, hidden, directions;
  int64_t place[4];         /* of the gates i, f, c, o of an LSTM, of z, r, h of a GRU, in x */
  int64_t reverse;          /* bit d: direction d goes from the last step to the first */
  int64_t final_h, final_c; /* rows of y after the steps; -1: not wanted */
} pk_recurrent_t;
