"""Overlapping windows in the ccompiler backend: axes, strides, dilations, edges, and what follows."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from ccompiler_runner import Runner, partition, variable
from tvm import tirx
from tvm.relax import op

from packager.graph.windows.col2im import Windows, col2im

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(5)

CASES = [
    Windows((30, 30), (3, 3), (28, 28), (1, 1), (1, 1), (0, 0)),
    Windows((11, 37), (4, 4), (6, 19), (2, 2), (1, 1), (1, 1)),
    Windows((13, 140), (3, 5), (7, 46), (2, 3), (1, 2), (1, 3)),
    Windows((2, 9, 20), (2, 1, 2), (1, 9, 10), (2, 1, 2), (1, 1, 1), (0, 0, 0)),
    Windows((7000,), (16,), (875,), (8,), (1,), (4,)),  # in several segments
    Windows((5, 70), (2, 20), (5, 5), (1, 16), (1, 1), (1, 7)),  # elements of no window
]


def expected(x: np.ndarray, windows: Windows) -> np.ndarray:
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


@pytest.mark.parametrize("windows", CASES, ids=str)
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
    wanted = np.maximum(expected(data, windows) + shift, 0)
    np.testing.assert_allclose(run(data, shift), wanted, rtol=1e-5, atol=1e-5)
