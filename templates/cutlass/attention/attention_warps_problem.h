/* What the warps of an attention of short sequences know of it. */
#pragma once

#include "attention_split_problem.h"

namespace pk {

constexpr int kWarpsOfBlock = 4;

struct WarpsParams {
  SplitParams rows;
  int64_t tiles;  // of 16 rows, of all heads of keys of all batches
  int32_t shared_heads;
};

}  // namespace pk
