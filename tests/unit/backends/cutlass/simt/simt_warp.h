/* The instructions of templates/cutlass/common/warp.h on the host; included there, in namespace pk. */
template <class Type>
inline void mma(float (&acc)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0, uint32_t b1) {
  simt::exchange({a0, a1, a2, a3, b0, b1}, [&](const uint32_t (&words)[32][6]) {
    const int g = simt::lane() / 4, t = simt::lane() % 4;
    const auto element = [](uint32_t pair, int second) { return second ? high_of<Type>(pair) : low_of<Type>(pair); };
    for (int n = 0; n < 4; n++) {
      const int row = g + n / 2 * 8, column = 2 * t + n % 2;
      float sum = 0.0f;
      for (int k = 0; k < 16; k++) {
        const uint32_t a = words[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2],
                       b = words[column * 4 + k % 8 / 2][4 + k / 8];
        sum += element(a, k % 2) * element(b, k % 2);
      }
      acc[n] += sum;
    }
    return 0;
  });
}
inline uint4 load_once(const void *from) {
  if (reinterpret_cast<uintptr_t>(from) % 16 != 0 || !simt::is_readable(from, 16)) abort();
  return *static_cast<const uint4 *>(from);
}
/* Copies are made as late as a kernel allows: when it waits for them. */
inline void copy_async(uint4 *to, const void *from, bool exists) {
  if (reinterpret_cast<uintptr_t>(to) % 16 != 0) abort();
  simt::grid->running->copies.back().push_back({to, exists ? load_once(from) : uint4{0, 0, 0, 0}});
}
inline void end_copies() { simt::grid->running->copies.emplace_back(); }
template <int kLeft>
inline void wait_for_copies() {
  for (auto &copies = simt::grid->running->copies; copies.size() > kLeft + 1; copies.pop_front()) {
    for (const simt::Copy &copy : copies.front()) *static_cast<uint4 *>(copy.to) = copy.value;
  }
}
inline uint32_t low_halves(uint32_t a, uint32_t b) { return (a & 0xffffu) | b << 16; }
inline uint32_t high_halves(uint32_t a, uint32_t b) { return a >> 16 | (b & 0xffff0000u); }
inline uint32_t low_bytes(uint32_t word, uint32_t above) {
  return (word & 0xffu) | (word & 0xff00u) << 8 | above * 0x01000100u;
}
inline uint32_t high_bytes(uint32_t word, uint32_t above) { return low_bytes(word >> 16, above); }
inline void prefetch(const void *) {}
inline uint32_t select_bits(uint32_t word, uint32_t mask, uint32_t above) { return (word & mask) | above; }
inline uint32_t fma_pairs(uint32_t a, uint32_t b, uint32_t c) {
  return pack<F16>(low_of<F16>(a) * low_of<F16>(b) + low_of<F16>(c),
                   high_of<F16>(a) * high_of<F16>(b) + high_of<F16>(c));
}
inline float exp2_of(float x) { return exp2f(x); }
inline float reciprocal_of(float x) { return 1.0f / x; }
inline float shuffle_xor(float x, int mask) {
  return simt::exchange({reinterpret_cast<const uint32_t &>(x)}, [&](const uint32_t (&words)[32][6]) {
    return reinterpret_cast<const float &>(words[simt::lane() ^ mask][0]);
  });
}
inline bool any_lane(bool x) {
  return simt::exchange({uint32_t(x)}, [](const uint32_t (&words)[32][6]) {
    bool any = false;
    for (const auto &lane : words) any |= lane[0] != 0;
    return any;
  });
}
inline void wait_for_earlier() {}
inline void release_next() {}
inline void arrive_at_cluster() {}
inline void wait_for_cluster() { simt::meet(simt::grid->barrier, int(simt::grid->fibers.size())); }
inline void cluster_sync() { wait_for_cluster(); }
/* The same place in the memory of another block of the cluster. */
template <class Value>
inline Value *place_of_block(const Value *place, uint32_t rank) {
  const char *memory = simt::grid->running->block->memory.data();
  const size_t offset = reinterpret_cast<const char *>(place) - memory;
  return reinterpret_cast<Value *>(simt::grid->cluster[rank].memory.data() + offset);
}
using OfBlock = char *;
template <int kBlocks>
inline OfBlock memory_of_block(const void *start, uint32_t rank) {
  return place_of_block(static_cast<const char *>(start), rank);
}
template <int kBlocks, class Storage>
inline void store_to_block(OfBlock start, int offset, Storage x) {
  memcpy(start + offset, &x, sizeof x);
}
