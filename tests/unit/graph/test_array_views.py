from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.graph.array_views import take


@given(
    st.lists(st.integers(1, 4), min_size=1, max_size=3),
    st.integers(0, 2),
    st.lists(st.integers(-5, 4), max_size=6),
    st.booleans(),
)
def test_take_equals_numpy(shape: list[int], axis: int, indices: list[int], matrix: bool) -> None:
    array = np.arange(np.prod(shape)).reshape(shape)
    axis %= len(shape)
    index = np.array(indices, np.int64)
    index = index.reshape(2, -1) if matrix and len(indices) % 2 == 0 else index
    inside = all(-shape[axis] <= i < shape[axis] for i in indices)
    result = take(array, index, axis)
    assert (result is not None) == inside
    if result is not None:
        np.testing.assert_array_equal(result, np.take(array, index, axis))


@pytest.mark.parametrize(
    ("indices", "view"),
    [([0, 1, 2], True), ([2, 2, 2], True), ([4, 2, 0], True), ([-1, -2], True), ([3], True), ([0, 1, 3], False)],
)
def test_evenly_spaced_indices_give_a_view(indices: list[int], view: bool) -> None:
    array = np.arange(30).reshape(5, 6)
    taken = take(array, np.array(indices), 0)
    assert taken is not None
    assert np.may_share_memory(taken, array) == view
    np.testing.assert_array_equal(taken, array[indices])


def test_without_an_axis_the_array_is_flat() -> None:
    array = np.arange(6).reshape(2, 3)
    np.testing.assert_array_equal(take(array, np.array([[1], [4]]), None), [[1], [4]])
