"""Convolutions that read their windows in lines of the data: every way in which lines and places are shared out."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm")
from ccompiler_runner import Runner, partition, variable
from test_ccompiler_families import LAYOUTS, close, conv2d, first, last, last_shape, random, symbol
from tvm.relax import op

from packager.backends.ccompiler.core.machine import KINDS, Machine
from packager.backends.ccompiler.core.operations import Window
from packager.backends.ccompiler.core.shapes import Shape
from packager.backends.ccompiler.gemm.copies import MOST_COPIED, Convolution
from packager.backends.ccompiler.gemm.line_blocks import LineBlocks
from packager.backends.ccompiler.gemm.line_cuts import Axis
from packager.backends.ccompiler.gemm.windows import Rows, find_rows

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
    "strided places that alias": ((2, 256, 9, 11), (20, 256, 1, 1), {"strides": (2, 2)}),
    "slices of channels": ((2, 300, 9, 10), (40, 300, 3, 3), {"padding": (1, 1, 1, 1)}),
    "dilated": ((2, 40, 17, 15), (24, 40, 3, 3), {"padding": (2, 3, 2, 3), "dilation": (2, 3)}),
    "three filters, lines that are no whole vectors": ((2, 21, 9, 11), (3, 21, 3, 3), {"padding": (1, 1, 1, 1)}),
    "one filter, slices of channels": ((2, 520, 9, 10), (1, 520, 3, 3), {"padding": (1, 1, 1, 1)}),
    "nine filters, apart": ((1, 40, 13, 29), (9, 40, 3, 2), {"dilation": (1, 3), "strides": (2, 1)}),
    "two filters of one place": ((2, 512, 5, 7), (2, 512, 1, 1), {}),
    "groups of four channels": ((2, 48, 9, 13), (48, 4, 3, 3), {"groups": 12, "padding": (1, 1, 1, 1)}),
    "groups of eight channels": ((1, 64, 11, 15), (64, 8, 3, 2), {"groups": 8, "strides": (2, 1), "padding": (1,) * 4}),
    "groups of four channels that alias": ((1, 512, 7, 6), (512, 4, 3, 3), {"groups": 128, "dilation": (1, 2)}),
    "two filters for each channel": ((2, 24, 9, 13), (48, 1, 3, 3), {"groups": 24, "padding": (1, 1, 1, 1)}),
    "four filters for each channel": ((1, 12, 8, 11), (48, 1, 3, 5), {"groups": 12, "strides": (1, 2)}),
    "groups of two channels, one filter": ((2, 64, 7, 10), (32, 2, 3, 3), {"groups": 32, "padding": (1, 1, 1, 1)}),
    "groups of two channels": ((1, 16, 1, 61), (16, 2, 1, 7), {"groups": 8, "padding": (0, 3, 0, 3)}),
    "groups of two channels, four filters": ((1, 24, 9, 7), (48, 2, 1, 1), {"groups": 12}),
    "groups of four channels, two filters": ((2, 64, 6, 9), (32, 4, 3, 3), {"groups": 16, "dilation": (1, 2)}),
    "groups of four channels, eight filters": ((1, 8, 9, 8), (16, 4, 3, 3), {"groups": 2, "padding": (1, 1, 1, 1)}),
    "groups of eight channels, four filters": ((1, 64, 7, 9), (32, 8, 3, 3), {"groups": 8, "strides": (2, 1)}),
    "groups of three channels": ((2, 48, 6, 15), (48, 3, 3, 3), {"groups": 16, "padding": (1, 1, 1, 1)}),
    "groups of six channels": ((1, 36, 9, 8), (36, 6, 3, 3), {"groups": 6, "strides": (2, 1), "padding": (1,) * 4}),
    "groups of five channels, seven filters": ((2, 20, 7, 6), (28, 5, 2, 3), {"groups": 4}),
    "groups of seven channels, five filters": ((1, 28, 5, 9), (20, 7, 3, 1), {"groups": 4, "padding": (1, 0, 1, 0)}),
    "groups of two channels, one filter, in slices": (
        (1, 64, 7, 168), (32, 2, 3, 3), {"groups": 32, "padding": (1, 1, 1, 1), "strides": (3, 3)},
    ),
    "groups of eight channels, long windows": ((1, 32, 15, 9), (32, 8, 7, 5), {"groups": 4}),
    "lines one by one of tall windows": (
        (2, 40, 25, 30), (20, 40, 21, 9), {"strides": (2, 1), "padding": (10, 4, 8, 4)},
    ),
    "cut where taps begin to meet the image": (
        (2, 24, 17, 19), (40, 24, 3, 3), {"padding": (6, 7, 6, 7), "dilation": (6, 7)},
    ),
    "cut lines of few filters, apart": ((2, 40, 21, 16), (3, 40, 3, 3), {"padding": (8, 8, 8, 8), "dilation": (8, 8)}),
    "cut lines that alias": ((1, 512, 12, 13), (20, 512, 3, 3), {"padding": (5, 5, 5, 5), "dilation": (5, 5)}),
    "taps that meet padding alone": ((2, 20, 6, 7), (24, 20, 3, 3), {"padding": (5, 9, 5, 9), "dilation": (5, 9)}),
}  # fmt: skip


@pytest.mark.sampled(4, every_value=False)
@pytest.mark.slow
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("case", CASES)
def test_windows_in_lines(case: str, machine: str, tmp_path: Path) -> None:
    """Right, and with equal bits however units of work are handed out."""
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


def rows_of(kind: str, data: tuple[int, ...], out: tuple[int, ...], window: Window, groups: int = 1) -> Rows:
    """Return the rows of a convolution over [N, D, H, W, C]."""
    return find_rows("x", Convolution(Shape(data), Shape(out), window, groups, KINDS[kind]))


def window(size: tuple[int, ...], stride: int = 1, dilation: int = 1, pad: int = 0) -> Window:
    """Return a window that is the same along all axes."""
    return Window(size, *((value,) * 3 for value in (stride, dilation, pad, pad)))


@pytest.mark.slow
@pytest.mark.parametrize("machine", ["avx2", "avx512"])
@pytest.mark.parametrize("planes", [2, 5])
def test_planes_one_by_one_of_which_the_first_is_padding(planes: int, machine: str, tmp_path: Path) -> None:
    """A block without a tap in its first plane begins with zeros, in tiles of the heights that it has elsewhere."""
    layouts = {"data_layout": "NDHWC", "kernel_layout": "ODHWI", "out_layout": "NDHWC"}
    x, w = variable("x", (2, planes, 8, 8, 256)), variable("w", (64, 3, 3, 3, 256))

    def body(e, x, w):
        return e(op.nn.relu(e(op.nn.conv3d(x, w, strides=2, padding=1, **layouts))))

    run = Runner(partition([x, w], body, [1]), tmp_path, f"ccompiler -march={MACHINES[machine]}")
    data, weights = random((2, planes, 8, 8, 256)), random((64, 3, 3, 3, 256))
    torch = pytest.importorskip("torch")
    first_axes = [torch.from_numpy(np.moveaxis(array, -1, 1).astype(np.float64)) for array in (data, weights)]
    wanted = torch.relu(torch.nn.functional.conv3d(*first_axes, stride=2, padding=1)).numpy()
    for _ in range(2):  # the second run finds on the stack what the first has left
        np.testing.assert_allclose(run(data, weights), np.moveaxis(wanted, 1, -1), rtol=0, atol=2e-6 * wanted.max())


@pytest.mark.parametrize("places", [1, 4, 13, 55, 56, 57, 230])
@pytest.mark.parametrize("channels", [1, 3, 16, 64, 170, 600, 2048])
@pytest.mark.parametrize("kind", ["float32", "float16", "uint8", "int8"])
def test_copies_fit_into_the_buffer(kind: str, places: int, channels: int) -> None:
    """The stack that a block needs is bounded, whatever the shape; blocks have nearly 56 rows where lines are short."""
    shape, pair = (1, 3, places, places, channels), KINDS[kind].unit
    rows = rows_of(kind, shape, (1, 3, places, places, 32), window((3, 3, 3), pad=1))
    assert rows.data.passes
    assert 0 < rows.data.buffer <= (MOST_COPIED + 4) * pair
    assert rows.blocks.counts is not None
    assert rows.blocks.size is not None
    assert rows.blocks.size <= 56
    assert rows.blocks.size >= min(28, places * places) or places > 56


def test_windows_that_are_read_where_they_are() -> None:
    """Without padding nothing is copied, unless rows alias, a step reads beyond a pixel, or elements are converted."""
    shape = (1, 1, 9, 9)
    plain, dilated, strided = window((1, 3, 3)), window((1, 3, 3), dilation=2), window((1, 1, 1), stride=2)
    for kind, channels, chosen, direct in (
        ("float32", 64, plain, True),
        ("float32", 64, dilated, True),
        ("float32", 512, plain, False),
        ("float32", 256, strided, False),
        ("uint8", 3, plain, False),
        ("uint8", 4, plain, True),
        ("int8", 8, plain, False),
        ("float16", 8, plain, False),
    ):
        rows = rows_of(kind, (*shape, channels), (1, 1, 5, 5, 32), chosen)
        assert bool(rows.data.buffer) != direct, (kind, channels, chosen)


def test_windows_that_are_gathered() -> None:
    """Of very long windows the rows of a block would not fit."""
    frames = window((1, 1, 2000), stride=500)
    padded = Window(frames.size, frames.strides, frames.dilation, (0, 0, 1000), (0, 0, 1000))
    assert not rows_of("float32", (1, 1, 1, 48000, 1), (1, 1, 1, 97, 64), padded).data.passes
    assert not rows_of("float32", (1, 1, 1, 48000, 1), (1, 1, 1, 93, 64), frames).data.buffer


def test_taps_that_meet_only_padding_are_left_out() -> None:
    """A copy has room for the lines of one tap where all others meet padding."""
    wide = window((1, 3, 3), dilation=24, pad=24)
    whole = Window(wide.size, wide.strides, wide.dilation, (0, 24, 24), (0, 24, 24))
    rows = rows_of("float32", (1, 1, 16, 16, 64), (1, 1, 16, 16, 64), whole)
    assert "pk_find_taps" in rows.data.prepare


@pytest.mark.parametrize(
    "numbers", [(33, 33, 3, 1, 12, 12), (16, 8, 3, 2, 6, 6), (9, 12, 5, 1, 4, 9), (20, 7, 4, 3, 2, 0)]
)
def test_cuts_by_every_row(numbers: tuple[int, ...]) -> None:
    """Taps of a range of rows are those of its rows; cuts are where they change."""
    axis = Axis(*numbers)

    def met(row: int) -> set[int]:
        places = {tap: row * axis.stride - axis.before + tap * axis.dilation for tap in range(axis.size)}
        return {tap for tap, place in places.items() if 0 <= place < axis.extent}

    for begin in range(axis.out):
        for count in range(1, axis.out - begin + 1):
            rows = [met(row) for row in range(begin, begin + count)]
            taps = axis.taps(begin, count)
            assert set().union(*rows) <= set(taps)
            assert axis.is_inside(begin, count) == all(row >= set(taps) for row in rows)
    changes = {row for row in range(1, axis.out) if met(row) != met(row - 1)}
    assert changes <= set(axis.places()) <= changes | {0, axis.out}


def test_wide_dilations_are_cut_and_read_where_they_are() -> None:
    whole = Window((1, 3, 3), (1, 1, 1), (1, 12, 12), (0, 12, 12), (0, 12, 12))
    rows = rows_of("float32", (1, 1, 33, 33, 64), (1, 1, 33, 33, 64), whole)
    assert isinstance(rows.blocks, LineBlocks)
    assert rows.blocks.lefts == (0, 12, 21, 33)
    assert {0, 12, 21, 33} <= set(rows.blocks.tops)
    assert rows.blocks.size is not None
    assert rows.blocks.size <= 56
    assert not rows.data.buffer


# Images [n, C, h, w], phases along both axes, channels of a phase, groups, and the window.
PHASES = {
    "pieces of whole bands": ((2, 20, 5, 7), (2, 2), 32, 1, 1),
    "pieces that bands cut": ((2, 24, 6, 5), (3, 3), 20, 1, 1),
    "pieces longer than a band": ((1, 16, 9, 8), (2, 1), 100, 1, 3),
    "groups": ((2, 32, 4, 9), (2, 2), 12, 2, 1),
    "along lines only": ((1, 40, 7, 3), (5, 1), 8, 1, 2),
    "rows that are gathered": ((1, 512, 3, 4), (2, 2), 96, 1, 1),
}


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.slow
@pytest.mark.parametrize("march", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("case", PHASES)
def test_phases_in_place(case: str, march: str, tmp_path: Path) -> None:
    """One function computes, adds, and moves; nothing is written but the result."""
    shape, (tall, wide), channels, groups, side = PHASES[case]
    columns = groups * tall * wide * channels
    filters = (columns, shape[1] // groups, side, side)
    height, width = (extent - side + 1 for extent in shape[2:])
    batch = symbol()
    arguments = [variable("x", (batch, *last_shape(shape)[1:])), variable("w", last_shape(filters))]
    arguments.append(variable("b", (columns,)))

    def body(e, x, w, b):
        made = e(op.nn.relu(e(op.add(e(op.nn.conv2d(x, w, groups=groups, **LAYOUTS)), b))))
        parts = e(op.reshape(made, (batch, height, width, groups, tall, wide, channels)))
        return e(op.permute_dims(parts, [0, 1, 4, 2, 5, 3, 6]))

    run = Runner(partition(arguments, body, [1, 2]), tmp_path, f"ccompiler -march={march} -winograd=0")
    assert len(run.group.functions) == 1
    assert not run.group.workspaces
    data, weights, bias = random(shape), random(filters), random(filters[:1])
    wanted = last(np.maximum(conv2d(data, weights, groups=groups) + bias[:, None, None], 0))
    parts = wanted.reshape(shape[0], height, width, groups, tall, wide, channels).transpose(0, 1, 4, 2, 5, 3, 6)
    flat = (shape[0], height * tall, width * wide, groups * channels)
    close(
        first(run(last(data), last(weights), bias).reshape(flat)), first(parts.reshape(flat)), filters[1] * side * side
    )


@pytest.mark.slow
def test_what_winograd_computes_is_moved_after(tmp_path: Path) -> None:
    """Its results are tiles of the image: a second function moves them."""
    x, w = variable("x", (1, 40, 40, 32)), variable("w", (64, 3, 3, 32))

    def body(e, x, w):
        parts = e(op.reshape(e(op.nn.conv2d(x, w, padding=1, **LAYOUTS)), (1, 40, 40, 2, 32)))
        return e(op.permute_dims(parts, [0, 1, 3, 2, 4]))

    run = Runner(partition([x, w], body, [1]), tmp_path)
    assert len(run.group.functions) > 1
    data, weights = random((1, 32, 40, 40)), random((64, 32, 3, 3))
    wanted = last(conv2d(data, weights, padding=(1, 1, 1, 1))).reshape(1, 40, 40, 2, 32).transpose(0, 1, 3, 2, 4)
    np.testing.assert_allclose(run(last(data), last(weights)), wanted, rtol=0, atol=2e-5 * np.abs(wanted).max())


@pytest.mark.slow
def test_what_is_read_twice_is_stored(tmp_path: Path) -> None:
    x, w = variable("x", (2, 5, 6, 16)), variable("w", (32, 1, 1, 16))

    def body(e, x, w):
        made = e(op.nn.conv2d(x, w, **LAYOUTS))
        parts = e(op.permute_dims(e(op.reshape(made, (2, 5, 6, 2, 16))), [0, 1, 3, 2, 4]))
        return made, parts

    run = Runner(partition([x, w], body, [1]), tmp_path)
    data, weights = random((2, 16, 5, 6)), random((32, 16, 1, 1))
    made, parts = run(last(data), last(weights))
    np.testing.assert_allclose(made, last(conv2d(data, weights)), rtol=1e-5, atol=1e-5)
    np.testing.assert_array_equal(parts, made.reshape(2, 5, 6, 2, 16).transpose(0, 1, 3, 2, 4))
