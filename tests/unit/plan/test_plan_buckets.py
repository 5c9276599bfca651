"""Extents of variants as expressions over the bucketed dims."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.bundle.buckets import combinations
from packager.bundle.shape_expr import evaluate
from packager.plan.buckets import common_extent

ONE = list(combinations({"seq": (128, 256, 512)}))
TWO = list(combinations({"h": (32, 64, 96), "w": (32, 64)}))


@pytest.mark.parametrize(
    ("extent", "text"),
    [
        (lambda _: 7, 7),
        (lambda seq: seq, "seq"),
        (lambda seq: seq * 12, "seq * 12"),
        (lambda seq: seq + 1, "seq + 1"),
        (lambda seq: seq - 3, "seq - 3"),
        (lambda seq: seq // 2, "seq // 2"),
        (lambda seq: (seq + 1) * 2, "(seq * 2) + 2"),
        (lambda seq: seq * 3 // 4, "(seq * 3) // 4"),
    ],
)
def test_the_simplest_expression(extent: Callable[[int], int], text: str | int) -> None:
    assert common_extent([extent(own["seq"]) for own in ONE], ONE) == text


@pytest.mark.parametrize(
    ("extent", "text"),
    [
        (lambda _, w: w, "w"),
        (lambda h, w: h * w, "h * w"),
        (lambda h, w: (h // 16) * (w // 16), "(h * w) // 256"),
        (lambda h, w: h + w, "h + w"),
        (lambda h, _: (h - 1) // 2 + 1, "h // 2"),
    ],
)
def test_two_dims(extent: Callable[[int, int], int], text: str) -> None:
    assert common_extent([extent(own["h"], own["w"]) for own in TWO], TWO) == text


def test_other_dims_stay_in_the_text() -> None:
    assert common_extent([f"n * {own['seq']}" for own in ONE], ONE) == "n * seq"
    assert common_extent([f"(n * {2 * own['seq']}) + 5" for own in ONE], ONE) == "(n * (seq * 2)) + 5"
    assert common_extent(["n", "n * 2", "n * 3"], ONE) is None


def test_what_follows_from_nothing() -> None:
    assert common_extent([own["h"] ** own["w"] % 1009 for own in TWO], TWO) is None


@given(st.lists(st.integers(0, 10**6), min_size=2, max_size=8), st.data())
def test_any_function_of_one_dim_is_told(values: list[int], data: st.DataObject) -> None:
    sizes = sorted(data.draw(st.sets(st.integers(1, 10**6), min_size=len(values), max_size=len(values))))
    points = [{"seq": size} for size in sizes]
    extent = common_extent(values, points)
    assert extent is not None
    for value, point in zip(values, points, strict=True):
        assert (extent if isinstance(extent, int) else evaluate(extent, point)) == value
