"""Sequences in loops, and branches whose results have different ranks, against onnxruntime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.onnx_runs import check

pytestmark = pytest.mark.slow

# A list that a loop appends to, of slices of a sequence: stacked, joined, counted and read.
APPENDED = """
appended (float[n, 3, t] x) => (float[n, s, 3] y, float[n, j] z, int64 count, float[n, 3] first)
<bool yes = {1}, int64 start = {0}>
{
  parts = SplitToSequence <axis = 2, keepdims = 0> (x)
  length = SequenceLength (parts)
  empty = SequenceEmpty ()
  list = Loop (length, yes, empty) <body = step (int64 i, bool going, seq(float[n, 3]) before) =>
    (bool again, seq(float[n, 3]) after) {
    again = Identity (going)
    part = SequenceAt (parts, i)
    number = Cast <to = 1> (i)
    scaled = Mul (part, number)
    shifted = Sin (scaled)
    after = SequenceInsert (before, shifted)
  }>
  y = ConcatFromSequence <axis = 1, new_axis = 1> (list)
  z = ConcatFromSequence <axis = 1> (list)
  count = SequenceLength (list)
  first = SequenceAt (list, start)
}
"""
# Parts of known sizes: the loop is unrolled, and the list is known element by element.
KNOWN = """
known (float[n, 7] x) => (float[n, k] y, int64 count)
<bool yes = {1}, int64[3] sizes = {2, 4, 1}, int64 middle = {1}, int64 two = {2}>
{
  parts = SplitToSequence <axis = 1> (x, sizes)
  length = SequenceLength (parts)
  empty = SequenceEmpty ()
  list = Loop (length, yes, empty) <body = step (int64 i, bool going, seq(float[n, m]) before) =>
    (bool again, seq(float[n, m]) after) {
    again = Identity (going)
    part = SequenceAt (parts, i)
    sums = CumSum (part, one)
    after = SequenceInsert (before, sums)
  }>
  shorter = SequenceErase (list, middle)
  pairs = SplitToSequence <axis = 1> (x, two)
  last = SequenceAt (pairs, minus)
  longer = SequenceInsert (shorter, last, middle)
  y = ConcatFromSequence <axis = 1> (longer)
  count = SequenceLength (longer)
}
"""
# A squeeze as torch writes it where the extent may be another; and a demand that one branch makes only.
BRANCHES = """
branches (float[n, 4] x, float[m, 4] z, bool flag) => (float[4] y, float[k, 4] w)
<int64 one = {1}, int64[1] axes = {0}, int64 first = {0}>
{
  shape = Shape (x)
  extent = Gather (shape, first)
  is_one = Equal (extent, one)
  y = If (is_one) <
    then_branch = squeezed () => (float[4] a) { a = Squeeze (x, axes) },
    else_branch = same () => (float[b, 4] c) { c = Identity (x) }
  >
  w = If (flag) <
    then_branch = joined () => (float[k, 4] d) {
      e = Transpose <perm = [1, 0]> (z) f = MatMul (z, e) g = Squeeze (z, axes)
      h = Add (f, one_float) i = MatMul (h, z) d = Add (i, g) },
    else_branch = plain () => (float[k, 4] o) { o = Neg (z) }
  >
}
"""


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def test_a_list_that_a_loop_appends_to(tmp_path: Path) -> None:
    check(tmp_path, APPENDED, "nt", [{"x": numbers(n, 3, t)} for n, t in ((1, 1), (2, 5))])


def test_a_list_of_known_length(tmp_path: Path) -> None:
    constants = {"one": np.asarray(1), "minus": np.asarray(-1)}
    check(tmp_path, KNOWN, "n", [{"x": numbers(n, 7)} for n in (1, 3)], constants=constants)


def test_branches_of_other_ranks_and_what_one_branch_demands(tmp_path: Path) -> None:
    yes, no = np.asarray(True), np.asarray(False)
    given = {"x": numbers(1, 4), "z": numbers(1, 4), "flag": yes}
    check(
        tmp_path,
        BRANCHES,
        "nm",
        [given, {**given, "z": numbers(3, 4), "flag": no}],
        {
            "if_[01] == 1, but 0 and 1": {**given, "x": numbers(2, 4)},
            "m == 1, but 3 and 1": {**given, "z": numbers(3, 4)},
        },
        constants={"one_float": np.asarray(1, np.float32)},
    )
