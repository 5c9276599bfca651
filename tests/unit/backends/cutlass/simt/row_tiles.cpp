/* Tiles of the rows of groups, found on the host. */
#include "simt.h"
/* It reads what simt.h defines. */
#include "row_tiles.h"

/* Writes group, first row and rows of each tile, and returns how many there are. */
extern "C" int32_t find_tiles(const int32_t *ends, int32_t groups, int32_t rows, int32_t height, int32_t (*tiles)[3]) {
  const uint32_t count = uint32_t(pk::most_row_tiles(rows, groups, height));
  simt::launch({1, count, 1}, 32, 0, 1, [&](char *) {
    const pk::RowTile tile = pk::find_row_tile(ends, groups, rows, height, int(blockIdx.y));
    int32_t *place = tiles[blockIdx.y];
    place[0] = tile.group, place[1] = tile.first, place[2] = tile.count;
  });
  return int32_t(count);
}
