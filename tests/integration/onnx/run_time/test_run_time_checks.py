"""What an operator demands of symbolic extents is checked by each run: right where it holds, refused where it does not.

The results are compared with onnxruntime's, which refuses the same inputs.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.onnx_runs import check

pytestmark = pytest.mark.slow

# Axes of extent 1: of a dim, of a negative axis, and of what the data say: the rows whose maximum is above a limit.
SQUEEZED = """
squeezed (float[n, 5] x, float[5, m] z) => (float[5] y, float[a] w, float[5] one)
<int64[1] first = {0}, int64[1] last = {-1}, float limit = {2}>
{
  y = Squeeze (x, first)
  w = Squeeze (z, last)
  columns = Transpose <perm = [1, 0]> (z)
  top = ReduceMax <axes = [1], keepdims = 0> (columns)
  high = Greater (top, limit)
  found = NonZero (high)
  rows = Squeeze (found, first)
  chosen = Gather (columns, rows)
  one = Squeeze (chosen, first)
}
"""
SPLIT = """
split (float[n, 6] x, float[m, 6] z) => (
  float[a, 6] p, float[b, 6] q, float[2, 6] r, float[1, 6] s, float[c, 6] t, float[d, 6] u
)
<int64[2] sizes = {2, 1}, int64[1] index = {0}>
{
  have = Shape <start = 0, end = 1> (x)
  first = Shape <start = 0, end = 1> (z)
  rest = Sub (have, first)
  parts = Concat <axis = 0> (first, rest)
  p, q = Split <axis = 0> (x, parts)
  r, s = Split <axis = 0> (z, sizes)
  t, u = Split <axis = 0> (x)
}
"""
CHANNELS = """
channels (float[2, n, 6] x, float[3] w, float[m] b, float[n] c) => (float[2, k, 6] y, float[6, o] z)
{
  normal = InstanceNormalization (x, w, b)
  y = BatchNormalization (normal, w, w, w, w)
  rows = Slice (x, first, one, first)
  flat = Squeeze (rows, first)
  joined = Concat <axis = 0> (flat, flat)
  turned = Transpose <perm = [1, 0]> (flat)
  z = LayerNormalization (turned, c, b)
}
"""
PLACED = """
placed (float[n, 3] x, int64[m, 1] i, float[k, 3] u, float[n, k] g) => (float[a, 3] y, float[b, 3] z)
{
  y = ScatterND (x, i, u)
  z = Gemm (g, u, x)
}
"""


def ones(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def high(columns: int, *rows: int) -> np.ndarray:
    """Return [5, columns] numbers of which those of ``rows`` of the transposed matrix are above the limit."""
    values = np.clip(ones(5, columns), -1, 1)
    values[2, list(rows)] = 3
    return values


def test_squeezed_axes_have_extent_1(tmp_path: Path) -> None:
    right = {"x": ones(1, 5), "z": high(1, 0)}
    check(
        tmp_path,
        SQUEEZED,
        "nm",
        [right],
        {
            "y: n == 1, but 2 and 1": {**right, "x": ones(2, 5)},
            "w: m == 1, but 3 and 1": {**right, "z": high(3, 0)},
            "one: nonzero_0 == 1, but 0 and 1": {**right, "z": high(1)},
        },
    )


def test_parts_of_a_split_add_up(tmp_path: Path) -> None:
    right = {"x": ones(6, 6), "z": ones(3, 6)}
    check(
        tmp_path,
        SPLIT,
        "nm",
        [right, {**right, "x": ones(4, 6)}],
        {
            "0 <= n - m, but 0 and -1": {**right, "x": ones(2, 6)},
            "m == 3, but 2 and 3": {**right, "z": ones(2, 6)},
            r"n == \(n // 2\) \* 2, but 5 and 4": {**right, "x": ones(5, 6)},
        },
    )


@pytest.mark.thorough
def test_scales_are_as_many_as_channels(tmp_path: Path) -> None:
    text = CHANNELS.replace("{\n", "<int64[1] first = {0}, int64[1] one = {1}>\n{\n", 1)
    right = {"x": ones(2, 3, 6), "w": abs(ones(3)), "b": ones(3), "c": ones(3)}
    check(
        tmp_path,
        text,
        "nm",
        [right],
        {
            "n == 3, but 4 and 3": {**right, "x": ones(2, 4, 6), "c": ones(4)},
            "m == 3, but 2 and 3": {**right, "b": ones(2)},
        },
    )


@pytest.mark.thorough
def test_updates_and_biases_fit(tmp_path: Path) -> None:
    right = {"x": ones(4, 3), "i": np.array([[1], [3]]), "u": ones(2, 3), "g": ones(4, 2)}
    check(tmp_path, PLACED, "nmk", [right], {"k == m, but 3 and 2": {**right, "u": ones(3, 3), "g": ones(4, 3)}})
