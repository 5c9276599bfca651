/* Attention for GPUs from sm_80 on: the kernel of CUTLASS's example 41, given what it lacks: a number of keys for each
 * batch, an output with strides of its own, and waiting for the kernels before it. */
#pragma once

#include "problems.h"
//
#include "cutlass/cutlass.h"
#ifdef PK_HOST  // functions of the device that the example's templates name; never called
int atomicMax(int *, int);
unsigned atomicMin(unsigned *, unsigned);
int __float_as_int(float);
unsigned __float_as_uint(float);
float __int_as_float(int);
float __uint_as_float(unsigned);
#define __launch_bounds__(...)
#endif
#include "kernel_forward.h"

namespace pk {

// The batch is found before the example's code runs.
struct Placed {
  template <class Params>
  CUTLASS_DEVICE static bool advance_to_batch(Params &, int64_t &, int64_t &) {
    return true;
  }
};

template <class Element, bool kAligned, int kQueries, int kKeys, int kDepth, bool kBias>
using Sm80Attention =
    AttentionKernel<Element, cutlass::arch::Sm80, kAligned, kQueries, kKeys, kDepth, false, kBias, Placed>;

template <class Kernel>
struct Sm80Params : Kernel::Params {
  const int32_t *lengths = nullptr;
  const float *sinks = nullptr;
  int32_t group = 1;
  int64_t o_batch = 0, o_head = 0;
};

// Queries that see no key, the padding's often, sum up to zero, and the example divides by that. Their outputs become
// zeros: what is computed of them further on must not spoil what other rows make of it. With a sink the others have
// been divided by too little.
template <class Kernel>
CUTLASS_DEVICE void finish_rows(typename Kernel::Params const &params, const float *sink) {
  extern __shared__ char shared[];
  const auto &storage = *reinterpret_cast<const typename Kernel::SharedStorage *>(shared);
  constexpr float kLog2e = 1.4426950408889634f;
  __syncthreads();
  const int rows = cutlass::fast_min(params.num_queries, int32_t(Kernel::kQueriesPerBlock));
  for (int row = threadIdx.y; row < rows; row += Kernel::kNumWarpsPerBlock) {
    const float sum = storage.s_prime[row];
    if (sum > 0.0f && sink == nullptr) continue;
    const float factor = sum > 0.0f ? sum / (sum + exp2f(*sink * kLog2e - storage.mi[row])) : 0.0f;
    for (int i = threadIdx.x; i < params.head_dim_value; i += Kernel::kWarpSize) {
      auto &output = params.output_ptr[int64_t(row) * params.o_strideM + i];
      output = sum > 0.0f ? typename Kernel::output_t(float(output) * factor) : typename Kernel::output_t(0);
    }
  }
}

template <class Kernel>
CUTLASS_DEVICE void run(Sm80Params<Kernel> const &arguments) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
  typename Kernel::Params params = arguments;
  const int64_t batch = blockIdx.z, head = blockIdx.y;
  params.query_ptr += batch * params.q_strideB;
  // The example goes on by the head of q: keys and values of a group of them stay.
  const int64_t back = head - head / arguments.group;
  params.key_ptr += batch * params.k_strideB - back * params.k_strideH;
  params.value_ptr += batch * params.v_strideB - back * params.v_strideH;
  // The example adds a head's place in rows without gaps.
  params.output_ptr += batch * arguments.o_batch + head * (arguments.o_head - params.head_dim_value);
  if (arguments.lengths != nullptr) params.num_keys = cutlass::fast_min(params.num_keys, arguments.lengths[batch]);
  if (!params.advance_to_block()) return;
  Kernel::attention_kernel(params);
  finish_rows<Kernel>(params, arguments.sinks == nullptr ? nullptr : arguments.sinks + head);
}

#ifdef PK_HOST
// Whether a tensor can be read so many elements at a time.
inline bool takes_vectors(const void *pointer, const int64_t (&strides)[3], int64_t alignment, size_t element) {
  bool takes = pointer != nullptr && reinterpret_cast<uintptr_t>(pointer) % (alignment * element) == 0;
  for (const int64_t stride : strides) takes &= stride >= 0 && stride % alignment == 0;
  return takes && strides[1] <= INT32_MAX && strides[2] <= INT32_MAX;
}

template <class Kernel>
int32_t fill(const pk_attention_t &problem, bool causal, void *arguments, pk_cuda_launch_t *launch) {
  using Element = typename Kernel::scalar_t;
  static_assert(!Kernel::kNeedsOutputAccumulatorBuffer, "the output of a block stays in registers");
  *launch = {};
  if (problem.batch == 0 || problem.heads == 0 || problem.queries == 0) return 0;
  for (const int64_t extent : {problem.batch, problem.heads, problem.queries, problem.keys}) {
    if (extent < 1 || extent > INT32_MAX - 1024) return -1;
  }
  if (problem.heads > 65535 || problem.batch > 65535) return -1;
  constexpr int64_t alignment = Kernel::kAlignmentQ;
  for (const int64_t depth : {problem.depth, problem.value_depth}) {
    if (depth < 1 || depth > Kernel::kMaxK || depth % alignment != 0) return -1;
  }
  if (!takes_vectors(problem.q, problem.q_strides, alignment, sizeof(Element))) return -1;
  if (!takes_vectors(problem.k, problem.k_strides, alignment, sizeof(Element))) return -1;
  if (!takes_vectors(problem.v, problem.v_strides, alignment, sizeof(Element))) return -1;
  if (!takes_vectors(problem.o, problem.o_strides, alignment, sizeof(Element))) return -1;
  // The example reads 16 bytes of a bias at a time, whatever it reads of the rest.
  if (problem.bias != nullptr && !Kernel::kSupportsBias) return -1;
  if (problem.bias != nullptr &&
      !takes_vectors(problem.bias, problem.bias_strides, 16 / sizeof(Element), sizeof(Element))) {
    return -1;
  }
  if (problem.group < 1 || problem.heads % problem.group != 0 || problem.softcap != 0.0f) return -1;

  auto &params = *new (arguments) Sm80Params<Kernel>;
  params.query_ptr = static_cast<Element *>(const_cast<void *>(problem.q));
  params.key_ptr = static_cast<Element *>(const_cast<void *>(problem.k));
  params.value_ptr = static_cast<Element *>(const_cast<void *>(problem.v));
  params.attn_bias_ptr = static_cast<Element *>(const_cast<void *>(problem.bias));
  params.output_ptr = static_cast<Element *>(problem.o);
  params.scale = problem.scale;
  params.custom_mask_type = causal ? Kernel::CausalFromTopLeft : Kernel::NoCustomMask;
  params.head_dim = problem.depth;
  params.head_dim_value = problem.value_depth;
  params.num_queries = problem.queries;
  params.num_keys = problem.keys;
  params.num_heads = problem.heads;
  params.num_batches = problem.batch;
  params.q_strideB = problem.q_strides[0], params.q_strideM = problem.q_strides[1];
  params.k_strideB = problem.k_strides[0], params.k_strideM = problem.k_strides[1];
  params.v_strideB = problem.v_strides[0], params.v_strideM = problem.v_strides[1];
  params.q_strideH = problem.q_strides[2];
  // A head's stride that nothing reads may not be zero: the example would take heads for rows of one query.
  const bool single = problem.heads == problem.group;
  params.k_strideH = single ? problem.depth : problem.k_strides[2];
  params.v_strideH = single ? problem.value_depth : problem.v_strides[2];
  params.group = int32_t(problem.group);
  params.o_batch = problem.o_strides[0], params.o_strideM = problem.o_strides[1], params.o_head = problem.o_strides[2];
  params.bias_strideB = problem.bias_strides[0];
  params.bias_strideH = problem.bias_strides[1];
  params.bias_strideM = problem.bias_strides[2];
  params.lengths = problem.lengths, params.sinks = problem.sinks;
  const dim3 grid = params.getBlocksGrid(), block = params.getThreadsGrid();
  *launch = {{grid.x, grid.y, grid.z},
             {block.x, block.y, block.z},
             sizeof(typename Kernel::SharedStorage),
             PK_CUDA_PROGRAMMATIC};
  return 0;
}
#endif

}  // namespace pk
