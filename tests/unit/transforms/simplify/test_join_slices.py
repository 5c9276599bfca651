"""What is computed alike of neighboring slices, as rotations of queries and keys, is computed once."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tvm")
from tvm import relax

from packager.graph.dataflow import bindings_of, operator_of
from packager.transforms.simplify.join_slices import join_slices
from tests.unit.transforms.products.test_modulated_convs import function, inputs
from tests.unit.tvm_machine import assert_same_results

R = relax.op
BATCH, ROWS, HEADS, SHARED, DEPTH = 2, 5, 4, 2, 8
SHAPES = ((BATCH, ROWS, (HEADS + 2 * SHARED) * DEPTH), (1, 1, ROWS, DEPTH), (ROWS, DEPTH))


def cut(emit: Any, x: Any, axis: int, begin: int, end: int) -> Any:
    return emit(R.strided_slice(x, [axis], [begin], [end]))


def rotated(emit: Any, x: Any, cos: Any, sin: Any) -> Any:
    """The rotation of halves."""
    turned = R.concat([emit(R.negative(cut(emit, x, 3, DEPTH // 2, 2**62))), cut(emit, x, 3, 0, DEPTH // 2)], axis=-1)
    return emit(R.add(emit(R.multiply(x, cos)), emit(R.multiply(emit(turned), sin))))


def heads_of(emit: Any, x: Any, begin: int, heads: int) -> Any:
    rows = cut(emit, x, 2, begin * DEPTH, (begin + heads) * DEPTH)
    return emit(R.permute_dims(emit(R.reshape(rows, (BATCH, ROWS, heads, DEPTH))), [0, 2, 1, 3]))


def repeated(emit: Any, x: Any) -> Any:
    shape = (BATCH, SHARED, HEADS // SHARED, ROWS, DEPTH)
    wide = emit(R.broadcast_to(emit(R.expand_dims(x, [2])), shape))
    return emit(R.reshape(wide, (BATCH, HEADS, ROWS, DEPTH)))


def scores(emit: Any, q: Any, k: Any) -> Any:
    scaled = emit(R.multiply(q, relax.const(0.5, "float32")))
    return emit(R.matmul(scaled, emit(R.permute_dims(k, [0, 1, 3, 2]))))


def grouped(emit: Any, x: Any, cos: Any, sin: Any) -> Any:
    """Queries of four heads, keys of two, one after the other in a row."""
    q, k = heads_of(emit, x, 0, HEADS), heads_of(emit, x, HEADS, SHARED)
    return scores(emit, rotated(emit, q, cos, sin), repeated(emit, rotated(emit, k, cos, sin)))


def keys_first(emit: Any, x: Any, cos: Any, sin: Any) -> Any:
    """The keys are computed before the queries, which come before them in a row."""
    k = repeated(emit, rotated(emit, heads_of(emit, x, HEADS, SHARED), cos, sin))
    return scores(emit, rotated(emit, heads_of(emit, x, 0, HEADS), cos, sin), k)


def stacked(emit: Any, x: Any, cos: Any, sin: Any) -> Any:
    """Queries, keys and values of as many heads along an axis of their own, as ModernBERT has them."""
    apart = emit(R.reshape(cut(emit, x, 2, 0, 3 * 2 * DEPTH), (BATCH, ROWS, 3, 2, DEPTH)))
    parts = [emit(R.squeeze(cut(emit, apart, 2, number, number + 1), [2])) for number in range(3)]
    q, k, v = (emit(R.permute_dims(part, [0, 2, 1, 3])) for part in parts)
    return emit(R.matmul(scores(emit, rotated(emit, q, cos, sin), rotated(emit, k, cos, sin)), v))


def turned_pairs(emit: Any, x: Any, cos: Any, sin: Any) -> Any:
    """The rotation of each two neighbors, as GPT-J's and RoFormer's."""
    even, odd = (emit(R.strided_slice(x, [3], [first], [2**62], [2])) for first in (0, 1))
    pairs = emit(R.concat([emit(R.expand_dims(emit(R.negative(odd)), [4])), emit(R.expand_dims(even, [4]))], axis=-1))
    turned = emit(R.reshape(pairs, [int(extent) for extent in x.ty.shape.values]))
    return emit(R.add(emit(R.multiply(x, cos)), emit(R.multiply(turned, sin))))


def of_pairs(emit: Any, x: Any, cos: Any, sin: Any) -> Any:
    q, k = heads_of(emit, x, 0, HEADS), heads_of(emit, x, HEADS, SHARED)
    return scores(emit, turned_pairs(emit, q, cos, sin), repeated(emit, turned_pairs(emit, k, cos, sin)))


def of_all_axes(emit: Any, x: Any, cos: Any, sin: Any) -> Any:
    """Slices name all axes, as compositions of several do, also that of the heads."""

    def half_of(each: Any, begin: int) -> Any:
        ends = (BATCH, SHARED, ROWS, begin + DEPTH // 2)
        return emit(R.strided_slice(each, (0, 1, 2, 3), (0, 0, 0, begin), ends))

    def turned(each: Any) -> Any:
        halves = emit(R.concat([emit(R.negative(half_of(each, DEPTH // 2))), half_of(each, 0)], axis=-1))
        return emit(R.add(emit(R.multiply(each, cos)), emit(R.multiply(halves, sin))))

    q, k = heads_of(emit, x, 0, SHARED), heads_of(emit, x, SHARED, SHARED)
    return scores(emit, turned(q), turned(k))


def of_other_places(emit: Any, x: Any, _cos: Any, sin: Any) -> Any:
    """Queries have the even columns, keys the odd ones."""
    q, k = heads_of(emit, x, 0, HEADS), heads_of(emit, x, HEADS, SHARED)
    half = cut(emit, sin, 1, 0, DEPTH // 2)
    parts = [emit(R.strided_slice(each, [3], [first], [2**62], [2])) for first, each in enumerate((q, k))]
    q, k = (emit(R.multiply(part, half)) for part in parts)
    wide = emit(R.broadcast_to(emit(R.expand_dims(k, [2])), (BATCH, SHARED, HEADS // SHARED, ROWS, DEPTH // 2)))
    return scores(emit, q, emit(R.reshape(wide, (BATCH, HEADS, ROWS, DEPTH // 2))))


def of_different_angles(emit: Any, x: Any, cos: Any, sin: Any) -> Any:
    q, k = heads_of(emit, x, 0, HEADS), heads_of(emit, x, HEADS, SHARED)
    return scores(emit, rotated(emit, q, cos, sin), repeated(emit, rotated(emit, k, sin, sin)))


def gates(emit: Any, x: Any, _cos: Any, _sin: Any) -> Any:
    """Elementwise operators read both: they are one kernel as they are."""
    a, b = (
        emit(R.tanh(emit(R.multiply(cut(emit, x, 2, n * 32, n * 32 + 32), relax.const(2.0, "float32")))))
        for n in range(2)
    )
    return emit(R.multiply(a, b))


def count(module: Any, name: str) -> int:
    return sum(operator_of(binding.value) == name for binding in bindings_of(module["main"]))


@pytest.mark.parametrize("make", [grouped, keys_first, stacked, of_pairs, of_all_axes])
def test_rotations_of_queries_and_keys_are_one(make: Any) -> None:
    module = function(inputs(*SHAPES), make)
    joined = join_slices(module)
    assert (count(module, "concat"), count(joined, "concat")) == (2, 1)
    assert_same_results(joined, module, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("make", [of_different_angles, of_other_places, gates])
def test_what_is_not_alike_or_fuses_stays(make: Any) -> None:
    module = function(inputs(*SHAPES), make)
    joined = join_slices(module)
    assert [operator_of(b.value) for b in bindings_of(joined["main"])] == [
        operator_of(b.value) for b in bindings_of(module["main"])
    ]
