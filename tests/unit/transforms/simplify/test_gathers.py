"""Gathers that are simplified: at constant places, and of indices that the extent was added to."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tvm")
from tvm import relax

from packager.graph.dataflow import bindings_of, operator_of
from packager.graph.rewrite import apply
from packager.transforms.simplify.gathers import simplify_gathers

R = relax.op
TIDY = (relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination())


def simplified(make: Any) -> Any:
    """Return ``main`` of ``make(builder, x, i)`` after the pass; x is 5 x 8, i has 3 indices."""
    x, i = relax.Var("x", relax.TensorType((5, 8), "float32")), relax.Var("i", relax.TensorType((3,), "int64"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, i]):
        with builder.dataflow():
            result = builder.emit_output(make(builder, x, i))
        builder.emit_func_output(result)
    return apply(TIDY, simplify_gathers(builder.get()))["main"]


def operators(main: Any) -> list[str]:
    return [operator_of(binding.value) for binding in bindings_of(main)]


@pytest.mark.parametrize(
    ("places", "axis", "expected", "bounds"),
    [
        (2, 1, ["strided_slice", "squeeze"], (2, 3, 1)),
        (-1, 0, ["strided_slice", "squeeze"], (4, 5, 1)),
        ([3], 1, ["strided_slice"], (3, 4, 1)),
        ([0, 2, -2], 1, ["take"], None),
        ([0, 2, -4], 1, ["strided_slice"], (0, 5, 2)),
        ([4, 3], 1, ["take"], None),
        ([1, 1], 1, ["take"], None),
        ([0, 8], 1, ["take"], None),
        (-9, 1, ["take"], None),
        ([[1, 2]], 1, ["take"], None),
    ],
)
def test_constant_places(places: Any, axis: int, expected: list[str], bounds: tuple[int, ...] | None) -> None:
    main = simplified(lambda _b, x, _i: R.take(x, relax.const(places, "int64"), axis))
    assert operators(main) == expected
    if bounds is not None:
        assert [int(each.fields[0].value) for each in bindings_of(main)[0].value.args[2:5]] == list(bounds)


@pytest.mark.parametrize("extent", [5, 8])
def test_the_extent_is_not_added_twice(extent: int) -> None:
    def make(builder: Any, x: Any, i: Any) -> Any:
        added = builder.emit(R.add(i, relax.const(extent, "int64")))
        is_negative = builder.emit(R.less(i, relax.const(0, "int64")))
        return R.take(x, builder.emit(R.where(is_negative, added, i)), 0)

    wanted = ["take"] if extent == 5 else ["add", "less", "where", "take"]
    assert sorted(operators(simplified(make))) == sorted(wanted)


def test_indices_are_shifted_where_only_negative_ones_are_meant() -> None:
    def make(builder: Any, x: Any, i: Any) -> Any:
        added = builder.emit(R.add(i, relax.const(5, "int64")))
        is_low = builder.emit(R.less(i, relax.const(2, "int64")))
        return R.take(x, builder.emit(R.where(is_low, added, i)), 0)

    assert "where" in operators(simplified(make))


def test_unsigned_places_in_falling_order_are_gathered() -> None:
    main = simplified(lambda _b, x, _i: R.take(x, relax.const([4, 3], "uint8"), 1))
    assert operators(main) == ["take"]
