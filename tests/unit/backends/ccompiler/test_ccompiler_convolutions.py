"""Convolutions of one, two and three dimensions against torch in float64: any window, groups, symbolic extents."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

import torch
from ccompiler_runner import Runner, partition, variable
from test_ccompiler_families import close, random, symbol
from tvm.relax import op

from packager.backends.ccompiler.core.machine import Machine
from packager.backends.ccompiler.module import draft_group
from packager.backends.ccompiler.ops import planar_conv
from packager.transforms.layout.layouts import LAST, to_first, to_last

pytestmark = pytest.mark.slow

# Shapes of data and weights with channels first, and attributes.
CASES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "line": ((2, 24, 61), (40, 24, 3), {"padding": (1, 1)}),
    "line of one channel in frames": ((1, 1, 700), (21, 1, 100), {"strides": (40,)}),
    "hundreds of taps": ((1, 2, 40, 30), (300, 2, 18, 19), {"padding": (9, 9, 9, 9)}),
    "causal and dilated": ((2, 20, 130), (17, 20, 3), {"padding": (8, 0), "dilation": (4,)}),
    "places of a line": ((3, 33, 50), (20, 33, 1), {}),
    "strided places of a line, far apart": ((2, 512, 40), (40, 512, 3), {"strides": (2,), "padding": (1, 1)}),
    "groups of a line": ((2, 48, 40), (96, 12, 5), {"groups": 4, "padding": (2, 3)}),
    "channels of a line": ((2, 40, 70), (40, 1, 3), {"groups": 40, "padding": (2, 2), "dilation": (2,)}),
    "volume": ((2, 6, 5, 9, 8), (24, 6, 3, 3, 3), {"padding": (1, 1, 1, 1, 1, 1)}),
    "planes one by one": ((1, 90, 4, 7, 20), (20, 90, 3, 3, 3), {"padding": (1, 1, 1, 0, 1, 1), "strides": (2, 1, 2)}),
    "planes apart": ((2, 16, 9, 6, 5), (20, 16, 3, 1, 1), {"padding": (4, 0, 0, 4, 0, 0), "dilation": (4, 1, 1)}),
    "few channels in many groups": ((2, 32, 9, 8), (64, 4, 3, 3), {"groups": 8, "padding": (1, 1, 1, 1)}),
    "three groups at once": ((1, 30, 8, 9), (30, 5, 3, 3), {"groups": 6, "strides": (2, 2)}),
    "two filters for each channel": ((2, 20, 30), (40, 1, 3), {"groups": 20, "padding": (1, 1)}),
    "four channels": ((2, 4, 12, 9), (4, 1, 3, 3), {"groups": 4, "padding": (1, 1, 1, 1)}),
    "three channels": ((2, 3, 15, 40), (3, 1, 3, 2), {"groups": 3, "padding": (1, 0, 2, 1), "strides": (2, 3)}),
    "twelve channels": ((1, 12, 9, 30), (12, 1, 5, 3), {"groups": 12, "padding": (8, 2, 0, 7), "dilation": (3, 4)}),
    "six channels of a long line": ((1, 6, 2000), (6, 1, 9), {"groups": 6, "padding": (9, 3), "strides": (2,)}),
    "channels of a volume": ((1, 24, 4, 6, 5), (24, 1, 3, 3, 3), {"groups": 24, "padding": (1, 1, 1, 1, 1, 1)}),
    "channels of a volume, apart": (
        (2, 37, 6, 7, 9), (37, 1, 3, 2, 3), {"groups": 37, "strides": (2, 1, 2), "dilation": (1, 3, 2),
                                             "padding": (4, 1, 0, 1, 2, 5)},
    ),
    "channels of a volume, along its depth": (
        (1, 24, 5, 6, 7), (24, 1, 5, 1, 1), {"groups": 24, "padding": (2, 0, 0, 2, 0, 0)},
    ),
    "few channels of a volume": ((1, 6, 4, 6, 5), (6, 1, 3, 3, 3), {"groups": 6, "padding": (1, 1, 1, 1, 1, 1)}),
    "two filters for each channel of a volume": ((1, 20, 3, 6, 5), (40, 1, 3, 3, 3), {"groups": 20}),
    "groups of a volume": ((1, 24, 4, 6, 5), (36, 8, 2, 3, 1), {"groups": 3, "dilation": (1, 2, 1)}),
}  # fmt: skip


def convolved(data: np.ndarray, weight: np.ndarray, attributes: dict[str, Any]) -> np.ndarray:
    """Return a convolution with channels first in float64; padding is that before all axes, then that after them."""
    axes = data.ndim - 2
    pads = attributes.get("padding", (0,) * 2 * axes)
    edges = [edge for axis in reversed(range(axes)) for edge in (pads[axis], pads[axes + axis])]
    convolve = getattr(torch.nn.functional, f"conv{axes}d")
    padded = torch.nn.functional.pad(torch.from_numpy(data).double(), edges)
    names = {"strides": "stride", "dilation": "dilation", "groups": "groups"}
    given = {names[name]: value for name, value in attributes.items() if name in names}
    return np.asarray(convolve(padded, torch.from_numpy(weight).double(), **given))


@pytest.mark.sampled(3, every_value=False)
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_convolutions(case: str, symbolic: bool, tmp_path: Path) -> None:
    """With bias and activation, of static extents and of symbolic ones, however units of work are handed out."""
    shape, weight, attributes = CASES[case]
    rank = len(shape)
    layout, kernel_layout = LAST[rank]
    layouts = {"data_layout": layout, "kernel_layout": kernel_layout, "out_layout": layout}
    last, first = to_last(rank), to_first(rank)
    extents = [symbol(f"n{axis}") for axis in range(rank - 1)] if symbolic else [shape[axis] for axis in last[:-1]]
    arguments = [variable("x", (*extents, shape[1])), variable("w", [weight[axis] for axis in last])]
    arguments += [variable("b", weight[:1])]

    def body(e, x, w, b):
        convolve = getattr(op.nn, f"conv{rank - 2}d")
        return e(op.nn.relu(e(op.add(e(convolve(x, w, **attributes, **layouts)), b))))

    run = Runner(partition(arguments, body, [1, 2]), tmp_path)
    sizes = [shape, (1, shape[1], *(extent + 3 for extent in shape[2:]))] if symbolic else [shape]
    for size in sizes:
        data, weights, bias = random(size), random(weight), random(weight[:1])
        results = []
        for split in (1, 3, 1000):
            run.split = split
            results.append(run(data.transpose(last), weights.transpose(last), bias).transpose(first))
            np.testing.assert_array_equal(results[-1], results[0])
        wanted = convolved(data, weights, attributes)
        wanted = np.maximum(wanted + bias.reshape(-1, *[1] * (rank - 2)), 0)
        close(results[0], wanted, math.prod(weight[1:]))


def test_channels_of_a_volume_have_sums_of_their_own(tmp_path: Path) -> None:
    """As a product, each of 16 columns would multiply the channels of all 16."""
    arguments = [variable("x", (1, 4, 6, 5, 24)), variable("w", (24, 3, 3, 3, 1))]
    layouts = dict(zip(("data_layout", "kernel_layout", "out_layout"), (*LAST[5], LAST[5][0]), strict=True))
    run = Runner(partition(arguments, lambda e, x, w: e(op.nn.conv3d(x, w, groups=24, **layouts)), [1]), tmp_path)
    assert [function.symbol.rsplit("_", 1)[-1] for function in run.group.functions] == ["depthwise"]


def test_few_channels_are_scaled(tmp_path: Path) -> None:
    """What follows sums of few channels needs an element for each channel, and sums are a result of their own."""
    shape, filters = (2, 11, 13, 5), (5, 1, 3, 3)
    arguments = [variable("x", shape), variable("w", [filters[axis] for axis in to_last(4)]), variable("s", (5,))]

    def body(e, x, w, s):
        convolve = e(op.nn.conv2d(x, w, padding=(1, 1), groups=5, data_layout="NHWC", kernel_layout="OHWI"))
        return e(op.add(e(op.multiply(convolve, s)), x))

    data, weights, scale = random(shape), random(filters), random((5,))
    result = Runner(partition(arguments, body, [1]), tmp_path)(data, weights.transpose(to_last(4)), scale)
    first = data.transpose(to_first(4))
    sums = convolved(first, weights, {"padding": (1, 1, 1, 1), "groups": 5}).transpose(to_last(4))
    close(result, sums * scale + data, 9)


# Shapes of data, filters, padding, groups and the side of tiles.
WINOGRAD = [
    ((1, 32, 22, 23), 48, (1, 1, 1, 1), 1, 2),
    ((2, 80, 27, 21), 272, (0, 2, 1, 0), 1, 2),
    ((3, 96, 4, 3), 96, (1, 1, 1, 1), 1, 2),
    ((2, 80, 19, 21), 48, (2, 0, 1, 1), 1, 4),
    ((1, 193, 9, 7), 21, (1, 1, 1, 1), 1, 2),
    ((1, 781, 4, 5), 16, (1, 1, 1, 1), 1, 2),
    ((1, 33, 6, 5), 20, (1, 1, 1, 1), 1, 4),
    ((2, 72, 9, 10), 96, (1, 0, 1, 1), 3, 2),
    ((1, 160, 12, 11), 160, (1, 1, 1, 1), 10, 2),
    ((2, 16, 5, 9, 8), 33, (1, 1, 1, 1, 1, 1), 1, 2),
    ((1, 90, 3, 7, 9), 32, (2, 1, 0, 0, 1, 1), 1, 4),
    ((1, 48, 4, 6, 5), 96, (1, 1, 1, 1, 1, 1), 2, 2),
]


@pytest.mark.sampled(5, every_value=False)
@pytest.mark.parametrize("machine", ["avx2", "avx512", "aarch64"])
@pytest.mark.parametrize(("shape", "outer", "padding", "groups", "side"), WINOGRAD)
def test_winograd(
    shape: tuple[int, ...],
    outer: int,
    padding: tuple[int, ...],
    groups: int,
    side: int,
    machine: str,
    tmp_path: Path,
) -> None:
    """Planes and volumes, channels that are no whole vectors, groups, several of which share a panel."""
    chosen = Machine(16, 32, "aarch64") if machine == "aarch64" else None
    march = {"avx2": "x86-64-v3", "avx512": "x86-64-v4", "aarch64": "x86-64-v2"}[machine]
    filters, rank, channels_last = (outer, shape[1] // groups, *[3] * (len(shape) - 2)), len(shape), to_last(len(shape))
    layout, kernel_layout = LAST[rank]
    layouts = {"data_layout": layout, "kernel_layout": kernel_layout, "out_layout": layout}
    arguments = [variable("x", (symbol("n"), *(shape[axis] for axis in channels_last[1:])))]
    arguments += [variable("w", [filters[axis] for axis in channels_last]), variable("b", (outer,))]
    attributes: dict[str, Any] = {"padding": padding, "groups": groups}

    def body(e, x, w, b):
        convolve = getattr(op.nn, f"conv{rank - 2}d")
        return e(op.nn.relu(e(op.add(e(convolve(x, w, **attributes, **layouts)), b))))

    run = Runner(
        partition(arguments, body, [1, 2]), tmp_path, f"ccompiler -march={march} -winograd={side}", machine=chosen
    )
    assert [function.symbol.rpartition("_")[2] for function in run.group.functions] == ["winograd"]
    data, weights, bias = random(shape), random(filters), random((outer,))
    wanted = np.maximum(convolved(data, weights, attributes) + bias.reshape(-1, *[1] * (rank - 2)), 0)
    got = run(data.transpose(channels_last), weights.transpose(channels_last), bias).transpose(to_first(rank))
    assert np.abs(got - wanted).max() < {2: 1e-6, 4: 1e-5}[side] * np.abs(wanted).max()


@pytest.mark.parametrize("march", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("shape", [(2, 7, 9, 40), (1, 3, 8, 8, 32)])
def test_winograd_of_halves(shape: tuple[int, ...], march: str, tmp_path: Path) -> None:
    """Transforms and sums are float32: a result is rounded once, and once after the bias."""
    rank, filters = len(shape), (48, shape[-1], *[3] * (len(shape) - 2))
    layout, kernel_layout = LAST[rank]
    layouts = {"data_layout": layout, "kernel_layout": kernel_layout, "out_layout": layout}
    arguments = [variable("x", (symbol("n"), *shape[1:]), "float16")]
    arguments += [variable("w", [filters[axis] for axis in to_last(rank)], "float16"), variable("b", (48,), "float16")]
    attributes: dict[str, Any] = {"padding": (1,) * (2 * rank - 4)}

    def body(e, x, w, b):
        return e(op.add(e(getattr(op.nn, f"conv{rank - 2}d")(x, w, **attributes, **layouts)), b))

    run = Runner(partition(arguments, body, [1, 2]), tmp_path, f"ccompiler -march={march}")
    assert [function.symbol.rpartition("_")[2] for function in run.group.functions] == ["winograd"]
    data, weights, bias = (random(each).astype(np.float16) for each in (shape, filters, (48,)))
    sums = convolved(data.astype("f4").transpose(to_first(rank)), weights.astype("f4"), attributes)
    wanted = (sums.transpose(to_last(rank)).astype(np.float16) + bias).astype("f4")
    got = run(data, weights.transpose(to_last(rank)), bias).astype("f4")
    assert np.abs(got - wanted).max() <= 2.0**-9 * np.abs(wanted).max()
    assert (got == wanted).mean() > 0.99


@pytest.mark.parametrize("channels", [64, 320])
def test_errors_of_winograd_are_those_of_direct_sums(channels: int, tmp_path: Path) -> None:
    """Transforms multiply the rounding errors of sums, which are therefore short: 2 x 4 places, as after a ReLU."""
    shape, filters, attributes = (1, channels, 16, 32), (16, channels, 3, 3), {"padding": (1, 1, 1, 1)}
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}
    last = to_last(4)
    arguments = [variable("x", [shape[axis] for axis in last]), variable("w", [filters[axis] for axis in last])]
    part = partition(arguments, lambda e, x, w: e(op.nn.conv2d(x, w, **attributes, **layouts)), [1])
    data, weights = np.maximum(random(shape), 0), random(filters)
    wanted, errors = convolved(data, weights, attributes), []
    for side in (0, 2):
        run = Runner(part, tmp_path / str(side), f"ccompiler -winograd={side}")
        got = run(data.transpose(last), weights.transpose(last)).transpose(to_first(4))
        errors.append(np.sqrt(np.square(got - wanted).mean()))
    assert errors[1] < 2 * errors[0]


# Shapes of data and filters, attributes: results that are written with channels first.
TURNED: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "pixels of several images": ((3, 20, 9, 11), (37, 20, 1, 1), {}),
    "columns of several bands": ((1, 24, 130), (301, 24, 1), {}),
    "far apart": ((1, 64, 256), (40, 64, 1), {}),
    "strided": ((2, 24, 13, 17), (40, 24, 3, 3), {"strides": (2, 2), "padding": (1, 1, 1, 1)}),
    "cut": ((1, 16, 23, 29), (24, 16, 3, 3), {"dilation": (8, 8), "padding": (8, 8, 8, 8)}),
    "few filters": ((2, 48, 11, 13), (3, 48, 5, 5), {"padding": (2, 2, 2, 2)}),
    "volume": ((2, 6, 4, 5, 9), (20, 6, 2, 3, 3), {"padding": (0, 1, 1, 1, 1, 1)}),
}


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.parametrize("march", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("case", TURNED)
def test_results_are_transposed_block_by_block(case: str, march: str, tmp_path: Path) -> None:
    shape, filters, attributes = TURNED[case]
    rank = len(shape)
    layout, kernel_layout = LAST[rank]
    layouts = {"data_layout": layout, "kernel_layout": kernel_layout, "out_layout": layout}
    arguments = [variable("x", [shape[axis] for axis in to_last(rank)])]
    arguments += [variable("w", [filters[axis] for axis in to_last(rank)]), variable("b", filters[:1])]

    def body(e, x, w, b):
        made = e(getattr(op.nn, f"conv{rank - 2}d")(x, w, **attributes, **layouts))
        return e(op.permute_dims(e(op.nn.relu(e(op.add(made, b)))), to_first(rank)))

    run = Runner(partition(arguments, body, [1, 2]), tmp_path, f"ccompiler -march={march}")
    assert len(run.group.functions) == 1
    data, weights, bias = random(shape), random(filters), random(filters[:1])
    wanted = np.maximum(convolved(data, weights, attributes) + bias.reshape(-1, *[1] * (rank - 2)), 0)
    got = run(data.transpose(to_last(rank)), weights.transpose(to_last(rank)), bias)
    close(got, wanted, math.prod(filters[1:]))


# Data and filters with channels first: pixels of planes, without another layout.
PLANAR: dict[str, tuple[tuple[int, ...], int]] = {
    "batches of odd planes": ((3, 19, 9, 11), 37),
    "line": ((1, 64, 130), 301),
    "one channel, one filter": ((2, 1, 77), 1),
    "many channels": ((2, 512, 5, 9), 5),
    "half bands": ((1, 300, 8, 10), 60),
    "volume": ((2, 6, 4, 5, 9), 70),
}


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.parametrize("machine", ["avx2", "avx512", "aarch64"])
@pytest.mark.parametrize("symbolic", [False, True])
@pytest.mark.parametrize("case", PLANAR)
def test_pixels_of_planes(case: str, symbolic: bool, machine: str, tmp_path: Path) -> None:
    """Between permutations, with a residual that is permuted too, and an activation that reads its operand twice."""
    shape, outer = PLANAR[case]
    rank = len(shape)
    layout, kernel_layout = LAST[rank]
    layouts = {"data_layout": layout, "kernel_layout": kernel_layout, "out_layout": layout}
    extents = [symbol(f"n{axis}") if symbolic else shape[axis] for axis in range(rank)]
    arguments = [
        variable("x", (extents[0], shape[1], *extents[2:])),
        variable("w", [outer, *[1] * (rank - 2), shape[1]]),
    ]
    arguments += [variable("b", (outer,)), variable("y", (extents[0], outer, *extents[2:]))]

    def body(e, x, w, b, y):
        made = e(getattr(op.nn, f"conv{rank - 2}d")(e(op.permute_dims(x, to_last(rank))), w, **layouts))
        added = e(op.add(e(op.add(made, b)), e(op.permute_dims(y, to_last(rank)))))
        return e(op.permute_dims(e(op.multiply(added, e(op.sigmoid(added)))), to_first(rank)))

    chosen = Machine(16, 32, "aarch64") if machine == "aarch64" else None
    march = {"avx2": "x86-64-v3", "avx512": "x86-64-v4", "aarch64": "x86-64-v2"}[machine]
    run = Runner(partition(arguments, body, [1, 2]), tmp_path, f"ccompiler -march={march}", machine=chosen)
    assert [function.symbol.rpartition("_")[2] for function in run.group.functions] == ["conv"]
    data, weights, bias, other = (
        random(shape),
        random((outer, shape[1])),
        random((outer,)),
        random((shape[0], outer, *shape[2:])),
    )
    total = np.einsum("oc,nc...->no...", weights.astype(np.float64), data.astype(np.float64), optimize=True) + other
    total += bias.reshape(-1, *[1] * (rank - 2))
    results = []
    for split in (1, 3, 1000):
        run.split = split
        results.append(run(data, weights.reshape(outer, *[1] * (rank - 2), shape[1]), bias, other))
        np.testing.assert_array_equal(results[-1], results[0])
    close(results[0], total / (1 + np.exp(-total)), shape[1])


# Windows of planes: shapes of data, filters, and attributes.
PLANES: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {
    "short lines, strided": ((2, 3, 17, 13), (21, 3, 3, 3), {"padding": (1, 1, 1, 1), "strides": (2, 2)}),
    "uneven padding": ((1, 2, 9, 70), (16, 2, 5, 4), {"padding": (0, 3, 2, 0)}),
    "wide dilation": ((1, 5, 12, 40), (17, 5, 3, 3), {"padding": (4, 6, 4, 6), "dilation": (4, 6)}),
    "line, far apart": ((3, 2, 351), (24, 2, 10), {"padding": (2, 1), "strides": (5,)}),
    "volume": ((2, 2, 5, 8, 12), (16, 2, 3, 3, 3), {"padding": (1, 1, 1, 1, 1, 1)}),
    "volume, strided": ((1, 1, 6, 11, 12), (32, 1, 3, 3, 5), {"padding": (1, 1, 2, 1, 1, 2), "strides": (1, 2, 3)}),
    "multiplier": ((2, 5, 12, 14), (40, 1, 3, 3), {"padding": (1, 1, 1, 1), "groups": 5}),
    "groups": ((1, 12, 14, 20), (36, 4, 3, 3), {"padding": (1, 1, 1, 1), "groups": 3}),
    "strided pixels": ((1, 6, 20, 32), (18, 6, 1, 1), {"strides": (2, 2)}),
    "half bands": ((1, 12, 14, 16), (14, 12, 5, 5), {"padding": (2, 2, 2, 2)}),
    "channels": ((2, 5, 23, 45), (5, 1, 3, 4), {"padding": (1, 2, 0, 1), "dilation": (2, 1), "groups": 5}),
    "channels of a line": ((2, 20, 300), (20, 1, 31), {"padding": (15, 15), "groups": 20}),
}


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.parametrize("machine", ["avx2", "avx512", "aarch64"])
@pytest.mark.parametrize("case", PLANES)
def test_windows_of_planes(case: str, machine: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between permutations, with a bias and an activation, however units of work are handed out."""
    monkeypatch.setattr(planar_conv, "_is_faster", lambda *_: True)
    shape, filters, attributes = PLANES[case]
    rank = len(shape)
    layout, kernel_layout = LAST[rank]
    layouts = {"data_layout": layout, "kernel_layout": kernel_layout, "out_layout": layout}
    arguments = [variable("x", shape), variable("w", [filters[axis] for axis in to_last(rank)])]
    arguments += [variable("b", filters[:1])]

    def body(e, x, w, b):
        convolve = getattr(op.nn, f"conv{rank - 2}d")
        made = e(convolve(e(op.permute_dims(x, to_last(rank))), w, **attributes, **layouts))
        return e(op.permute_dims(e(op.nn.relu(e(op.add(made, b)))), to_first(rank)))

    chosen = Machine(16, 32, "aarch64") if machine == "aarch64" else None
    march = {"avx2": "x86-64-v3", "avx512": "x86-64-v4", "aarch64": "x86-64-v2"}[machine]
    run = Runner(partition(arguments, body, [1, 2]), tmp_path, f"ccompiler -march={march}", machine=chosen)
    made = ["planes" if case.startswith("channels") else "conv"]
    assert [function.symbol.rpartition("_")[2] for function in run.group.functions] == made
    data, weights, bias = random(shape), random(filters), random(filters[:1])
    results = []
    for split in (1, 3, 1000):
        run.split = split
        results.append(run(data, weights.transpose(to_last(rank)), bias))
        np.testing.assert_array_equal(results[-1], results[0])
    wanted = np.maximum(convolved(data, weights, attributes) + bias.reshape(-1, *[1] * (rank - 2)), 0)
    close(results[0], wanted, math.prod(filters[1:]))


# Shapes of data and filters, groups, and whether planes stay as they are: not where transpositions cost less.
CHOSEN = [
    ((1, 1, 16, 32, 32), (32, 1, 3, 3, 3), 1, True),
    ((1, 1, 12, 28, 28), (16, 1, 5, 5, 5), 1, False),
    ((1, 3, 96, 96), (32, 3, 3, 3), 1, True),
    ((1, 48, 30, 30), (80, 48, 5, 5), 1, False),
    ((1, 16, 40, 40), (128, 1, 3, 3), 16, True),
    ((1, 64, 56, 56), (64, 1, 3, 3), 64, True),
    ((1, 64, 28, 28), (64, 1, 3, 3), 64, False),
    ((1, 64, 56, 56), (64, 1, 7, 7), 64, False),
    ((1, 64, 40, 40), (64, 64, 3, 3), 1, False),
]


@pytest.mark.parametrize(("shape", "filters", "groups", "is_planar"), CHOSEN)
def test_planes_stay_where_that_is_faster(
    shape: tuple[int, ...], filters: tuple[int, ...], groups: int, is_planar: bool
) -> None:
    """Few filters and short windows do not pay for transpositions, many products pay for every column in use."""
    rank = len(shape)
    layouts = dict(zip(("data_layout", "kernel_layout", "out_layout"), (*LAST[rank], LAST[rank][0]), strict=True))
    padding = tuple(size // 2 for size in filters[2:]) * 2
    arguments = [variable("x", shape), variable("w", [filters[axis] for axis in to_last(rank)])]

    def body(e, x, w):
        data = e(op.permute_dims(x, to_last(rank)))
        made = e(getattr(op.nn, f"conv{rank - 2}d")(data, w, padding=padding, groups=groups, **layouts))
        return e(op.permute_dims(made, to_first(rank)))

    group = draft_group(partition(arguments, body, [1]), Machine(64, 32, "avx512"), winograd=2)
    assert (len(group.functions) == 1 and "plan" in group.functions[0].function.symbol) == is_planar


COMPUTED = ["hundreds of taps", "strided places of a line, far apart", "groups of a line", "planes one by one", "line"]


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.parametrize("machine", ["avx2", "avx512", "aarch64"])
@pytest.mark.parametrize("case", COMPUTED)
def test_weights_that_a_run_computes(case: str, machine: str, tmp_path: Path) -> None:
    """They are packed in each run; slices, several stretches, groups, and filters that are no whole panels."""
    shape, filters, attributes = CASES[case]
    chosen = Machine(16, 32, "aarch64") if machine == "aarch64" else None
    march = {"avx2": "x86-64-v3", "avx512": "x86-64-v4", "aarch64": "x86-64-v2"}[machine]
    rank, last = len(shape), to_last(len(shape))
    layout, kernel_layout = LAST[rank]
    layouts = {"data_layout": layout, "kernel_layout": kernel_layout, "out_layout": layout}
    arguments = [variable("x", [shape[axis] for axis in last]), variable("w", [filters[axis] for axis in last])]
    arguments += [variable("scale", (filters[0], *[1] * (rank - 1)))]

    def body(e, x, w, scale):
        convolve = getattr(op.nn, f"conv{rank - 2}d")
        return e(op.nn.relu(e(convolve(x, e(op.multiply(w, scale)), **attributes, **layouts))))

    run = Runner(partition(arguments, body, [2]), tmp_path, f"ccompiler -march={march}", machine=chosen)
    assert [f.symbol.rpartition("_")[2] for f in run.group.functions] == ["elementwise", "pack", "conv2d"]
    data, weights, scale = random(shape), random(filters), random((filters[0], *[1] * (rank - 1)))
    wanted = np.maximum(convolved(data, weights * scale, attributes), 0)
    got = run(data.transpose(last), weights.transpose(last), scale).transpose(to_first(rank))
    close(got, wanted, math.prod(filters[1:]))
