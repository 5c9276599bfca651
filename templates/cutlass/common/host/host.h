/* Included before everything else where a kernel's file is compiled for the host: with it a C++ compiler takes CUTLASS's
 * headers, whose host code lays out the parameters of kernels. nvcc compiles the same file for the device; it would
 * take ten times as long for the host, and bring constructors and the CUDA runtime.
 *
 * Device functions are declared here and never defined: host code calls none of them. */
#pragma once
#include <cuda.h>
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdlib>

// Without a version of nvcc this header leaves out everything; the others get one.
#include "cutlass/arch/wmma.h"
#define __CUDACC_VER_MAJOR__ PK_NVCC_MAJOR
#define __CUDACC_VER_MINOR__ PK_NVCC_MINOR

extern "C" {
#include "packager_cuda.h"
}

extern const uint3 threadIdx, blockIdx;
extern const dim3 blockDim, gridDim;
void __syncthreads();
void __syncwarp(unsigned mask = 0xffffffff);
int __syncthreads_and(int), __syncthreads_or(int);
void __threadfence();
void __trap();
template <class T>
T __shfl_sync(unsigned, T, int, int = 32);
template <class T>
T __shfl_up_sync(unsigned, T, unsigned, int = 32);
template <class T>
T __shfl_down_sync(unsigned, T, unsigned, int = 32);
template <class T>
T __shfl_xor_sync(unsigned, T, int, int = 32);
// CUTLASS asks the current device what a problem does not say; ours say it.
static inline cudaError_t pk_no_device(int *) { return cudaErrorNoDevice; }
static inline cudaError_t pk_no_attribute(int *, cudaDeviceAttr, int) { return cudaErrorNoDevice; }
#define cudaGetDevice pk_no_device
#define cudaDeviceGetAttribute pk_no_attribute

namespace cutlass {
namespace arch {
int SmId(), LaneId();
}
}  // namespace cutlass

// What CUTLASS calls of the driver, through the bundle's runtime.
static inline CUresult pk_encode(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                 const cuuint64_t *extents, const cuuint64_t *strides, const cuuint32_t *box,
                                 const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                 CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  return (CUresult)pk_tensor_map_encode(map, type, rank, address, (const uint64_t *)extents, (const uint64_t *)strides,
                                        box, steps, interleave, swizzle, promotion, fill);
}
static inline CUresult pk_encode_im2col(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address,
                                        const cuuint64_t *extents, const cuuint64_t *strides, const int *lower,
                                        const int *upper, cuuint32_t channels, cuuint32_t pixels,
                                        const cuuint32_t *steps, CUtensorMapInterleave interleave,
                                        CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion,
                                        CUtensorMapFloatOOBfill fill) {
  return (CUresult)pk_tensor_map_encode_im2col(map, type, rank, address, (const uint64_t *)extents,
                                               (const uint64_t *)strides, lower, upper, channels, pixels, steps,
                                               interleave, swizzle, promotion, fill);
}
#define CUTLASS_ENABLE_DIRECT_CUDA_DRIVER_CALL 1
#define cuTensorMapEncodeIm2col pk_encode_im2col
#define cuTensorMapEncodeTiled pk_encode
