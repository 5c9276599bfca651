/* What example 88 loads by TMA, with heads of keys and values that are each those of a group of heads of queries: its
 * template has another name while its header is read, and ours stands in its place. */
#pragma once

#include "cutlass/gemm/collective/collective_builder.hpp"
//
#include "collective/fmha_common.hpp"

#define CollectiveLoadTma ExampleLoadTma
#include "collective/fmha_collective_load.hpp"
#undef CollectiveLoadTma

namespace cutlass::fmha::collective {

template <LoadKind kKind, class Pipeline, class Element, class SmemLayout, class TMA>
struct CollectiveLoadTma : ExampleLoadTma<kKind, Pipeline, Element, SmemLayout, TMA> {
  using Base = ExampleLoadTma<kKind, Pipeline, Element, SmemLayout, TMA>;
  using Base::Base;

  template <class Rank, class Size, class Tile, class Block>
  CUTLASS_DEVICE auto init_state(Rank const &rank, Size const &size, Tile const &tile, Block const &block, int loops) {
    if constexpr (kKind == LoadKind::kK || kKind == LoadKind::kV) {
      const int batch = get<2, 0>(block), head = get<2, 1>(block);
      const auto shared = make_coord(get<0>(block), get<1>(block), make_coord(batch, head / get<5>(size).group));
      return Base::init_state(rank, size, tile, shared, loops);
    } else {
      return Base::init_state(rank, size, tile, block, loops);
    }
  }
};

}  // namespace cutlass::fmha::collective
