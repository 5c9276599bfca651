/* How an attention of short sequences is launched. */
#pragma once

#include "attention_split_fill.h"
#include "attention_warps_problem.h"

namespace pk {

inline int32_t warps_fill(const pk_attention_t &problem, bool causal, int depth, int keys, void *arguments,
                          pk_cuda_launch_t *launch) {
  *launch = {};
  if (problem.batch == 0 || problem.heads == 0 || problem.queries == 0) return 0;
  WarpsParams &p = *static_cast<WarpsParams *>(arguments);
  if (problem.keys > keys || !fill_rows(problem, causal, depth, p.rows)) return -1;
  p.shared_heads = int32_t(problem.heads / problem.group);
  p.tiles = problem.batch * p.shared_heads * p.rows.row_tiles.divisor;
  const int64_t blocks = (p.tiles + kWarpsOfBlock - 1) / kWarpsOfBlock;
  if (blocks > INT32_MAX) return -1;
  *launch = {{uint32_t(blocks), 1, 1}, {32 * kWarpsOfBlock, 1, 1}, 0, PK_CUDA_PROGRAMMATIC};
  return 0;
}

}  // namespace pk
