/* CUTLASS's kernels for sm_90a, whose weights are under way before earlier kernels are complete.
 *
 * A bundle's constants are written before its first kernel starts. So the producer fills the stages of the pipeline
 * with those of the first tile, then waits for earlier kernels, and only then loads the other operand, whose bytes
 * complete these stages. CUTLASS's own waits come before all loads: they are switched off here. */
#pragma once

// Before any header of CUTLASS.
#undef CUTLASS_ENABLE_GDC_FOR_SM90

#include "cute/tensor.hpp"
#include "cutlass/cutlass.h"
#include "warp.h"

namespace pk {

#ifdef PK_HOST
void wait_for_earlier();  // which nothing calls
#endif

/* A main loop by TMA; `kFirst`: the constant is what CUTLASS calls A. */
template <class Base, bool kFirst>
struct EarlyWeights : Base {
  template <class Inputs, class Block, class Step>
  CUTLASS_DEVICE void load(typename Base::Params const &params, typename Base::MainloopPipeline pipeline,
                           typename Base::PipelineState state, Inputs const &inputs, Block const &block, Step step,
                           int steps, int thread, uint32_t rank, typename Base::TensorStorage &shared) {
    if (state.count() == 0) {
      const int early = cute::min(steps, int(Base::DispatchPolicy::Stages));
      const bool elected = cute::elect_one_sync();
      if (elected) {
        auto ahead = state;
        auto at = step;
        CUTLASS_PRAGMA_NO_UNROLL
        for (int i = 0; i < early; i++, ++ahead, ++at) {
          pipeline.producer_acquire(ahead);
          copy_step<kFirst>(params, *pipeline.producer_get_barrier(ahead), ahead.index(), inputs, block, *at, rank,
                            shared);
        }
      }
      wait_for_earlier();
      CUTLASS_PRAGMA_NO_UNROLL
      for (int i = 0; i < early; i++, ++state, ++step) {
        if (!elected) continue;
        copy_step<!kFirst>(params, *pipeline.producer_get_barrier(state), state.index(), inputs, block, *step, rank,
                           shared);
      }
      steps -= early;
      __syncwarp();
    }
    Base::load(params, pipeline, state, inputs, block, step, steps, thread, rank, shared);
  }

  /* Blocks without a tile wait here: none may end before those of earlier kernels. */
  CUTLASS_DEVICE void load_tail(typename Base::MainloopPipeline pipeline, typename Base::PipelineState state) {
    wait_for_earlier();
    Base::load_tail(pipeline, state);
  }

 private:
  /* Copies a step of A or of B to a stage, and to those of the blocks that share it. */
  template <bool kIsFirst, class Barrier, class Inputs, class Block, class At>
  CUTLASS_DEVICE static void copy_step(typename Base::Params const &params, Barrier &barrier, int stage,
                                       Inputs const &inputs, Block const &block, At const &at, uint32_t rank,
                                       typename Base::TensorStorage &shared) {
    using namespace cute;
    using Cluster = typename Base::DispatchPolicy::ClusterShape;
    const Layout<Cluster> blocks{};
    const uint32_t m = rank % size<0>(Cluster{}), n = rank / size<0>(Cluster{});
    uint16_t mask = 0;
    const auto copy_part = [&](auto const &tma, auto const &slice, auto const &from, auto const &to) {
      copy(tma.with(barrier, mask), slice.partition_S(from)(_, _, _, at), slice.partition_D(to)(_, _, _, stage));
    };
    if constexpr (kIsFirst) {
      if constexpr (is_same_v<typename Base::GmemTiledCopyA, SM90_TMA_LOAD_MULTICAST>) {
        for (int i = 0; i < size<1>(blocks); i++) mask |= uint16_t(1) << blocks(m, i, Int<0>{});
      }
      copy_part(params.tma_load_a, params.tma_load_a.get_slice(n),
                get<0>(inputs)(_, _, get<0>(block), _, get<3>(block)),
                make_tensor(make_smem_ptr(shared.smem_A.data()), typename Base::SmemLayoutA{}));
    } else {
      if constexpr (is_same_v<typename Base::GmemTiledCopyB, SM90_TMA_LOAD_MULTICAST>) {
        for (int i = 0; i < size<0>(blocks); i++) mask |= uint16_t(1) << blocks(i, n, Int<0>{});
      }
      copy_part(params.tma_load_b, params.tma_load_b.get_slice(m),
                get<1>(inputs)(_, _, get<1>(block), _, get<3>(block)),
                make_tensor(make_smem_ptr(shared.smem_B.data()), typename Base::SmemLayoutB{}));
    }
  }
};

/* An epilogue whose other operand is loaded by a warp of its own. */
template <class Base>
struct WaitingEpilogue : Base {
  using Base::Base;
  template <class... Arguments>
  CUTLASS_DEVICE auto load(Arguments &&...arguments) {
    wait_for_earlier();
    return Base::load(static_cast<Arguments &&>(arguments)...);
  }
};

}  // namespace pk
