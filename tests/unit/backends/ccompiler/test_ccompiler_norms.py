"""Normalizations and softmax of the ccompiler backend against numpy in float64: layouts, groups, odd sizes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from ccompiler_runner import STRICT, Runner, partition, variable
from tvm import tirx
from tvm.relax import op

from packager.backends.ccompiler.core.machine import Machine
from packager.backends.ccompiler.module import render_module
from packager.graph.normalize import Normalization, normalize
from packager.ir.primitives import Partition

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(11)


def expected(x: np.ndarray, attributes: Normalization) -> np.ndarray:
    """Return the normalization in float64."""
    shape, wide, axes = x.shape, x.astype("f8"), list(attributes.axes)
    channel = attributes.channel_axis
    if channel is not None:
        groups = attributes.groups
        wide = wide.reshape(*shape[:channel], groups, shape[channel] // groups, *shape[channel + 1 :])
        axes = [*(axis + (axis > channel) for axis in axes), channel + 1]
    if attributes.centered:
        wide = wide - wide.mean(tuple(axes), keepdims=True)
    return (wide / np.sqrt((wide**2).mean(tuple(axes), keepdims=True) + attributes.epsilon)).reshape(shape)


def close(got: np.ndarray, wanted: np.ndarray, error: float = 2e-6) -> None:
    assert got.shape == wanted.shape
    assert np.abs(got - wanted).max() <= error * max(1.0, np.abs(wanted).max())


CASES = {
    "group, channels last": ((2, 7, 5, 24), Normalization((1, 2), 1e-5, 3, 4)),
    "group of odd channels": ((1, 9, 11, 35), Normalization((1, 2), 1e-5, 3, 5)),
    "one group": ((2, 6, 6, 72), Normalization((1, 2), 1e-5, 3, 1)),
    "instance, channels last": ((2, 33, 31, 19), Normalization((1, 2), 1e-5)),
    "large image": ((1, 150, 60, 65), Normalization((1, 2), 1e-5, 3, 5)),
    "many channels": ((1, 3, 5, 520), Normalization((1, 2), 1e-5, 3, 8)),
    "group, channels first": ((2, 12, 9, 7), Normalization((2, 3), 1e-5, 1, 4)),
    "long planes": ((1, 6, 90, 101), Normalization((2, 3), 1e-5, 1, 2)),
    "one group, channels first": ((2, 6, 5, 7), Normalization((2, 3), 1e-5, 1, 1)),
    "instance, channels first": ((2, 6, 5, 7), Normalization((2, 3), 1e-5)),
    "layer": ((3, 4, 50), Normalization((2,), 1e-5)),
    "layer of two axes": ((3, 4, 5), Normalization((1, 2), 1e-5)),
    "long row": ((1, 3, 150, 150), Normalization((1, 2, 3), 1e-5)),
    "channels of places": ((2, 24, 5, 7), Normalization((1,), 1e-5)),
    "vectors in groups": ((3, 24), Normalization((), 1e-5, 1, 4)),
    "sequence": ((2, 40, 16), Normalization((1,), 1e-5, 2, 4)),
    "volume": ((1, 3, 4, 5, 16), Normalization((1, 2, 3), 1e-5, 4, 4)),
    "one group of long rows": ((2, 300, 130), Normalization((1,), 1e-5, 2, 1)),
    "one group of long planes": ((2, 130, 300), Normalization((2,), 1e-5, 1, 1)),
    "rms": ((2, 5, 33), Normalization((2,), 1e-5, centered=False)),
    "rms of groups": ((2, 6, 5, 32), Normalization((1, 2), 1e-5, 3, 4, centered=False)),
    "rms of long planes": ((1, 6, 90, 101), Normalization((2, 3), 1e-5, 1, 2, centered=False)),
}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("case", CASES)
def test_normalize(case: str, tmp_path: Path) -> None:
    shape, attributes = CASES[case]
    x = variable("x", shape)
    run = Runner(partition([x], lambda e, x: e(normalize(x, attributes))), tmp_path)
    data = (RNG.standard_normal(shape) * 3 + 1).astype("f4")
    close(run(data), expected(data, attributes))


@pytest.mark.parametrize("case", ["large image", "long planes", "layer"])
def test_a_mean_far_above_the_deviation_is_removed_first(case: str, tmp_path: Path) -> None:
    """A variance from the mean of squares would have no correct digit."""
    shape, attributes = CASES[case]
    x = variable("x", shape)
    run = Runner(partition([x], lambda e, x: e(normalize(x, attributes))), tmp_path)
    data = (RNG.standard_normal(shape) + 5000).astype("f4")
    # The mean is rounded to float32, which is 2.4e-4 of a deviation here.
    close(run(data), expected(data, attributes), 2e-4)


def block(attributes: Normalization) -> Any:
    """Return scale, shift, SiLU and a residual after a normalization, which is a result too."""

    def body(e: Any, x: Any, g: Any, b: Any, r: Any) -> Any:
        scaled = e(op.add(e(op.multiply(e(normalize(x, attributes)), g)), b))
        active = e(op.multiply(scaled, e(op.sigmoid(scaled))))
        return scaled, e(op.add(active, r))

    return body


@pytest.mark.parametrize("groups", [4, 1])
@pytest.mark.parametrize("channels_last", [True, False])
def test_what_follows_is_fused(channels_last: bool, groups: int, tmp_path: Path) -> None:
    n, h, w = (tirx.Var(name, "int64") for name in ("n", "h", "w"))
    attributes = Normalization((1, 2) if channels_last else (2, 3), 1e-5, 3 if channels_last else 1, groups)
    shape, constant = ((n, h, w, 20), (20,)) if channels_last else ((n, 20, h, w), (20, 1, 1))
    given = [variable("x", shape), variable("g", constant), variable("b", constant), variable("r", shape)]
    run = Runner(partition(given, block(attributes), [1, 2]), tmp_path)
    names = [function.symbol.rpartition("_")[2] for function in run.group.functions]
    assert names == ["moments", "deviations", "normalize"]
    for size in ((1, 5, 7), (3, 1, 1), (2, 80, 70)):
        whole = (size[0], *size[1:], 20) if channels_last else (size[0], 20, *size[1:])
        x, r = (RNG.standard_normal(whole).astype("f4") for _ in range(2))
        g, b = (RNG.standard_normal(constant).astype("f4") for _ in range(2))
        scaled, result = run(x, g, b, r)
        wanted = expected(x, attributes) * g + b
        close(scaled, wanted, 1e-5)
        close(result, wanted / (1 + np.exp(-wanted)) + r, 1e-5)


def test_parts_of_the_range_give_equal_results(tmp_path: Path) -> None:
    shape, attributes = CASES["large image"]
    x = variable("x", shape)
    part = partition([x], lambda e, x: e(normalize(x, attributes)))
    data = RNG.standard_normal(shape).astype("f4")
    results = [Runner(part, tmp_path / str(split), split=split)(data) for split in (1, 5)]
    np.testing.assert_array_equal(*results)


@pytest.mark.parametrize("machine", [Machine(16, 16, "sse2"), Machine(64, 32, "avx512")], ids=lambda m: str(m.name))
def test_other_vector_lengths(machine: Machine, tmp_path: Path) -> None:
    shape, attributes = CASES["group of odd channels"]
    x = variable("x", shape)
    part = partition([x], lambda e, x: e(normalize(x, attributes)))
    march = "x86-64-v4" if machine.name == "avx512" else "x86-64-v2"
    run = Runner(part, tmp_path, f"ccompiler -march={march}", machine=machine)
    data = RNG.standard_normal(shape).astype("f4")
    close(run(data), expected(data, attributes))


NAMES = ("softmax", "log_softmax")
# Softmax of rows in registers: several to a vector, less than one, and some whose last vector begins among others.
COLUMNS = (2, 3, 4, 7, 8, 15, 16, 17, 31, 33, 64, 65, 127, 129)
ROWS = 11

HOST = """
#include <stdio.h>
int main(void)
{{
    static float x[{count}], y[{count}];
    if (fread(x, sizeof *x, {count}, stdin) != {count})
        return 1;
    {symbol}(x, y, 0, 4);
    {symbol}(x, y, 4, {rows});
    return fwrite(y, sizeof *y, {count}, stdout) != {count};
}}
"""


def rows_of(name: str, columns: int) -> Partition:
    return partition([variable("x", (ROWS, columns))], lambda e, x: e(getattr(op.nn, name)(x, -1)))


def unusual(columns: int) -> np.ndarray:
    """Return rows, of which one has a NaN, one is all -infinity, and one has -infinity in it."""
    data = (np.random.default_rng(columns).standard_normal((ROWS, columns)) * 20).astype("f4")
    data[3, 1], data[4], data[6, 0] = np.nan, -np.inf, -np.inf
    return data


def check_rows(name: str, data: np.ndarray, got: np.ndarray) -> None:
    with np.errstate(invalid="ignore", divide="ignore"):
        shifted = data.astype("f8") - data.max(-1, keepdims=True)
        shifted -= np.log(np.exp(shifted).sum(-1, keepdims=True))
    assert np.isnan(got[[3, 4]]).all()
    rest = [row for row in range(ROWS) if row not in (3, 4)]
    if name == "softmax":
        np.testing.assert_allclose(got[rest], np.exp(shifted[rest]), rtol=3e-6, atol=1e-30)
    else:
        np.testing.assert_allclose(got[rest], shifted[rest], rtol=3e-6, atol=1e-6)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("columns", COLUMNS)
def test_softmax_of_rows_of_any_length(name: str, columns: int, tmp_path: Path) -> None:
    data = unusual(columns)
    check_rows(name, data, Runner(rows_of(name, columns), tmp_path)(data))


def test_softmax_of_short_rows_and_what_follows(tmp_path: Path) -> None:
    """Pointers of operands have names of their own."""
    inputs = [variable("x", (ROWS, 5)), variable("m", (ROWS, 5)), variable("b", (5,))]
    part = partition(inputs, lambda e, x, m, b: e(op.add(e(op.multiply(e(op.nn.softmax(x, -1)), m)), b)))
    x, m, b = (RNG.standard_normal(shape).astype("f4") for shape in ((ROWS, 5), (ROWS, 5), (5,)))
    exact = np.exp(x.astype("f8"))
    close(Runner(part, tmp_path)(x, m, b), exact / exact.sum(-1, keepdims=True) * m + b)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("columns", COLUMNS)
@pytest.mark.parametrize("machine", [Machine(16, 16, "sse2"), Machine(64, 32, "avx512")], ids=lambda m: m.name)
def test_softmax_of_rows_of_any_length_on_other_machines(
    machine: Machine, name: str, columns: int, tmp_path: Path
) -> None:
    flags = ("-O2",)
    if machine.name == "avx512":
        if " avx512vl " not in Path("/proc/cpuinfo").read_text():
            pytest.skip("no AVX-512")
        flags = ("-O2", "-march=x86-64-v4")
    data = unusual(columns)
    check_rows(name, data, Runner(rows_of(name, columns), tmp_path, flags=flags, machine=machine)(data))


@pytest.mark.parametrize(("name", "columns"), [("softmax", 2), ("softmax", 3), ("log_softmax", 7), ("softmax", 31)])
def test_arm64(name: str, columns: int, tmp_path: Path) -> None:
    """Compiled for arm64, run by qemu."""
    compiler, emulator = shutil.which("aarch64-linux-gnu-gcc"), shutil.which("qemu-aarch64")
    if compiler is None or emulator is None:
        pytest.skip("no compiler for arm64, or no qemu")
    source, groups, _ = render_module([rows_of(name, columns)], (), Machine(16, 32, "aarch64"))
    (function,) = groups["part"].functions
    data, path = unusual(columns), tmp_path / "arm64.c"
    path.write_text(source + HOST.format(symbol=function.symbol, count=data.size, rows=ROWS))
    command = [compiler, "-std=gnu11", *STRICT, "-O2", "-static", path, "-o", path.with_suffix(""), "-lm"]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    made = subprocess.run([emulator, path.with_suffix("")], input=data.tobytes(), capture_output=True, check=True)
    check_rows(name, data, np.frombuffer(made.stdout, "f4").reshape(data.shape))


@pytest.mark.parametrize("columns", [2, 9, 30, 49, 128])
def test_softmax_of_masked_rows(columns: int, tmp_path: Path) -> None:
    """Some rows at once are added to the mask; the last are fewer. What else reads the sum gets it."""
    shape, rng = (3, 7, columns), np.random.default_rng(columns)
    x, m = variable("x", shape), variable("m", (3, 1, columns))

    def body(e: Any, x: Any, m: Any) -> Any:
        masked = e(op.add(x, m))
        return e(op.nn.softmax(masked)), masked

    run = Runner(partition([x, m], body, []), tmp_path)
    data, mask = (
        rng.standard_normal(shape).astype("f4"),
        np.where(rng.random((3, 1, columns)) < 0.3, -1e4, 0).astype("f4"),
    )
    shares, total = run(data, mask)
    wide = np.exp((data + mask).astype("f8") - (data + mask).max(-1, keepdims=True))
    np.testing.assert_allclose(shares, wide / wide.sum(-1, keepdims=True), rtol=1e-5, atol=1e-7)
    np.testing.assert_array_equal(total, data + mask)
