/* Tiles of tensors of four axes on their way to shared memory: 64 elements of 16 bits of so many rows. A row's eight
 * pieces of 16 bytes are in the order of CU_TENSOR_MAP_SWIZZLE_128B, by which columns of pieces are in different banks.
 *
 * A warp waits for its tiles by a barrier in shared memory. From sm_90 on the copy engine can fill them, which one lane
 * asks; else all lanes copy pieces. The phase of a barrier is the parity of how often it was waited for. */
#pragma once

#include "warp.h"

namespace pk {
constexpr int kTileColumns = 64, kTileRowBytes = 128;

/* As the driver makes it. */
struct TensorMap {
  alignas(64) unsigned char bytes[128];
};

#if !defined(PK_HOST) || defined(PK_SIMT)
/* Where a piece of a row begins in a tile. */
__device__ inline int piece_of_tile(int row, int piece) { return row * kTileRowBytes + (piece ^ row % 8) * 16; }
#endif

#ifdef PK_SIMT
#include "simt_tiles.h"
#elif !defined(PK_HOST)

__device__ inline void sync_warp() { __syncwarp(); }
__device__ inline uint32_t shared_address(const void *place) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(place));
}

/* By one lane; all may use it after the next synchronization. `arrivals` are 1 where the copy engine fills tiles, else
 * the lanes. */
__device__ inline void init_barrier(uint64_t *barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
#if __CUDA_ARCH__ >= 900
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
}

/* By one lane, before the tiles of a phase, all of their bytes. */
__device__ inline void expect_tiles(uint64_t *barrier, uint32_t bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
#endif
}

/* By one lane: copies a tile, whose place is a multiple of 1024 bytes; zeros where the tensor has no elements. */
__device__ inline void copy_tile(void *to, const TensorMap *map, int x, int y, int z, int w, uint64_t *barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3, %4, %5}], "
      "[%6];" ::"r"(shared_address(to)),
      "l"(map), "r"(x), "r"(y), "r"(z), "r"(w), "r"(shared_address(barrier))
      : "memory");
#endif
}

/* By one lane: fetches a tile into the L2 cache. All writes go through it, so that what is written later is seen. */
__device__ inline void prefetch_tile(const TensorMap *map, int x, int y, int z, int w) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.tensor.4d.L2.global [%0, {%1, %2, %3, %4}];" ::"l"(map), "r"(x), "r"(y), "r"(z),
               "r"(w)
               : "memory");
#endif
}

/* By each lane, after the pieces of a phase that it copies. */
__device__ inline void end_pieces(uint64_t *barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(barrier)) : "memory");
}

__device__ inline void wait_for_tiles(uint64_t *barrier, uint32_t phase) {
  uint32_t is_over = 0;
  while (is_over == 0) {
#if __CUDA_ARCH__ >= 900
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(is_over)
                 : "r"(shared_address(barrier)), "r"(phase)
                 : "memory");
#else
    asm volatile("{\n.reg .pred p;\nmbarrier.test_wait.parity.shared.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;\n}"
                 : "=r"(is_over)
                 : "r"(shared_address(barrier)), "r"(phase)
                 : "memory");
#endif
  }
}

/* Stores to the same place of a block of the cluster, whose barrier counts the bytes: it expects them as those of tiles. */
__device__ inline void send_to_block(float4 *place, float4 x, uint64_t *barrier, uint32_t rank) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.f32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(
                   place_of_block(place, rank)),
               "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "r"(place_of_block(barrier, rank))
               : "memory");
#endif
}
__device__ inline void send_to_block(float2 *place, float2 x, uint64_t *barrier, uint32_t rank) {
#if __CUDA_ARCH__ >= 900
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(
                   place_of_block(place, rank)),
               "f"(x.x), "f"(x.y), "r"(place_of_block(barrier, rank))
               : "memory");
#endif
}
/* Waits for all that is sent to a barrier in its first phase: what other blocks have done before is seen, for which
 * the L1 cache is invalidated. Waiting for a block's own tiles must not. */
__device__ inline void wait_for_sent(uint64_t *barrier) {
#if __CUDA_ARCH__ >= 900
  uint32_t is_over = 0;
  while (is_over == 0) {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\nselp.u32 %0, 1, 0, p;\n}"
        : "=r"(is_over)
        : "r"(shared_address(barrier))
        : "memory");
  }
#endif
}
#endif

}  // namespace pk
