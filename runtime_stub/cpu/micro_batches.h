/* micro_batches.h: runs of a model that was compiled for a part of its batch. */
#ifndef PK_MICRO_BATCHES_H_
#define PK_MICRO_BATCHES_H_

#include "../src/runtime.h"

/* How many micro-batches this run of the entry has; 0: it has none, or there is nothing to compute. */
static inline int64_t pk_count_batches(const packager_session_t *session) {
  const pk_entry_t *entry = session->entry;
  return entry->batch_dim ? session->dims[entry->batch_dim - 1] : entry->batches;
}

/* Runs the entry for each of its micro-batches. Returns 0, the 1-based index of a call that failed, or -1 if the host
 * program's threads did not run all. A run that is measured takes them one after the other. */
int32_t pk_run_batches(packager_session_t *session);

#endif /* PK_MICRO_BATCHES_H_ */
