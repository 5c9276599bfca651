/* What a warp does at once, for kernels that are written without CUTLASS: matrix instructions, loads of 16 bytes, and
 * what blocks of a cluster read of each other. Tests compile the same kernels for the host (PK_SIMT), where each thread
 * of a block is a fiber, and define these functions themselves. */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

namespace pk {

/* Element types: how a pair lies in a register, in memory order. */
struct F16 {
  using Storage = __half;
  static constexpr bool kIsHalf = true;
  static __device__ inline float widen(Storage x) { return __half2float(x); }
  static __device__ inline Storage narrow(float x) { return __float2half_rn(x); }
};
struct Bf16 {
  using Storage = __nv_bfloat16;
  static constexpr bool kIsHalf = false;
  static __device__ inline float widen(Storage x) { return __bfloat162float(x); }
  static __device__ inline Storage narrow(float x) { return __float2bfloat16_rn(x); }
};

template <class Type>
__device__ inline uint32_t pack(float first, float second) {
  const typename Type::Storage low = Type::narrow(first), high = Type::narrow(second);
  return uint32_t(reinterpret_cast<const uint16_t &>(low)) | uint32_t(reinterpret_cast<const uint16_t &>(high)) << 16;
}
template <class Type>
__device__ inline float low_of(uint32_t pair) {
  const uint16_t bits = uint16_t(pair);
  return Type::widen(reinterpret_cast<const typename Type::Storage &>(bits));
}
template <class Type>
__device__ inline float high_of(uint32_t pair) {
  return low_of<Type>(pair >> 16);
}

constexpr float kLog2OfE = 1.4426950408889634f;

#ifdef PK_SIMT
#include "simt_warp.h"
#elif !defined(PK_HOST)

/* acc[16, 8] += a[16, 16] b[16, 8]: lane 4 g + t has a (rows g and g + 8; columns 2 t, 2 t + 1 and these plus 8), b
 * (rows as columns of a, column g), and of acc row g, columns 2 t and 2 t + 1, then row g + 8. */
template <class Type>
__device__ inline void mma(float (&acc)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                           uint32_t b1) {
  if constexpr (Type::kIsHalf) {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  } else {
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(acc[0]), "+f"(acc[1]), "+f"(acc[2]), "+f"(acc[3])
        : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
  }
}

/* 16 bytes that are read once. */
__device__ inline uint4 load_once(const void *from) {
  uint4 x;
  asm volatile("ld.global.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w)
               : "l"(from));
  return x;
}

/* Fetches what is there into the L2 cache. */
__device__ inline void prefetch(const void *from) { asm volatile("prefetch.global.L2 [%0];" ::"l"(from)); }

/* Copies 16 bytes to shared memory, or zeros, past the L1 cache; a thread sees its own as soon as it has waited. */
__device__ inline void copy_async(uint4 *to, const void *from, bool exists) {
  const uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(to)), size = exists ? 16 : 0;
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(address), "l"(from), "r"(size)
               : "memory");
}
/* Ends a group of copies; waits until all but the last `kLeft` groups are there. */
__device__ inline void end_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int kLeft>
__device__ inline void wait_for_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kLeft) : "memory");
}

/* Halves of two registers: both low ones, or both high ones. */
__device__ inline uint32_t low_halves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x5410); }
__device__ inline uint32_t high_halves(uint32_t a, uint32_t b) { return __byte_perm(a, b, 0x7632); }

/* word & mask | above, as one instruction: compilers make two of it where both are constants. */
__device__ inline uint32_t select_bits(uint32_t word, uint32_t mask, uint32_t above) {
  uint32_t x;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(x) : "r"(word), "r"(mask), "r"(above));
  return x;
}
/* Two bytes of a register as the low ones of its halves, `above` each of them: bytes 0 and 1, or 2 and 3. */
__device__ inline uint32_t low_bytes(uint32_t word, uint32_t above) { return __byte_perm(word, above, 0x4140); }
__device__ inline uint32_t high_bytes(uint32_t word, uint32_t above) { return __byte_perm(word, above, 0x4342); }
/* Of pairs of halves: a b + c. */
__device__ inline uint32_t fma_pairs(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

__device__ inline float exp2_of(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
/* 1 / x, to one or two units in the last place. */
__device__ inline float reciprocal_of(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ inline float shuffle_xor(float x, int mask) { return __shfl_xor_sync(0xffffffffu, x, mask); }
__device__ inline bool any_lane(bool x) { return __any_sync(0xffffffffu, x); }

/* The kernel waits for those before it, and lets blocks of the next one be placed, best before it waits itself. */
__device__ inline void wait_for_earlier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
__device__ inline void release_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* By all threads of a cluster: whoever has waited sees what the others wrote before they arrived. */
__device__ inline void arrive_at_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release;" ::: "memory");
#endif
}
__device__ inline void wait_for_cluster() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.acquire;" ::: "memory");
#endif
}
__device__ inline void cluster_sync() { arrive_at_cluster(), wait_for_cluster(); }
/* The same place in the shared memory of another block of the cluster. */
__device__ inline uint32_t place_of_block(const void *place, uint32_t rank) {
  uint32_t address = static_cast<uint32_t>(__cvta_generic_to_shared(place));
#if __CUDA_ARCH__ >= 900
  asm volatile("mapa.shared::cluster.u32 %0, %0, %1;" : "+r"(address) : "r"(rank));
#endif
  return address;
}
/* The shared memory of a block of the cluster, or of the only block, from `start` on; and writes two bytes there. */
using OfBlock = uint32_t;
template <int kBlocks>
__device__ inline OfBlock memory_of_block(const void *start, uint32_t rank) {
  return kBlocks > 1 ? place_of_block(start, rank) : static_cast<uint32_t>(__cvta_generic_to_shared(start));
}
template <int kBlocks, class Storage>
__device__ inline void store_to_block(OfBlock start, int offset, Storage x) {
  const uint16_t bits = reinterpret_cast<const uint16_t &>(x);
  if constexpr (kBlocks > 1) {
#if __CUDA_ARCH__ >= 900
    asm volatile("st.shared::cluster.u16 [%0], %1;" ::"r"(start + offset), "h"(bits) : "memory");
#endif
  } else {
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(start + offset), "h"(bits) : "memory");
  }
}
#endif

}  // namespace pk
