"""Convolutions that read their windows in lines of the data: every way in which lines and places are shared out."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm")
from ccompiler_runner import Runner, partition, variable
from test_ccompiler_families import LAYOUTS, close, conv2d, first, has_avx512, last, last_shape, random, symbol
from tvm.relax import op

from packager.backends.ccompiler.core.machine import KINDS, Machine
from packager.backends.ccompiler.core.operations import Window
from packager.backends.ccompiler.core.shapes import Shape
from packager.backends.ccompiler.gemm.row_windows import MOST_COPIED, MOST_STEPS, windows_in_lines

MACHINES = {"avx2": "x86-64-v3", "avx512": "x86-64-v4", "aarch64": "x86-64-v2"}
# Shapes of data and weights as NCHW, and attributes.
CASES = {
    "lines of two blocks": ((2, 8, 5, 61), (24, 8, 3, 3), {"padding": (1, 1, 1, 1)}),
    "several lines in a block, fewer in the last": ((3, 6, 11, 13), (40, 6, 3, 3), {"padding": (1, 1, 1, 1)}),
    "few channels, strides, no edges": ((2, 3, 19, 125), (64, 3, 3, 3), {"strides": (2, 2)}),
    "uneven edges": ((1, 5, 12, 17), (33, 5, 5, 4), {"strides": (3, 2), "padding": (0, 3, 4, 1)}),
    "windows that see nothing but edges": ((2, 1, 1, 2), (16, 1, 3, 3), {"padding": (3, 3, 3, 3)}),
    "a chunk for each line": ((1, 90, 9, 10), (70, 90, 3, 3), {"padding": (1, 1, 1, 1), "strides": (1, 2)}),
    "two lines in a tile": ((2, 16, 5, 4), (40, 16, 3, 3), {"padding": (1, 1, 1, 1)}),
    "two lines of one place": ((3, 9, 4, 3), (150, 9, 3, 3), {"padding": (1, 0, 1, 0)}),
    "strided places": ((2, 70, 9, 30), (20, 70, 1, 1), {"strides": (2, 2)}),
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("case", CASES)
def test_windows_in_lines(case: str, machine: str, tmp_path: Path) -> None:
    """Right, and with equal bits however units of work are handed out."""
    if machine == "avx512" and not has_avx512():
        pytest.skip("this machine has no AVX-512")
    shape, weight, attributes = CASES[case]
    arguments = [variable("x", (symbol(), *last_shape(shape)[1:])), variable("w", last_shape(weight))]
    arguments += [variable("b", (weight[0],))]

    def body(e, x, w, b):
        return e(op.nn.relu(e(op.add(e(op.nn.conv2d(x, w, **attributes, **LAYOUTS)), b))))

    chosen = Machine(16, 32, "aarch64") if machine == "aarch64" else None
    data, weights, bias = random(shape), random(weight), random(weight[:1])
    target = f"ccompiler -march={MACHINES[machine]}"
    run = Runner(partition(arguments, body, [1, 2]), tmp_path, target, machine=chosen)
    results = []
    for split in (1, 3, 1000):
        run.split = split
        results.append(first(run(last(data), last(weights), bias)))
        np.testing.assert_array_equal(results[-1], results[0])
    wanted = np.maximum(conv2d(data, weights, **attributes) + bias[:, None, None], 0)
    close(results[0], wanted, math.prod(weight[1:]))


@pytest.mark.parametrize("places", [1, 4, 13, 55, 56, 57, 230])
@pytest.mark.parametrize("channels", [1, 3, 16, 64, 170, 600])
@pytest.mark.parametrize("data", ["float32", "uint8"])
def test_copies_fit_into_the_buffer(data: str, places: int, channels: int) -> None:
    """The stack that a block needs is bounded, whatever the shape."""
    kind = KINDS[data]
    window = Window((3, 3), (1, 1), (1, 1), (1, 1, 1, 1))
    shape = (1, places, places)
    made = windows_in_lines("x", Shape((*shape, channels)), Shape((*shape, 32)), window, kind)
    if made is None:  # even one line does not fit, or a window is long
        assert 3 * (min(places, 56) + 2) * channels > MOST_COPIED * kind.unit or 3 * channels > MOST_STEPS * kind.unit
        return
    blocks, read = made
    assert 0 < read.buffer <= MOST_COPIED * kind.unit
    assert read.stretch == -(-3 * channels // kind.unit)
    assert blocks.counts is not None
    assert max(blocks.counts) <= 56
    assert sum(blocks.counts) <= blocks.run * 2


def test_windows_that_are_gathered() -> None:
    """Many channels, dilation, places that would meet in one set of the cache, and what is not read as it is stored."""
    shape = (1, 9, 9)
    near = Window((3, 3), (1, 1), (1, 1), (1, 1, 1, 1))
    for data, channels, window in (
        ("float32", 256, near),
        ("float32", 8, Window((3, 3), (1, 1), (1, 2), (0, 0, 0, 0))),
        ("float32", 256, Window((1, 1), (2, 2), (1, 1), (0, 0, 0, 0))),
        ("uint8", 1024, near),
        ("int8", 8, near),
        ("float16", 8, near),
    ):
        assert windows_in_lines("x", Shape((*shape, channels)), Shape((1, 5, 5, 32)), window, KINDS[data]) is None
