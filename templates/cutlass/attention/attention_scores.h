/* Scores of attention for sm_90a, between their product and the softmax: keys that a batch lacks, causal masks, and a
 * bias of each key or score. Takes the place of a mask of CUTLASS's example 88. */
#pragma once

#include "cute/tensor.hpp"
#include "cutlass/array.h"
#include "cutlass/fast_math.h"

namespace pk {
using namespace cute;

enum class Bias { kNone, kKeys, kDense };

// Where keys, values and the bias of scores lie; travels to loads and the mask behind the five numbers of a problem's
// size.
template <class Element>
struct Scores {
  const Element *bias;  // of this batch and head
  int64_t row;          // from one query's to the next
  float inverse_scale;  // the scale is applied to what the bias was added to
  float cap;            // of scaled scores, which become cap * tanh(scores / cap)
  bool pairs;           // two neighbors, the first in an even column, can be loaded at once
  int group;            // heads of queries that have one of keys and values
};

// A finite bias that no score outweighs. Beyond it the rounding of the largest score shows in its exponential: rows
// that finite numbers mask everywhere, as those of padding are, would overflow. Rows of infinite ones become zeros.
constexpr float kLeastBias = -32768.0f;

// Its inverse times a bias is finite.
constexpr float kLeastScale = 1e-30f;

// What is done to scores before the softmax, and which tiles of keys are left out. Masks have no state.
template <bool kCausal, Bias kBias, bool kCapped>
struct Mask {
  // A tile of keys is loaded even where a batch has none.
  template <class Block, class Tile, class Size>
  CUTLASS_DEVICE int get_trip_count(Block const &block, Tile const &tile, Size const &size) {
    int trips = ceil_div(get<3>(size), get<1>(tile));
    if constexpr (kCausal) {
      trips = cute::min(trips, ceil_div((int(get<0>(block)) + 1) * get<0>(tile), get<1>(tile)));
    }
    return cute::max(trips, 1);
  }

  // The masked tiles come last. Their number and that of the others add up to all; the latter may be negative.
  template <class Block, class Tile, class Size>
  CUTLASS_DEVICE int get_masked_trip_count(Block const &block, Tile const &tile, Size const &size) {
    if constexpr (kBias != Bias::kNone || kCapped) return get_trip_count(block, tile, size);
    if constexpr (kCausal) return ceil_div(get<0>(tile), get<1>(tile));
    return 1;
  }

  template <class Block, class Tile, class Size>
  CUTLASS_DEVICE int get_unmasked_trip_count(Block const &block, Tile const &tile, Size const &size) {
    return get_trip_count(block, tile, size) - get_masked_trip_count(block, tile, size);
  }

  template <class Accumulators, class Index, class Size>
  CUTLASS_DEVICE void before_softmax(Accumulators &acc, Index const &index, Size const &size) {
    const int keys = get<3>(size);
    // The same for all threads of a warp: the columns of four neighbors are eight.
    const bool inside = (get<1>(index(cute::size(acc) - 1)) | 7) < keys;
    if constexpr (kCapped) cap(acc, get<5>(size));
    if constexpr (kBias != Bias::kNone) {
      if (!inside || !get<5>(size).pairs) {
        add_bias<false>(acc, index, size);
      } else if constexpr (kBias == Bias::kDense) {
        add_bias<true>(acc, index, size);
      } else if (has_bias(acc, index, size)) {
        add_bias<true>(acc, index, size);
      }
    }
    if (kCausal || !inside) {
      CUTLASS_PRAGMA_UNROLL
      for (int i = 0; i < cute::size(acc); i++) {
        const auto position = index(i);
        if (get<1>(position) >= keys || (kCausal && get<0>(position) < get<1>(position))) acc(i) = -INFINITY;
      }
    }
  }

 private:
  template <class Accumulators, class Given>
  CUTLASS_DEVICE static void cap(Accumulators &acc, Given const &scores) {
    const float outer = scores.cap * scores.inverse_scale, inner = 1.0f / outer;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < cute::size(acc); i++) {
      // Its error is that of a score in half precision.
      acc(i) = outer * cutlass::fast_tanh(inner * acc(i));
    }
  }

  // Whether any key of the tile has a bias: most tiles of a padding mask have none.
  template <class Accumulators, class Index, class Size>
  CUTLASS_DEVICE static bool has_bias(Accumulators const &acc, Index const &index, Size const &size) {
    uint32_t any = 0;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < cute::size(acc); i += 4) {
      any |= *reinterpret_cast<const uint32_t *>(get<5>(size).bias + get<1>(index(i)));
    }
    return __any_sync(0xffffffffu, (any & 0x7fff7fffu) != 0);  // a zero may be negative
  }

  // Of four accumulators two are neighbors in a row, the other two lie eight rows below.
  template <bool kPairs, class Accumulators, class Index, class Size>
  CUTLASS_DEVICE static void add_bias(Accumulators &acc, Index const &index, Size const &size) {
    static_assert(decltype(get<0, 0>(shape(acc)) == _2{} && get<0, 1>(shape(acc)) == _2{})::value);
    const auto scores = get<5>(size);
    float bias[2];
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < cute::size(acc); i += 2) {
      const int column = get<1>(index(i));
      if (kBias == Bias::kDense) {
        const int row = cute::min(int(get<0>(index(i))), get<2>(size) - 1);
        load<kPairs>(bias, scores.bias + row * scores.row + column, get<3>(size) - column);
      } else if (i % 4 == 0) {
        load<kPairs>(bias, scores.bias + column, get<3>(size) - column);
      }
      acc(i) += bias[0] * scores.inverse_scale;
      acc(i + 1) += bias[1] * scores.inverse_scale;
    }
  }

  template <bool kPairs, class Element>
  CUTLASS_DEVICE static void load(float (&bias)[2], const Element *from, int left) {
    cutlass::AlignedArray<Element, 2> pair;
    if constexpr (kPairs) {
      pair = *reinterpret_cast<const cutlass::AlignedArray<Element, 2> *>(from);
    } else {
      pair[0] = left > 0 ? from[0] : Element(0);
      pair[1] = left > 1 ? from[1] : Element(0);
    }
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < 2; i++) {
      const float value = float(pair[i]);
      bias[i] = value == -INFINITY ? value : cute::max(value, float(kLeastBias));
    }
  }
};

}  // namespace pk
