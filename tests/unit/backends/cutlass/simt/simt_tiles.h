/* The instructions of templates/cutlass/common/tiles.h on the host; included there, in namespace pk. A barrier in
 * memory counts the phases that are over. */
/* What tests make of a tensor in place of the driver's map. */
struct HostMap {
  uint64_t address, extents[4], strides[3];
  uint32_t box[4];
};
static_assert(sizeof(HostMap) <= sizeof(TensorMap), "in place of a map");

/* Of a phase: bytes of tiles, or lanes whose pieces are on their way. */
struct TilesInFlight {
  uint32_t expected = 0, bytes = 0;
  std::vector<std::function<void()>> copies;
};
static std::map<uint64_t *, TilesInFlight> tiles_in_flight;
static uint32_t tiles_asked_for;

inline void sync_warp() { simt::meet(simt::warp().barrier, 32); }
inline void init_barrier(uint64_t *barrier, int) { *barrier = 0, tiles_in_flight.erase(barrier); }
inline void expect_tiles(uint64_t *barrier, uint32_t bytes) { tiles_in_flight[barrier].expected = bytes; }
inline void copy_tile(void *to, const TensorMap *map, int x, int y, int z, int w, uint64_t *barrier) {
  HostMap of;
  memcpy(&of, map, sizeof of);
  if (reinterpret_cast<uintptr_t>(to) % 1024 != 0 || of.box[0] != kTileColumns) abort();
  const auto copy = [=] {
    for (uint32_t row = 0; row < of.box[1]; row++) {
      for (uint32_t piece = 0; piece < 8; piece++) {
        const uint64_t column = x + 8 * piece, at[3] = {uint64_t(y) + row, uint64_t(z), uint64_t(w)};
        bool exists = column < of.extents[0];
        uint64_t from = of.address + 2 * column;
        for (int i = 0; i < 3; i++) exists &= at[i] < of.extents[1 + i], from += at[i] * of.strides[i];
        *reinterpret_cast<uint4 *>(static_cast<char *>(to) + piece_of_tile(row, piece)) =
            exists ? load_once(reinterpret_cast<const void *>(from)) : uint4{0, 0, 0, 0};
      }
    }
  };
  TilesInFlight &tiles = tiles_in_flight[barrier];
  tiles.bytes += of.box[1] * kTileRowBytes;
  // Every other tile is there at once, the others when they are waited for.
  tiles_asked_for++ % 2 ? copy() : tiles.copies.push_back(copy);
}
inline void prefetch_tile(const TensorMap *, int, int, int, int) {}
inline void end_pieces(uint64_t *barrier) {
  TilesInFlight &tiles = tiles_in_flight[barrier];
  tiles.expected = 32, tiles.bytes++;
  std::vector<simt::Copy> &open = simt::grid->running->copies.back();
  tiles.copies.push_back([copies = std::move(open)] {
    for (const simt::Copy &copy : copies) *static_cast<uint4 *>(copy.to) = copy.value;
  });
  open.clear();
}
inline void wait_for_tiles(uint64_t *barrier, uint32_t phase) {
  sync_warp();  // its lanes have arrived
  if (TilesInFlight &tiles = tiles_in_flight[barrier]; tiles.bytes != 0) {
    if (tiles.bytes != tiles.expected) abort();
    for (const auto &copy : tiles.copies) copy();
    tiles_in_flight.erase(barrier);
    ++*barrier;
  }
  if (*barrier % 2 == phase) abort();  // a warp would wait forever
}
template <class Value>
inline void send_to_block(Value *place, Value x, uint64_t *barrier, uint32_t rank) {
  Value *const to = place_of_block(place, rank);
  if (reinterpret_cast<uintptr_t>(to) % sizeof x != 0) abort();
  *to = x, tiles_in_flight[place_of_block(barrier, rank)].bytes += sizeof x;
}
inline void wait_for_sent(uint64_t *barrier) {
  wait_for_cluster();  // all have sent
  if (const TilesInFlight &sent = tiles_in_flight[barrier]; sent.bytes != sent.expected) abort();
}
