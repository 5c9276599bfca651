"""What the ccompiler backend moves along rows: concatenations, interleaved groups, planes, means of neighbors."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm")
from ccompiler_runner import Runner, partition, variable
from tvm import relax, tirx
from tvm.relax import op

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(6)
DTYPES = ("float32", "float16", "int8", "float64")


def random(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    """Return small integers, which every type has."""
    return RNG.integers(-100, 100, shape).astype(dtype)


def functions(run: Runner) -> list[str]:
    """Return what the functions of a partition are for."""
    return [function.symbol.split("_")[-1] for function in run.group.functions]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("widths", [(1, 2), (16, 70), (3, 64, 17, 33)])
def test_concat(widths: tuple[int, ...], dtype: str, tmp_path: Path) -> None:
    n = tirx.Var("n", "int64")
    arguments = [variable(f"x{i}", (n, 3, width), dtype) for i, width in enumerate(widths)]
    run = Runner(partition(arguments, lambda e, *xs: e(op.concat(list(xs), -1))), tmp_path)
    for batch in (1, 4):
        data = [random((batch, 3, width), dtype) for width in widths]
        np.testing.assert_array_equal(run(*data), np.concatenate(data, -1))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count", [2, 7, 8])
def test_stack_of_symbolic_extents(count: int, dtype: str, tmp_path: Path) -> None:
    """Single elements of several tensors: units of whole loops, and one that is shorter."""
    n = tirx.Var("n", "int64")
    arguments = [variable(f"x{i}", (n, 5, 1), dtype) for i in range(count)]
    run = Runner(partition(arguments, lambda e, *xs: e(op.concat(list(xs), -1))), tmp_path)
    assert functions(run) == ["stack"]
    for batch in (1, 64, 0, 71):
        data = [random((batch, 5, 1), dtype) for _ in range(count)]
        np.testing.assert_array_equal(run(*data), np.concatenate(data, -1))


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_concat_of_symbolic_extents(axis: int, tmp_path: Path) -> None:
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")
    shapes = [[*(4, 3, 5)[:axis], extent, *(4, 3, 5)[axis + 1 :]] for extent in (n, m)]
    arguments = [variable(name, shape) for name, shape in zip("xy", shapes, strict=True)]

    def body(e, x, y):
        whole = e(op.concat([x, y, x], axis))
        return e(op.nn.relu(e(op.add(whole, whole)))), whole

    run = Runner(partition(arguments, body), tmp_path)
    for sizes in ((1, 1), (7, 2), (0, 3), (40, 17)):
        x, y = (random(tuple(size if i == axis else e for i, e in enumerate((4, 3, 5)))) for size in sizes)
        doubled, whole = run(x, y)
        np.testing.assert_array_equal(whole, np.concatenate([x, y, x], axis))
        np.testing.assert_array_equal(doubled, np.maximum(2 * whole, 0))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("keeps", [False, True])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("widths", [(20, 13), (2000, 3000)])
def test_concat_is_followed_along_its_rows(widths: tuple[int, int], dtype: str, keeps: bool, tmp_path: Path) -> None:
    arguments = [variable(f"x{i}", (2, 3, 4, width), dtype) for i, width in enumerate(widths)]
    arguments.append(variable("s", (sum(widths),), dtype))

    def body(e, x, y, s):
        whole = e(op.concat([x, y], 3))
        active = e(op.nn.relu(e(op.add(whole, s))))
        return (whole, active) if keeps else active

    run = Runner(partition(arguments, body), tmp_path)
    assert functions(run) == ["concat"]
    x, y, s = (random(tuple(map(int, a.ty.shape.values)), dtype) for a in arguments)
    whole = np.concatenate([x, y], 3)
    got = run(x, y, s)
    np.testing.assert_array_equal(got[1] if keeps else got, np.maximum(whole + s, 0))
    if keeps:
        np.testing.assert_array_equal(got[0], whole)


def test_concat_of_what_a_convolution_makes(tmp_path: Path) -> None:
    layouts = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}
    arguments = [variable("x", (2, 5, 4, 8)), variable("w", (32, 1, 1, 8)), variable("y", (2, 5, 4, 7))]

    def body(e, x, w, y):
        return e(op.concat([y, e(op.nn.relu(e(op.nn.conv2d(x, w, **layouts))))], 3))

    run = Runner(partition(arguments, body, [1]), tmp_path)
    x, w, y = random((2, 5, 4, 8)), random((32, 1, 1, 8)), random((2, 5, 4, 7))
    product = np.maximum(x @ w.reshape(32, 8).T, 0)
    np.testing.assert_array_equal(run(x, w, y), np.concatenate([y, product], 3))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("groups", "each"), [(2, 1), (3, 7), (4, 34), (16, 16)])
def test_groups_are_interleaved(groups: int, each: int, dtype: str, tmp_path: Path) -> None:
    n = tirx.Var("n", "int64")
    x = variable("x", (n, 5, groups, each), dtype)
    run = Runner(partition([x], lambda e, x: e(op.permute_dims(x, [0, 1, 3, 2]))), tmp_path)
    assert functions(run) == ["interleave"]
    for batch in (1, 3):
        data = random((batch, 5, groups, each), dtype)
        np.testing.assert_array_equal(run(data), data.transpose(0, 1, 3, 2))


def test_a_shuffle_is_followed_along_its_rows(tmp_path: Path) -> None:
    arguments = [variable("x", (2, 3, 3, 20)), variable("s", (20,))]

    def body(e, x, s):
        swapped = e(op.permute_dims(e(op.reshape(x, (2, 3, 3, 4, 5))), [0, 1, 2, 4, 3]))
        return e(op.add(e(op.reshape(swapped, (2, 3, 3, 20))), s))

    run = Runner(partition(arguments, body), tmp_path)
    assert functions(run) == ["interleave"]
    x, s = random((2, 3, 3, 20)), random((20,))
    np.testing.assert_array_equal(run(x, s), x.reshape(2, 3, 3, 4, 5).swapaxes(3, 4).reshape(2, 3, 3, 20) + s)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("follows", [False, True])
def test_planes_become_channels(follows: bool, dtype: str, tmp_path: Path) -> None:
    n, h = tirx.Var("n", "int64"), tirx.Var("h", "int64")
    x = variable("x", (n, 3, h, 17), dtype)

    def body(e, x):
        last = e(op.permute_dims(x, [0, 2, 3, 1]))
        return e(op.add(last, relax.const(2, dtype))) if follows else last

    run = Runner(partition([x], body), tmp_path)
    assert functions(run) == ["planes"]
    for batch, height in ((1, 1), (2, 40)):
        data = random((batch, 3, height, 17), dtype)
        np.testing.assert_array_equal(run(data), data.transpose(0, 2, 3, 1) + np.asarray(2 * follows, dtype))


@pytest.mark.parametrize(("window", "padding"), [(5, (2, 2)), (4, (1, 2)), (1, (0, 0))])
def test_means_of_neighbors_with_what_is_around_them(window: int, padding: tuple[int, int], tmp_path: Path) -> None:
    n = tirx.Var("n", "int64")
    x = variable("x", (n, 3, 3, 21))

    def body(e, x):
        rows = e(op.reshape(e(op.multiply(x, x)), (n * 9, 1, 21)))
        means = e(op.nn.avg_pool1d(rows, window, padding=padding, count_include_pad=True))
        return e(op.divide(x, e(op.add(e(op.reshape(means, (n, 3, 3, 21))), relax.const(1.0, "float32")))))

    run = Runner(partition([x], body), tmp_path)
    assert functions(run) == ["neighbors"]
    for batch in (1, 2):
        data = RNG.standard_normal((batch, 3, 3, 21)).astype("f4")
        squares = np.pad(data.astype("f8") ** 2, ((0, 0), (0, 0), (0, 0), padding))
        sums = np.lib.stride_tricks.sliding_window_view(squares, window, 3).sum(-1)
        np.testing.assert_allclose(run(data), data / (1 + sums / window), rtol=1e-5, atol=1e-6)
