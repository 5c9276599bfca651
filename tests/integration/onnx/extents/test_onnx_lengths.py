"""Lengths that exporters divide as floats, count from the end, or transform, against onnxruntime at many sizes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from packager.errors import ModelError
from tests.onnx_runs import check

pytestmark = pytest.mark.slow

# The pads that make frames fit, as EnCodec computes them; a quotient that stays a float; a part of the length.
FRAMES = """
frames (float[2, n] x) => (float[2, a] y, float[2, n] z, float[2, b] part)
<int64 one = {1}, int64[1] axis = {1}, int64[1] first = {0}, float kernel = {2}, float stride = {3}, float unit = {1},
 int64 whole = {3}, int64[4] shape = {0, 0, 0, 0}, float share = {0.75}, int64[3] zeros = {0, 0, 0}>
{
  sizes = Shape (x)
  n0 = Gather (sizes, one)
  n1 = Cast <to = 1> (n0)
  q0 = Sub (n1, kernel)
  q1 = Div (q0, stride)
  q2 = Add (q1, unit)
  q3 = Ceil (q2)
  frames = Cast <to = 7> (q3)
  ideal = Mul (frames, whole)
  extra = Sub (ideal, n0)
  more = Unsqueeze (extra, first)
  last = Max (more, first)
  pads = Concat <axis = 0> (zeros, last)
  y = Pad (x, pads)
  z = Mul (x, q2)
  s0 = Mul (n1, share)
  s1 = Floor (s0)
  s2 = Cast <to = 7> (s1)
  end = Unsqueeze (s2, first)
  part = Slice (x, first, end, axis)
}
"""
# A bound that counts from the end where the length is short.
BOUNDS = """
bounds (float[2, n] x) => (float[2, a] y, float[2, b] z)
<int64 one = {1}, int64 four = {4}, int64[1] axis = {1}, int64[1] first = {0}>
{
  sizes = Shape (x)
  length = Gather (sizes, one)
  short = Sub (length, four)
  bound = Unsqueeze (short, first)
  y = Slice (x, first, bound, axis)
  z = Slice (x, bound, sizes_end, axis)
}
""".replace("first = {0}>", "first = {0}, int64[1] sizes_end = {9223372036854775807}>")
# Parts that make the whole again, which TVM sees in one order of the operands alone.
PARTS = """
parts (float[n, 3] x) => (float[n, 3] y, float[n, 3] z)
<int64[1] axis = {0}, int64[1] begin = {0}, int64[1] four = {4}, int64[1] far = {9223372036854775807}>
{
  head = Slice (x, begin, four, axis)
  tail = Slice (x, four, far, axis)
  whole = Concat <axis = 0> (head, tail)
  y = Add (whole, x)
  z = Add (x, whole)
}
"""
TRANSFORM = """
transform (float[n, t, 3, 2] x, float[m] l) => (float[n, t, 3, 2] y, float[n, h, 3, 2] half, float[n, r, 3, 1] back)
<int64 axis = {1}>
{
  y = DFT <inverse = 1> (x, , axis)
  sizes = Shape (l)
  length = Squeeze (sizes)
  real = Split0 (x)
  half = DFT <onesided = 1> (real, length, axis)
  back = DFT <inverse = 1, onesided = 1> (half, length, axis)
}
""".replace("real = Split0 (x)", "real, imaginary = Split <axis = 3, num_outputs = 2> (x)")
# Halved until it is small: nothing but the user bounds the rows that are stacked, and the list that grows.
HALVED = """
halved (float[n] x, float[1, 3] row) => (float[n] y, float[k, n] all, float[r, 3] list)
<float half = {0.5}, float limit = {0.1}>
{
  top = ReduceMax <keepdims = 0> (x)
  going = Greater (top, limit)
  y, list, all = Loop (, going, x, row) <body = step (int64 i, bool c, float[n] s, float[g, 3] before) =>
    (bool again, float[n] next, float[h, 3] after, float[n] each) {
    next = Mul (s, half)
    most = ReduceMax <keepdims = 0> (next)
    again = Greater (most, limit)
    after = Concat <axis = 0> (before, row)
    each = Identity (next)
  }>
}
"""

# Ranges of floats: to a length in halves, and to what the data say.
RANGES = """
ranges (float[n] x, float[m] z) => (float[k] y, float[r] up, float[d] down)
<float zero = {0}, float half = {0.5}, float back = {-0.25}>
{
  sizes = Shape (x)
  length = Squeeze (sizes)
  limit = Cast <to = 1> (length)
  y = Range (zero, limit, half)
  top = ReduceMax <keepdims = 0> (z)
  up = Range (half, top, half)
  low = ReduceMin <keepdims = 0> (z)
  down = Range (top, low, back)
}
"""


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def test_pads_from_a_quotient_of_floats(tmp_path: Path) -> None:
    check(tmp_path, FRAMES, {"n": (2, 40)}, [{"x": numbers(2, n)} for n in range(2, 41)])


def test_bounds_that_count_from_the_end_at_some_sizes(tmp_path: Path) -> None:
    check(tmp_path, BOUNDS, {"n": (1, 9)}, [{"x": numbers(2, n)} for n in range(1, 10)])


def test_parts_are_the_whole_in_either_order(tmp_path: Path) -> None:
    check(tmp_path, PARTS, {"n": (1, 9)}, [{"x": numbers(n, 3)} for n in range(1, 10)])


def test_transforms_of_symbolic_lengths(tmp_path: Path) -> None:
    sizes = [(1, 1, 2), (2, 8, 5), (1, 13, 13), (2, 16, 7)]
    feeds = [{"x": numbers(n, t, 3, 2), "l": numbers(m)} for n, t, m in sizes]
    check(tmp_path, TRANSFORM, {"n": (1, 2), "t": (1, 16), "m": (2, 16)}, feeds, opset=20, tolerance=1e-4)


def test_loops_that_the_user_bounds(tmp_path: Path) -> None:
    """A run that exceeds the bound is refused, and the next one is right."""
    given = {"x": np.abs(numbers(3)), "row": numbers(1, 3)}
    with pytest.raises(ModelError) as error:
        check(tmp_path, HALVED, "n", [given])
    assert "--dim loop_0=1:MAX" in error.value.hint
    bounds = {"n": (1, 4), "loop_0": (1, 9)}
    large = {**given, "x": given["x"] * 1000}
    check(tmp_path, HALVED, bounds, [given, {**given, "x": given["x"] * 0.2}], {"loop_0.* is 10, expected 0..9": large})
    check(tmp_path, HALVED, bounds | {"loop_0": (1, 20)}, [large])


def test_ranges_of_floats(tmp_path: Path) -> None:
    bounds = {"n": (1, 6), "m": (1, 3), "range_0": (1, 20), "range_1": (1, 40)}
    feeds = [{"x": numbers(n), "z": np.float32(z)} for n, z in ((1, [3.2, 1]), (6, [0.5]), (3, [-1, 2.51, 2]))]
    check(tmp_path, RANGES, bounds, feeds, {"range_0.* is 199, expected 0..20": {**feeds[0], "z": np.float32([100])}})
