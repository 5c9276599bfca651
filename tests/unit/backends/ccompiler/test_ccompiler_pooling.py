"""Pooling along lines and volumes with channels last, and means over them, by the ccompiler backend, against numpy."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from ccompiler_runner import Runner, partition, variable
from test_ccompiler_quantized import MACHINES, runner
from tvm import tirx
from tvm.relax import op

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Case:
    """A pooling: extents of lines or volumes, channels, and the window along their axes."""

    extents: tuple[int, ...]
    channels: int
    size: tuple[int, ...]
    strides: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    counted: bool = True


CASES = {
    "lines": Case((37,), 48, (3,), (2,), (1,), (1,)),
    "dilated lines of odd channels": Case((40,), 13, (3,), (1,), (2,), (2,)),
    "halves of volumes": Case((6, 8, 9), 32, (2, 2, 2), (2, 2, 2), (0, 0, 0), (1, 1, 1)),
    "overlapping volumes": Case((5, 9, 8), 32, (3, 3, 3), (2, 2, 1), (1, 1, 1), (1, 1, 1)),
    "volumes of odd channels": Case((5, 6, 7), 13, (2, 3, 2), (1, 2, 2), (1, 1, 0), (1, 1, 1), counted=False),
    "dilated volumes": Case((6, 7, 9), 16, (2, 2, 3), (1, 1, 2), (1, 0, 1), (2, 1, 2), counted=False),
}


def windows(x: np.ndarray, case: Case) -> tuple[np.ndarray, np.ndarray]:
    """Return the elements of each window, [batch, ..., channels, taps], NaN outside, and how many are inside."""
    padded = np.pad(x, ((0, 0), *((p, p) for p in case.padding), (0, 0)), constant_values=np.nan)
    counts = [
        (e + 2 * p - d * (s - 1) - 1) // stride + 1
        for e, p, d, s, stride in zip(case.extents, case.padding, case.dilation, case.size, case.strides, strict=True)
    ]
    taps = []
    for tap in itertools.product(*map(range, case.size)):
        cut = tuple(
            slice(t * d, t * d + (n - 1) * s + 1, s)
            for t, d, n, s in zip(tap, case.dilation, counts, case.strides, strict=True)
        )
        taps.append(padded[(slice(None), *cut)])
    stacked = np.stack(taps, -1)
    return stacked, (~np.isnan(stacked)).sum(-1)


PLANES = {
    "odd extents": Case((21, 37), 5, (3, 3), (2, 2), (1, 1), (1, 1)),
    "steps of one": Case((9, 20), 3, (5, 5), (1, 1), (2, 2), (1, 1)),
    "volumes": Case((5, 6, 18), 4, (3, 3, 3), (2, 1, 2), (1, 1, 1), (1, 1, 1)),
    "dilated": Case((12, 40), 2, (2, 3), (1, 1), (0, 1), (2, 3)),
    "long lines": Case((4, 5000), 2, (2, 2), (2, 2), (0, 0), (1, 1)),
    "steps of three": Case((17, 70), 3, (4, 5), (2, 3), (1, 2), (1, 1), counted=False),
    "line": Case((100,), 3, (7,), (4,), (3,), (1,)),
}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("machine", [name for name in MACHINES if name != "vnni"])
@pytest.mark.parametrize("name", PLANES)
def test_pooling_of_planes_as_they_are(name: str, machine: str, tmp_path: Path) -> None:
    """Between two permutations to channels last and back."""
    case = PLANES[name]
    axes = len(case.extents)
    window = {"padding": [*case.padding, *case.padding], "strides": case.strides, "dilation": case.dilation}

    def body(e: Any, x: Any) -> Any:
        last = e(op.permute_dims(x, [0, *range(2, axes + 2), 1]))
        layout, first = {1: "NWC", 2: "NHWC", 3: "NDHWC"}[axes], [0, axes + 1, *range(1, axes + 1)]
        most = e(getattr(op.nn, f"max_pool{axes}d")(last, case.size, **window, layout=layout))
        if axes == 1:
            return e(op.permute_dims(most, first))
        again = e(op.permute_dims(x, [0, *range(2, axes + 2), 1]))
        average = getattr(op.nn, f"avg_pool{axes}d")
        mean = e(average(again, case.size, **window, layout=layout, count_include_pad=case.counted))
        return e(op.permute_dims(most, first)), e(op.permute_dims(mean, first))

    argument = variable("x", (tirx.Var("n", "int64"), case.channels, *case.extents))
    run = runner(partition([argument], body), tmp_path, machine)
    assert len(run.group.functions) == min(axes, 2)
    x = np.random.default_rng(7).standard_normal((2, case.channels, *case.extents)).astype(np.float32)
    stacked, count = windows(np.moveaxis(x, 1, -1), case)
    most, *means = run(x) if axes > 1 else [run(x)]
    np.testing.assert_array_equal(most, np.moveaxis(np.nanmax(stacked, -1), -1, 1))
    for mean in means:
        wanted = np.nansum(stacked, -1) / (stacked.shape[-1] if case.counted else count)
        np.testing.assert_allclose(mean, np.moveaxis(wanted, -1, 1), rtol=1e-5, atol=1e-6)
    x[0, 0] = np.nan
    assert np.isnan((run(x)[0] if axes > 1 else run(x))[0, 0]).all()


@pytest.mark.sampled(3)
@pytest.mark.parametrize("march", ["x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("name", CASES)
def test_pooling(name: str, march: str, tmp_path: Path) -> None:
    case = CASES[name]
    axes = len(case.extents)
    layout = {"layout": {1: "NWC", 3: "NDHWC"}[axes]}
    window = {"padding": [*case.padding, *case.padding], "strides": case.strides, "dilation": case.dilation}

    def body(e: Any, x: Any) -> Any:
        most = e(getattr(op.nn, f"max_pool{axes}d")(x, case.size, **window, **layout))
        if axes == 1:
            return e(op.nn.relu(most))
        mean = e(op.nn.avg_pool3d(x, case.size, **window, **layout, count_include_pad=case.counted))
        return e(op.nn.relu(most)), mean

    argument = variable("x", (tirx.Var("n", "int64"), *case.extents, case.channels))
    run = Runner(partition([argument], body), tmp_path, f"ccompiler -march={march}")
    for batch in (1, 3):
        x = np.random.default_rng(batch).standard_normal((batch, *case.extents, case.channels), np.float32)
        inside, count = windows(x, case)
        found = run(x)
        most = found[0] if axes == 3 else found
        np.testing.assert_array_equal(most, np.maximum(np.nanmax(inside, -1), 0))
        if axes == 3:
            divisor = inside.shape[-1] if case.counted else count
            np.testing.assert_allclose(found[1], np.nansum(inside, -1) / divisor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("extents", [(197,), (3, 5, 7)])
def test_means_of_whole_lines_and_volumes(extents: tuple[int, ...], keeps: bool, tmp_path: Path) -> None:
    argument = variable("x", (tirx.Var("n", "int64"), *extents, 70))
    axes = list(range(1, len(extents) + 1))
    run = Runner(partition([argument], lambda e, x: e(op.mean(x, axes, keepdims=keeps))), tmp_path)
    for batch in (1, 4):
        x = np.random.default_rng(batch).standard_normal((batch, *extents, 70), np.float32)
        wanted = x.astype(np.float64).mean(tuple(axes), keepdims=keeps)
        np.testing.assert_allclose(run(x), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("machine", [name for name in MACHINES if name != "vnni"])
def test_means_of_planes_as_they_are(machine: str, tmp_path: Path) -> None:
    """After a permutation to channels last that nothing else reads."""

    def body(e: Any, x: Any) -> Any:
        return e(op.nn.relu(e(op.mean(e(op.permute_dims(x, [0, 2, 3, 1])), [1, 2], keepdims=True))))

    run = runner(partition([variable("x", (tirx.Var("n", "int64"), 70, 9, 17))], body), tmp_path, machine)
    assert len(run.group.functions) == 1
    x = np.random.default_rng(8).standard_normal((2, 70, 9, 17)).astype(np.float32)
    wanted = np.maximum(x.mean((2, 3), np.float64), 0)
    np.testing.assert_allclose(run(x).reshape(2, 70), wanted, rtol=0, atol=1e-6)


BYTES = {
    "few channels": Case((11, 40), 16, (5, 5), (1, 1), (2, 2), (1, 1)),
    "odd channels": Case((9, 33), 20, (3, 3), (2, 2), (1, 1), (1, 1)),
    "many channels": Case((14, 15), 64, (3, 3), (1, 1), (1, 1), (1, 1)),
    "chunks of channels": Case((5, 70), 150, (2, 3), (1, 2), (0, 1), (2, 1)),
    "volumes": Case((4, 6, 9), 24, (2, 3, 3), (1, 2, 1), (0, 1, 1), (1, 1, 1)),
    "one channel": Case((9, 21), 1, (3, 3), (2, 2), (1, 1), (1, 1)),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", ["uint8", "int8", "float16"])
@pytest.mark.parametrize("machine", [name for name in MACHINES if name != "vnni"])
@pytest.mark.parametrize("name", BYTES)
def test_maxima_of_bytes_and_halves(name: str, machine: str, dtype: str, tmp_path: Path) -> None:
    case = BYTES[name]
    axes = len(case.extents)
    window = {"padding": [*case.padding, *case.padding], "strides": case.strides, "dilation": case.dilation}
    pool, layout = getattr(op.nn, f"max_pool{axes}d"), {2: "NHWC", 3: "NDHWC"}[axes]
    argument = variable("x", (tirx.Var("n", "int64"), *case.extents, case.channels), dtype)
    run = runner(partition([argument], lambda e, x: e(pool(x, case.size, **window, layout=layout))), tmp_path, machine)
    rng, shape = np.random.default_rng(3), (2, *case.extents, case.channels)
    if dtype == "float16":
        x = rng.standard_normal(shape).astype(dtype)
    else:
        x = rng.integers(np.iinfo(dtype).min, np.iinfo(dtype).max + 1, shape, dtype)
    stacked, _ = windows(x.astype(np.float32), case)
    np.testing.assert_array_equal(run(x), np.nanmax(stacked, -1).astype(dtype))
