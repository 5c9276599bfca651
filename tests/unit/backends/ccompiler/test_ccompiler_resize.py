"""Resizing by tables, and windows that overlap, in the ccompiler backend: any axes, several terms, what follows."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from ccompiler_runner import Runner, partition, variable
from tvm import relax, tirx
from tvm.relax import op

from packager.graph.resize import Resizing, resize
from packager.graph.windows.col2im import Windows, col2im

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(17)


def tables(extents: Sequence[int], sizes: Sequence[int], taps: Sequence[int]) -> list[np.ndarray]:
    """Return random tables for axes: indices, weights, and that nothing is beyond the edges."""
    found = []
    for extent, size, count in zip(extents, sizes, taps, strict=True):
        weights = RNG.uniform(-1, 1, (size, count)) if max(taps) > 1 else np.ones((size, count))
        found += [RNG.integers(0, extent, (size, count)).astype("i4"), weights.astype("f4"), np.zeros(size, "i4")]
    return found


def expected(x: np.ndarray, axes: Sequence[int], given: Sequence[np.ndarray]) -> np.ndarray:
    wide = x.astype("f8")
    for number, axis in enumerate(axes):
        indices, weights = given[3 * number : 3 * number + 2]
        taken = np.take(wide, indices, axis)
        shape = [1] * axis + list(weights.shape) + [1] * (x.ndim - axis - 1)
        wide = (taken * weights.reshape(shape)).sum(axis + 1)
    return wide


@pytest.mark.parametrize(
    ("shape", "axes", "sizes", "taps"),
    [
        ((2, 5, 4, 19), (1, 2), (10, 8), (1, 1)),
        ((1, 5, 4, 70), (1, 2), (7, 9), (2, 2)),
        ((2, 6, 33), (1,), (11,), (4,)),
        ((1, 3, 4, 5, 8), (1, 2, 3), (6, 8, 10), (1, 2, 2)),
        ((2, 5, 4, 16), (2,), (9,), (2,)),
    ],
)
def test_resize(shape: Any, axes: Any, sizes: Any, taps: Any, tmp_path: Path) -> None:
    given = tables([shape[axis] for axis in axes], sizes, taps)
    attributes = Resizing(axes, (False,) * len(axes))
    constants = [relax.const(array) for array in given]
    batch = tirx.Var("n", "int64")
    x, bias = variable("x", (batch, *shape[1:])), variable("b", shape[-1:])

    def body(e: Any, x: Any, bias: Any) -> Any:
        return e(op.nn.relu(e(op.add(e(resize(x, constants, attributes)), bias))))

    run = Runner(partition([x, bias], body, [1]), tmp_path)
    named = [variable(f"t{number}", array.shape, str(array.dtype)) for number, array in enumerate(given)]

    def of_operands(e: Any, x: Any, bias: Any, *operands: Any) -> Any:
        return e(op.nn.relu(e(op.add(e(resize(x, operands, attributes)), bias))))

    others = Runner(partition([x, bias, *named], of_operands, range(1, 2 + len(named))), tmp_path / "operands")
    data, shift = RNG.standard_normal(shape).astype("f4"), RNG.standard_normal(shape[-1:]).astype("f4")
    wanted = np.maximum(expected(data, axes, given) + shift, 0)
    np.testing.assert_allclose(run(data, shift), wanted, rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(others(data, shift, *given), run(data, shift))


def interpolation(extent: int, size: int, taps: int) -> list[np.ndarray]:
    """Return tables of neighbors, as interpolations have them."""
    middle = (np.arange(size) + 0.5) * extent / size - taps / 2
    indices = np.clip(np.floor(middle)[:, None] + np.arange(taps), 0, extent - 1)
    weights = RNG.uniform(-1, 1, indices.shape) if taps > 1 else np.ones(indices.shape)
    return [indices.astype("i4"), weights.astype("f4"), np.zeros(size, "i4")]


@pytest.mark.parametrize(
    ("shape", "axes", "sizes", "taps"),
    [
        ((2, 3, 14, 19), (2, 3), (28, 38), (2, 2)),
        ((1, 3, 8, 56), (2, 3), (16, 112), (1, 1)),
        ((1, 3, 8, 26), (2, 3), (16, 52), (1, 1)),
        ((2, 3, 5, 14), (2, 3), (10, 28), (1, 1)),
        ((2, 5, 10), (2,), (20,), (1,)),
        ((1, 2, 3, 5), (2, 3), (9, 15), (1, 1)),
        ((2, 5, 70), (2,), (173,), (2,)),
        ((2, 5, 70), (2,), (35,), (2,)),
        ((2, 5, 7), (2,), (21,), (4,)),
        ((2, 5, 64), (2,), (9,), (2,)),
        ((1, 2, 40, 40), (2, 3), (10, 10), (4, 4)),
        ((1, 2, 4, 5, 33), (2, 3, 4), (6, 8, 50), (2, 2, 2)),
    ],
)
@pytest.mark.parametrize("follows", [False, True])
def test_last_axis(shape: Any, axes: Any, sizes: Any, taps: Any, follows: bool, tmp_path: Path) -> None:
    """Vectors that are permuted, of one or two, results too far apart or too few for them; what follows, or nothing."""
    found = [interpolation(shape[axis], *rest) for axis, *rest in zip(axes, sizes, taps, strict=True)]
    given = [array for arrays in found for array in arrays]
    constants, attributes = [relax.const(array) for array in given], Resizing(axes, (False,) * len(axes))
    x = variable("x", (tirx.Var("n", "int64"), *shape[1:]))

    def body(e: Any, x: Any) -> Any:
        result = e(resize(x, constants, attributes))
        return e(op.nn.relu(result)) if follows else result

    data = RNG.standard_normal(shape).astype("f4")
    wanted = expected(data, axes, given)
    got = Runner(partition([x], body), tmp_path)(data)
    np.testing.assert_allclose(got, np.maximum(wanted, 0) if follows else wanted, rtol=1e-5, atol=2e-6)
    weights = [variable(f"w{number}", array.shape) for number, array in enumerate(given[1::3])]

    def of_operands(e: Any, x: Any, *weights: Any) -> Any:
        tables = [part for n, w in enumerate(weights) for part in (constants[3 * n], w, constants[3 * n + 2])]
        result = e(resize(x, tables, attributes))
        return e(op.nn.relu(result)) if follows else result

    others = Runner(partition([x, *weights], of_operands, range(1, 1 + len(weights))), tmp_path / "operands")
    np.testing.assert_array_equal(others(data, *given[1::3]), got)


OVERLAPPING = [
    Windows((30, 30), (3, 3), (28, 28), (1, 1), (1, 1), (0, 0)),
    Windows((11, 37), (4, 4), (6, 19), (2, 2), (1, 1), (1, 1)),
    Windows((13, 140), (3, 5), (7, 46), (2, 3), (1, 2), (1, 3)),
    Windows((2, 9, 20), (2, 1, 2), (1, 9, 10), (2, 1, 2), (1, 1, 1), (0, 0, 0)),
    Windows((7000,), (16,), (875,), (8,), (1,), (4,)),  # in several segments
    Windows((5, 70), (2, 20), (5, 5), (1, 16), (1, 1), (1, 7)),  # elements of no window
]


def added_up(x: np.ndarray, windows: Windows) -> np.ndarray:
    """Return the sums in double precision, an element of a window at a time."""
    taps = int(np.prod(windows.size))
    data = x.reshape(x.shape[0], -1, *windows.size, *windows.counts).astype("f8")
    assert data.shape[1] * taps == x.shape[1]
    found = np.zeros((*data.shape[:2], *windows.extents))
    for tap in product(*map(range, windows.size)):
        for place in product(*map(range, windows.counts)):
            numbers = zip(place, windows.strides, tap, windows.dilations, windows.before, strict=True)
            at = tuple(i * stride + k * dilation - before for i, stride, k, dilation, before in numbers)
            if all(0 <= index < extent for index, extent in zip(at, windows.extents, strict=True)):
                found[(slice(None), slice(None), *at)] += data[(slice(None), slice(None), *tap, *place)]
    return found


@pytest.mark.parametrize("windows", OVERLAPPING, ids=str)
@pytest.mark.parametrize("flat", [True, False])
def test_windows_are_added_up(windows: Windows, flat: bool, tmp_path: Path) -> None:
    channels = 3
    columns = (int(np.prod(windows.counts)),) if flat else windows.counts
    rows = channels * int(np.prod(windows.size))
    batch = tirx.Var("n", "int64")
    x, bias = variable("x", (batch, rows, *columns)), variable("b", (1, channels, *[1] * len(windows.extents)))

    def body(e: Any, x: Any, bias: Any) -> Any:
        return e(op.nn.relu(e(op.add(e(col2im(x, windows)), bias))))

    run = Runner(partition([x, bias], body, [1]), tmp_path)
    data = RNG.standard_normal((2, rows, *columns)).astype("f4")
    shift = RNG.standard_normal((1, channels, *[1] * len(windows.extents))).astype("f4")
    wanted = np.maximum(added_up(data, windows) + shift, 0)
    np.testing.assert_allclose(run(data, shift), wanted, rtol=1e-5, atol=1e-5)
