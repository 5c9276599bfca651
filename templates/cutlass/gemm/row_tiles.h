/* Tiles of the rows of groups, of one group each: there are as many as any ends may make, and some have no rows. */
#pragma once

#include <stdint.h>

#include <algorithm>

namespace pk {

/* Rows of a tile: `count` from `first` on, none if there is no such tile. `group` is that of all groups behind them. */
struct RowTile {
  int32_t group, first, count;
};

/* Tiles of `height` rows that any ends of groups make at most, with those of the rows behind the last group. */
inline int64_t most_row_tiles(int64_t rows, int64_t groups, int64_t height) {
  return std::min(rows, rows / height + std::min(groups + 1, rows));
}

#if !defined(PK_HOST) || defined(PK_SIMT)
/* Finds the tile of a number; all lanes of a warp call it. Rows behind the last group are as those of one more. */
__device__ inline RowTile find_row_tile(const int32_t *ends, int groups, int rows, int height, int number) {
  const int lane = threadIdx.x % 32;
  for (int first = 0, start = 0; first <= groups; first += 32) {
    const int group = first + lane;
    const int end = group < groups ? std::min(std::max(ends[group], 0), rows) : rows;
    int begin = __shfl_up_sync(~0u, end, 1);
    if (lane == 0) begin = start;
    const int tiles = (std::max(0, end - begin) + height - 1) / height;
    int sum = tiles;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(~0u, sum, step);
      if (lane >= step) sum += other;
    }
    if (const unsigned behind = __ballot_sync(~0u, number < sum)) {
      const int found = __ffs(behind) - 1;
      const int at = begin + (number - (sum - tiles)) * height;
      const int count = std::min(height, end - at);
      return {first + found, __shfl_sync(~0u, at, found), __shfl_sync(~0u, count, found)};
    }
    number -= __shfl_sync(~0u, sum, 31);
    start = __shfl_sync(~0u, end, 31);
  }
  return {groups, rows, 0};
}
#endif

}  // namespace pk
