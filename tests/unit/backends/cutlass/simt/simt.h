/* Runs kernels of templates/cutlass on the host: each thread of a block is a fiber. Fibers run until they meet a
 * barrier or an instruction of a whole warp, one after the other; all blocks of a cluster are there at a time. */
#pragma once
#include <cuda_runtime.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <vector>

namespace simt {

/* Memory of blocks begins where tiles may. */
template <class Value>
struct Aligned {
  using value_type = Value;
  Value *allocate(size_t count) {
    return static_cast<Value *>(aligned_alloc(1024, (count * sizeof(Value) + 1023) / 1024 * 1024));
  }
  void deallocate(Value *place, size_t) { free(place); }
};
struct Barrier {
  int arrived = 0, generation = 0;
};
struct Warp {
  Barrier barrier;
  uint32_t words[32][6];
};
struct Block {
  uint3 index;
  Barrier barrier;
  std::vector<Warp> warps;
  std::vector<char, Aligned<char>> memory;
};
struct Copy {
  void *to;
  uint4 value;
};
struct Fiber {
  ucontext_t context;
  std::deque<std::vector<Copy>> copies{1};  // groups, the last of which is open
  std::unique_ptr<char[]> stack;
  Block *block;
  uint3 index;
  bool ended = false;
};
struct Grid {
  uint3 blocks;
  std::vector<Block> cluster;
  Barrier barrier;
  std::vector<Fiber> fibers;
  Fiber *running = nullptr;
  ucontext_t scheduler;
  std::function<void(char *)> kernel;
};
inline Grid *grid = nullptr;

inline void yield() { swapcontext(&grid->running->context, &grid->scheduler); }
inline void meet(Barrier &barrier, int count) {
  const int generation = barrier.generation;
  if (++barrier.arrived == count) {
    barrier.arrived = 0;
    barrier.generation++;
  }
  while (barrier.generation == generation) yield();
}
inline int threads() { return int(grid->fibers.size() / grid->cluster.size()); }
inline Warp &warp() { return grid->running->block->warps[grid->running->index.x / 32]; }
inline int lane() { return int(grid->running->index.x % 32); }

/* Writes a lane's words, and calls `read` with those of the warp. */
template <class Read>
inline auto exchange(std::initializer_list<uint32_t> words, Read const &read) {
  std::copy(words.begin(), words.end(), warp().words[lane()]);
  meet(warp().barrier, 32);
  const auto result = read(warp().words);
  meet(warp().barrier, 32);
  return result;
}

inline void enter() {
  grid->kernel(grid->running->block->memory.data());
  grid->running->ended = true;
  for (;;) yield();
}

/* Launches `kernel`, which is given its block's dynamic shared memory; a cluster is of blocks along x. */
inline void launch(const uint32_t (&blocks)[3], int threads, uint32_t shared, int cluster,
                   std::function<void(char *)> kernel) {
  constexpr size_t kStack = 1 << 17;
  for (uint32_t z = 0; z < blocks[2]; z++)
    for (uint32_t y = 0; y < blocks[1]; y++)
      for (uint32_t x = 0; x < blocks[0]; x += cluster) {
        Grid current{{blocks[0], blocks[1], blocks[2]}};
        current.kernel = kernel;
        current.cluster.resize(cluster);
        current.fibers.resize(size_t(cluster) * threads);
        grid = &current;
        for (int i = 0; i < cluster; i++) {
          Block &block = current.cluster[i];
          block.index = {x + i, y, z};
          block.warps.resize(threads / 32);
          block.memory.assign(shared, 0x7f);  // not zeros: it is not initialized
          for (int t = 0; t < threads; t++) {
            Fiber &fiber = current.fibers[size_t(i) * threads + t];
            fiber.stack.reset(new char[kStack]);
            fiber.block = &block;
            fiber.index = {uint32_t(t), 0, 0};
            getcontext(&fiber.context);
            fiber.context.uc_stack.ss_sp = fiber.stack.get();
            fiber.context.uc_stack.ss_size = kStack;
            makecontext(&fiber.context, enter, 0);
          }
        }
        for (bool left = true; left;) {
          left = false;
          for (Fiber &fiber : current.fibers) {
            if (fiber.ended) continue;
            left = true;
            current.running = &fiber;
            swapcontext(&current.scheduler, &fiber.context);
          }
        }
      }
}
}  // namespace simt

#define threadIdx (simt::grid->running->index)
#define blockIdx (simt::grid->running->block->index)
#define gridDim (simt::grid->blocks)

using std::max;
using std::min;

namespace simt {
/* Where loads of 16 bytes may be; anywhere if there are none. */
static std::vector<std::pair<uintptr_t, uintptr_t>> readable;  // of this library alone
[[maybe_unused]] static bool is_readable(const void *from, size_t bytes) {
  const uintptr_t at = reinterpret_cast<uintptr_t>(from);
  for (const auto &[begin, end] : readable) {
    if (begin <= at && at + bytes <= end) return true;
  }
  return readable.empty();
}
}  // namespace simt
inline void __syncthreads() { simt::meet(simt::grid->running->block->barrier, simt::threads()); }
inline void __threadfence() {}
inline float2 __ldcg(const float2 *from) { return *from; }
inline uint32_t atomicAdd(uint32_t *at, uint32_t value) {
  const uint32_t before = *at;
  *at += value;
  return before;
}
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline int __shfl_sync(uint32_t, int x, int from) {
  return simt::exchange({uint32_t(x)}, [&](const uint32_t (&words)[32][6]) { return int(words[from][0]); });
}
inline int __shfl_up_sync(uint32_t, int x, int by) {
  return simt::exchange({uint32_t(x)}, [&](const uint32_t (&words)[32][6]) {
    return int(words[simt::lane() < by ? simt::lane() : simt::lane() - by][0]);
  });
}
inline uint32_t __ballot_sync(uint32_t, bool x) {
  return simt::exchange({uint32_t(x)}, [](const uint32_t (&words)[32][6]) {
    uint32_t lanes = 0;
    for (int lane = 0; lane < 32; lane++) lanes |= words[lane][0] << lane;
    return lanes;
  });
}
inline int __ffs(int x) { return __builtin_ffs(x); }
