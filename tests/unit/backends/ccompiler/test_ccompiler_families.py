"""The loop nests of the ccompiler backend against numpy: operators, element types, odd shapes, symbolic dims."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from ccompiler_runner import Runner, partition, variable
from tvm import relax, tirx
from tvm.relax import op

from packager.backends.ccompiler.core.machine import Machine

pytestmark = pytest.mark.slow

RNG = np.random.default_rng(5)
FLOATS = ("float32", "float16")
NUMBERS = (*FLOATS, "int8", "int32")


def random(shape: Sequence[int], dtype: str = "float32") -> np.ndarray:
    """Return values of about unit size, or small integers."""
    if np.dtype(dtype).kind == "f":
        return RNG.standard_normal(shape).astype(dtype)
    return RNG.integers(-100, 100, shape).astype(dtype)


def close(got: np.ndarray, wanted: np.ndarray, terms: int = 1) -> None:
    """Compare a sum of ``terms`` products, integers exactly."""
    assert got.shape == wanted.shape
    if got.dtype.kind != "f":
        np.testing.assert_array_equal(got, wanted.astype(got.dtype))
        return
    unit = 1e-3 if got.dtype == np.float16 else 1e-6
    np.testing.assert_allclose(
        got.astype("f8"), wanted.astype("f8"), rtol=4 * unit, atol=4 * unit * math.sqrt(terms) + 1e-12
    )


def wide(array: np.ndarray) -> np.ndarray:
    """Return an array in a type in which sums are exact enough."""
    return array.astype("f8" if array.dtype.kind == "f" else "i8")


def symbol(name: str = "n") -> tirx.Var:
    """Return a symbolic dim."""
    return tirx.Var(name, "int64")


# dense


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize(("depth", "columns"), [(1, 1), (7, 5), (33, 50), (64, 16), (16, 96)])
def test_dense_with_packed_weights(dtype: str, depth: int, columns: int, tmp_path: Path) -> None:
    result = "int32" if dtype == "int8" else dtype
    x, w = variable("x", (symbol(), depth), dtype), variable("w", (depth, columns), dtype)
    run = Runner(partition([x, w], lambda e, x, w: e(op.matmul(x, w, out_dtype=result)), [1]), tmp_path)
    weights = random((depth, columns), dtype)
    for rows in (1, 2, 5, 6, 7, 13, 31):
        data = random((rows, depth), dtype)
        close(run(data, weights), wide(data) @ wide(weights), depth)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rows", [1, 2, 3, 6, 25])
@pytest.mark.parametrize("base", ["llvm", "llvm -mcpu=x86-64", "llvm -mcpu=x86-64-v2"])
def test_dense_of_a_static_shape_on_other_machines(rows: int, base: str, tmp_path: Path) -> None:
    x, w = variable("x", (rows, 40)), variable("w", (40, 200))
    march = base.partition("=")[2] or "x86-64-v3"
    part = partition([x, w], lambda e, x, w: e(op.matmul(x, w)), [1])
    run = Runner(part, tmp_path, f"ccompiler -march={march}")
    data, weights = random((rows, 40)), random((40, 200))
    close(run(data, weights), wide(data) @ wide(weights), 40)


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("machine", ["aarch64", "avx512"])
def test_tiles_of_other_machines(machine: str, dtype: str, tmp_path: Path) -> None:
    """What is rendered for arm64 is C that every machine can run; for AVX-512 it has instructions of its own."""
    result = "int32" if dtype == "int8" else dtype
    arguments = [variable("x", (symbol(), 6, 5, 13), dtype), variable("f", (40, 3, 3, 13), dtype)]

    def body(e, x, f):
        return e(op.nn.conv2d(x, f, padding=(1, 1, 1, 1), out_dtype=result, **LAYOUTS))

    chosen = {"aarch64": Machine(16, 32, "aarch64"), "avx512": Machine(64, 32, "avx512")}[machine]
    target = "ccompiler -march=x86-64-v4" if machine == "avx512" else "ccompiler -march=x86-64-v2"
    run = Runner(partition(arguments, body, [1]), tmp_path / "conv", target, machine=chosen)
    data, weights = random((2, 13, 6, 5), dtype), random((40, 13, 3, 3), dtype)
    got = first(run(last(data), last(weights)))
    close(got, conv2d(data, weights, padding=(1, 1, 1, 1)), 117)

    arguments = [variable("x", (symbol(), 6, 5, 37), dtype), variable("f", (37, 3, 3, 1), dtype)]
    deep = partition(arguments, lambda e, x, f: e(op.nn.conv2d(x, f, groups=37, out_dtype=result, **LAYOUTS)), [1])
    run = Runner(deep, tmp_path / "depthwise", target, machine=chosen)
    data, weights = random((2, 37, 6, 5), dtype), random((37, 1, 3, 3), dtype)
    close(first(run(last(data), last(weights))), conv2d(data, weights, groups=37), 9)

    product = partition(
        [variable("x", (symbol(), 33), dtype), variable("w", (33, 70), dtype)],
        lambda e, x, w: e(op.nn.relu(e(op.matmul(x, w, out_dtype=result)))),
        [1],
    )
    run = Runner(product, tmp_path / "dense", target, machine=chosen)
    for rows in (1, 3, 14):
        data, weights = random((rows, 33), dtype), random((33, 70), dtype)
        close(run(data, weights), np.maximum(wide(data) @ wide(weights), 0), 33)


@pytest.mark.parametrize("dtype", NUMBERS)
def test_dense_of_two_tensors_in_batches(dtype: str, tmp_path: Path) -> None:
    n, m, k = symbol("n"), symbol("m"), symbol("k")
    a, b = variable("a", (n, 3, m, k), dtype), variable("b", (n, 3, k, m), dtype)
    run = Runner(partition([a, b], lambda e, a, b: e(op.matmul(a, b))), tmp_path)
    for sizes in ((1, 1, 1), (2, 5, 7), (1, 16, 8), (2, 17, 33)):
        batch, rows, depth = sizes
        left, right = random((batch, 3, rows, depth), dtype), random((batch, 3, depth, rows), dtype)
        close(run(left, right), wide(left) @ wide(right), depth)


@pytest.mark.sampled(2, every_value=False)
@pytest.mark.parametrize("march", ["x86-64-v2", "x86-64-v3", "x86-64-v4"])
@pytest.mark.parametrize("rows", [1, 57, 131, 400])
def test_dense_in_chunks_bands_and_blocks(rows: int, march: str, tmp_path: Path) -> None:
    """What is split is put together again, however units of work are handed out, and has equal bits then."""
    arguments = [variable("x", (rows, 700)), variable("w", (700, 600)), variable("b", (600,))]
    part = partition(arguments, lambda e, x, w, b: e(op.nn.relu(e(op.add(e(op.matmul(x, w)), b)))), [1, 2])
    data, weights, bias = random((rows, 700)), random((700, 600)), random((600,))
    run = Runner(part, tmp_path, f"ccompiler -march={march}")
    results = []
    for split in (1, 2, 5, 1000):
        run.split = split
        results.append(run(data, weights, bias))
        np.testing.assert_array_equal(results[-1], results[0])
    close(results[0], np.maximum(wide(data) @ wide(weights) + bias, 0), 700)


@pytest.mark.parametrize("after", ["nothing", "residual", "both"])
@pytest.mark.parametrize(("rows", "columns"), [(131, 320), (20, 272), (70, 300)])
def test_dense_with_sums_in_the_result(rows: int, columns: int, after: str, tmp_path: Path) -> None:
    """Rows that would meet in few sets of the cache are gathered once for all columns, if panels are whole."""
    shape = (rows, 1024)
    arguments = [variable("x", shape), variable("w", (1024, columns)), variable("r", (rows, columns))]

    def body(e: Any, x: Any, w: Any, r: Any) -> Any:
        made = e(op.matmul(x, w))
        changed = e(op.nn.relu(e(op.add(made, r))))
        return {"nothing": made, "residual": changed, "both": (made, changed)}[after]

    part = partition(arguments, body, [1])
    data, weights, residual = random(shape), random((1024, columns)), random((rows, columns))
    product = wide(data) @ wide(weights)
    expected = {"nothing": product, "residual": np.maximum(product + residual, 0)}
    first_results: Any = None
    run = Runner(part, tmp_path)
    for split in (1, 2, 5, 1000):
        run.split = split
        results = run(data, weights, residual)
        results = results if isinstance(results, tuple) else (results,)
        for result, name in zip(results, expected if after == "both" else [after], strict=True):
            close(result, expected[name], 1024)
        first_results = first_results or results
        for result, same in zip(results, first_results, strict=True):
            np.testing.assert_array_equal(result, same)
    source = (tmp_path / "ccompiler.c").read_text()
    assert ("float c[" in source) == (columns == 300)


@pytest.mark.parametrize("sizes", [(3, 130, 40, 300), (2, 49, 96, 160), (1, 20, 64, 70)])
def test_units_of_batches(sizes: tuple[int, int, int, int], tmp_path: Path) -> None:
    """Rows first, that is here, in bands of 64 and of 32 columns; a part may begin and end within a block."""
    batch, rows, depth, columns = sizes
    arguments = [variable("x", (batch, rows, depth)), variable("w", (batch, depth, columns))]
    part = partition(arguments, lambda e, x, w: e(op.matmul(x, w)), [1])
    data, weights = random((batch, rows, depth)), random((batch, depth, columns))
    run = Runner(part, tmp_path)
    results = []
    for split in (1, 2, 3, 7, 1000):
        run.split = split
        results.append(run(data, weights))
        np.testing.assert_array_equal(results[-1], results[0])
    close(results[0], wide(data) @ wide(weights), depth)


@pytest.mark.parametrize(("groups", "out_channels"), [(4, 40), (2, 300)], ids=["one band", "bands"])
@pytest.mark.parametrize("dtype", ["float32", "int8"])
def test_units_of_groups(dtype: str, groups: int, out_channels: int, tmp_path: Path) -> None:
    """All groups of a block, then the next block, however units of work are handed out."""
    weight = (out_channels, 12, 3, 1)
    arguments = [variable("x", (2, 9, 13, 12 * groups), dtype), variable("w", last_shape(weight), dtype)]
    result = "int32" if dtype == "int8" else dtype
    attributes = {"padding": (1, 0), "groups": groups, "out_dtype": result, **LAYOUTS}
    part = partition(arguments, lambda e, x, w: e(op.nn.conv2d(x, w, **attributes)), [1])
    data, weights = random((2, 12 * groups, 9, 13), dtype), random(weight, dtype)
    run = Runner(part, tmp_path)
    results = []
    for split in (1, 2, 5, 1000):
        run.split = split
        results.append(first(run(last(data), last(weights))))
        np.testing.assert_array_equal(results[-1], results[0])
    close(results[0], conv2d(data, weights, groups=groups, padding=(1, 0, 1, 0)), 36)


@pytest.mark.parametrize("shape", [(1, 8, 5), (1, 1, 8, 5)])
def test_dense_with_a_matrix_of_more_axes(shape: tuple[int, ...], tmp_path: Path) -> None:
    x, w = variable("x", (symbol(), 3, 8)), variable("w", shape)
    run = Runner(partition([x, w], lambda e, x, w: e(op.matmul(x, w)), [1]), tmp_path)
    data, weights = random((4, 3, 8)), random(shape)
    close(run(data, weights), wide(data) @ wide(weights), 8)


def test_int8_sums_wrap_around(tmp_path: Path) -> None:
    x, w = variable("x", (3, 40), "int8"), variable("w", (40, 9), "int8")
    run = Runner(partition([x, w], lambda e, x, w: e(op.matmul(x, w)), [1]), tmp_path)
    data, weights = np.full((3, 40), -128, "i1"), np.full((40, 9), -128, "i1")
    close(run(data, weights), (wide(data) @ wide(weights)).astype("i1"))


def test_extremes_of_int8_are_exact(tmp_path: Path) -> None:
    x, w = variable("x", (3, 40), "int8"), variable("w", (40, 9), "int8")
    run = Runner(partition([x, w], lambda e, x, w: e(op.matmul(x, w, out_dtype="int32")), [1]), tmp_path)
    for a, b in ((-128, -128), (-128, 127), (127, 127)):
        data, weights = np.full((3, 40), a, "i1"), np.full((40, 9), b, "i1")
        close(run(data, weights), wide(data) @ wide(weights))


def test_dense_with_bias_residual_and_tap(tmp_path: Path) -> None:
    n = symbol()
    arguments = [variable("x", (n, 33)), variable("w", (33, 50)), variable("b", (50,)), variable("r", (n, 50))]

    def body(e, x, w, b, r):
        biased = e(op.add(b, e(op.matmul(x, w))))
        return biased, e(op.nn.relu(e(op.add(biased, r))))

    run = Runner(partition(arguments, body, [1, 2]), tmp_path)
    assert len(run.group.functions) == 1
    for rows in (1, 9):
        x, w, b, r = random((rows, 33)), random((33, 50)), random((50,)), random((rows, 50))
        tap, result = run(x, w, b, r)
        close(tap, wide(x) @ wide(w) + b, 33)
        close(result, np.maximum(wide(x) @ wide(w) + b + r, 0), 33)


def test_dense_is_followed_through_a_reshape(tmp_path: Path) -> None:
    """The bias is of the matrix, the other operand of the tensor that it is seen as."""
    arguments = [variable("x", (10, 8)), variable("w", (8, 24)), variable("b", (24,)), variable("m", (2, 1, 1))]

    def body(e, x, w, b, m):
        biased = e(op.add(e(op.matmul(x, w)), b))
        return e(op.multiply(e(op.reshape(biased, (2, 5, 24))), m))

    run = Runner(partition(arguments, body, [1, 2]), tmp_path)
    assert len(run.group.functions) == 1
    x, w, b, m = random((10, 8)), random((8, 24)), random((24,)), random((2, 1, 1))
    close(run(x, w, b, m), (wide(x) @ wide(w) + b).reshape(2, 5, 24) * m, 8)


# conv2d

LAYOUTS = {"data_layout": "NHWC", "kernel_layout": "OHWI", "out_layout": "NHWC"}


def last(array: np.ndarray) -> np.ndarray:
    """Return NCHW as NHWC."""
    return np.ascontiguousarray(array.transpose(0, 2, 3, 1))


def first(array: np.ndarray) -> np.ndarray:
    """Return NHWC as NCHW."""
    return array.transpose(0, 3, 1, 2)


def last_shape(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the shape of NCHW as that of NHWC."""
    return (shape[0], *shape[2:], shape[1])


def conv2d(x: np.ndarray, w: np.ndarray, strides=(1, 1), padding=(0, 0, 0, 0), dilation=(1, 1), groups=1) -> np.ndarray:
    """NCHW, OIHW, term by term."""
    x, w = wide(x), wide(w)
    top, left, bottom, right = padding
    x = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)))
    size = [(w.shape[2 + i] - 1) * dilation[i] + 1 for i in range(2)]
    windows = np.lib.stride_tricks.sliding_window_view(x, size, (2, 3))
    windows = windows[:, :, :: strides[0], :: strides[1], :: dilation[0], :: dilation[1]]
    inner, outer = w.shape[1], w.shape[0] // groups
    parts = [
        np.einsum("nchwij,ocij->nohw", windows[:, g * inner : (g + 1) * inner], w[g * outer : (g + 1) * outer])
        for g in range(groups)
    ]
    return np.concatenate(parts, 1)


CONVOLUTIONS = {
    "plain": ((2, 3, 9, 8), (5, 3, 3, 3), {}),
    "1x1": ((1, 8, 7, 7), (33, 8, 1, 1), {}),
    "1x1 strided": ((1, 5, 9, 7), (16, 5, 1, 1), {"strides": (2, 2)}),
    "padded": ((1, 4, 7, 7), (32, 4, 3, 3), {"padding": (1, 1, 1, 1)}),
    "all attributes": ((2, 3, 13, 11), (6, 3, 3, 2), {"strides": (2, 3), "padding": (1, 0, 2, 3), "dilation": (2, 1)}),
    "groups": ((1, 6, 6, 5), (20, 3, 3, 3), {"groups": 2, "padding": (1, 1, 1, 1)}),
    "depthwise": ((2, 6, 9, 70), (6, 1, 3, 3), {"groups": 6, "padding": (1, 1, 1, 1)}),
    "depthwise, two each, strided": ((1, 4, 9, 9), (8, 1, 5, 3), {"groups": 4, "strides": (2, 2)}),
    "depthwise, many channels": ((1, 211, 8, 7), (211, 1, 3, 3), {"groups": 211, "padding": (1, 1, 1, 1)}),
    "depthwise, all attributes": (
        (2, 33, 11, 12),
        (33, 1, 5, 4),
        {"groups": 33, "strides": (2, 3), "padding": (2, 1, 0, 3), "dilation": (1, 2)},
    ),
    "one place": ((3, 20, 1, 1), (70, 20, 1, 1), {}),
    "large window": ((1, 3, 20, 20), (17, 3, 7, 7), {"strides": (2, 2), "padding": (3, 3, 3, 3)}),
    "many channels": ((1, 300, 7, 8), (40, 300, 1, 1), {}),
    "many channels, strided": ((2, 300, 7, 8), (330, 300, 1, 1), {"strides": (2, 2)}),
    "chunks that end within a window": ((1, 70, 8, 9), (70, 70, 3, 3), {"padding": (1, 1, 1, 1), "strides": (2, 1)}),
    "many places": ((1, 2, 30, 31), (16, 2, 3, 3), {"padding": (1, 1, 1, 1)}),
}


@pytest.mark.sampled(4, every_value=False)
@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_conv2d(case: str, dtype: str, tmp_path: Path) -> None:
    shape, weight, attributes = CONVOLUTIONS[case]
    result = "int32" if dtype == "int8" else dtype
    x, w = variable("x", last_shape(shape), dtype), variable("w", last_shape(weight), dtype)
    part = partition([x, w], lambda e, x, w: e(op.nn.conv2d(x, w, **attributes, **LAYOUTS, out_dtype=result)), [1])
    run = Runner(part, tmp_path)
    data, weights = random(shape, dtype), random(weight, dtype)
    close(first(run(last(data), last(weights))), conv2d(data, weights, **attributes), math.prod(weight[1:]))


def test_winograd_can_be_left_out(tmp_path: Path) -> None:
    arguments = [variable("x", (1, 24, 24, 32)), variable("w", (32, 3, 3, 32))]
    part = partition(arguments, lambda e, x, w: e(op.nn.conv2d(x, w, **LAYOUTS)), [1])
    run = Runner(part, tmp_path, "ccompiler -winograd=0")
    assert [function.symbol for function in run.group.functions] == ["pkc_part_0_conv2d"]
    data, weights = random((1, 32, 24, 24)), random((32, 32, 3, 3))
    close(first(run(last(data), last(weights))), conv2d(data, weights), 288)


def test_conv2d_with_symbolic_sides_bias_and_residual(tmp_path: Path) -> None:
    n, h, w = symbol("n"), symbol("h"), symbol("w")
    padding = {"padding": (1, 1, 1, 1)}
    arguments = [
        variable("x", (n, h, w, 3)),
        variable("f", (20, 3, 3, 3)),
        variable("b", (1, 1, 1, 20)),
        variable("r", (n, h, w, 20)),
    ]

    def body(e, x, f, b, r):
        biased = e(op.add(e(op.nn.conv2d(x, f, **padding, **LAYOUTS)), b))
        return e(op.nn.relu(e(op.add(r, biased))))

    run = Runner(partition(arguments, body, [1, 2]), tmp_path)
    assert len(run.group.functions) == 1
    for sizes in ((1, 1, 1), (2, 5, 7), (1, 14, 14)):
        batch, height, width = sizes
        x, f, b = random((batch, 3, height, width)), random((20, 3, 3, 3)), random((1, 20, 1, 1))
        r = random((batch, 20, height, width))
        got = first(run(last(x), last(f), last(b), last(r)))
        close(got, np.maximum(conv2d(x, f, **padding) + b + r, 0), 27)


def test_depthwise_with_symbolic_sides_bias_and_residual(tmp_path: Path) -> None:
    n, h, w = symbol("n"), symbol("h"), symbol("w")
    arguments = [
        variable("x", (n, h, w, 40)),
        variable("f", (40, 3, 3, 1)),
        variable("b", (1, 1, 1, 40)),
        variable("r", (n, h, w, 40)),
    ]

    def body(e, x, f, b, r):
        biased = e(op.add(e(op.nn.conv2d(x, f, padding=(1, 1, 1, 1), groups=40, **LAYOUTS)), b))
        return e(op.clip(e(op.add(r, biased)), 0, 6))

    run = Runner(partition(arguments, body, [1, 2]), tmp_path)
    assert len(run.group.functions) == 1
    for sizes in ((1, 1, 1), (2, 5, 7), (1, 14, 14), (1, 3, 20)):
        batch, height, width = sizes
        x, f, b = random((batch, 40, height, width)), random((40, 1, 3, 3)), random((1, 40, 1, 1))
        r = random((batch, 40, height, width))
        got = first(run(last(x), last(f), last(b), last(r)))
        close(got, np.clip(conv2d(x, f, padding=(1, 1, 1, 1), groups=40) + b + r, 0, 6), 9)


# pooling


def pool(x: np.ndarray, size, strides, padding, dilation, shape, kind: str, include: bool) -> np.ndarray:
    """Return the pooling of [N, C, H, W], place by place."""
    top, left = padding[:2]
    result = np.zeros(shape)
    for y, z in np.ndindex(*shape[2:]):
        lines = [y * strides[0] - top + i * dilation[0] for i in range(size[0])]
        places = [z * strides[1] - left + i * dilation[1] for i in range(size[1])]
        lines = [i for i in lines if 0 <= i < x.shape[2]]
        places = [i for i in places if 0 <= i < x.shape[3]]
        window = wide(x)[:, :, lines][:, :, :, places]
        if kind == "max":
            result[:, :, y, z] = window.max((2, 3))
        else:
            total = window.sum((2, 3)) / (math.prod(size) if include else len(lines) * len(places))
            result[:, :, y, z] = total if x.dtype.kind == "f" else np.trunc(total)
    return result


POOLINGS = {
    "plain": ((1, 3, 8, 9), (2, 2), {}),
    "strided and padded": ((2, 3, 13, 150), (3, 3), {"strides": (2, 2), "padding": (1, 1, 1, 1)}),
    "odd": ((1, 2, 9, 10), (3, 2), {"strides": (1, 3), "padding": (1, 0, 0, 1), "dilation": (2, 1)}),
    "ceil": ((1, 2, 8, 8), (3, 3), {"strides": (2, 2), "ceil_mode": True}),
    "all of it": ((1, 5, 7, 7), (7, 7), {}),
    "many channels": ((1, 300, 5, 4), (3, 3), {"padding": (1, 1, 1, 1)}),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("dtype", NUMBERS)
@pytest.mark.parametrize("case", POOLINGS)
@pytest.mark.parametrize("kind", ["max", "avg", "avg with padding"])
def test_pool2d(kind: str, case: str, dtype: str, tmp_path: Path) -> None:
    shape, size, attributes = POOLINGS[case]
    include = kind == "avg with padding"
    operator = op.nn.max_pool2d if kind == "max" else op.nn.avg_pool2d
    x = variable("x", last_shape(shape), dtype)
    part = partition([x], lambda e, x: e(operator(x, size, **attributes, count_include_pad=include, layout="NHWC")))
    run = Runner(part, tmp_path)
    data = random(shape, dtype)
    got = first(run(last(data)))
    rest = {"strides": (1, 1), "padding": (0, 0, 0, 0), "dilation": (1, 1)} | attributes
    rest.pop("ceil_mode", None)
    close(got, pool(data, size, **rest, shape=got.shape, kind=kind[:3], include=include), math.prod(size))


@pytest.mark.parametrize("dtype", FLOATS)
def test_means_of_planes(dtype: str, tmp_path: Path) -> None:
    n, h = symbol("n"), symbol("h")
    data = random((2, 9, 7, 70), dtype)
    wanted = wide(data).mean((1, 2), keepdims=True)
    for number, body in enumerate(
        (
            lambda e, x: e(op.mean(x, [1, 2], keepdims=True)),
            lambda e, x: e(op.mean(x, [-2, -3])),
            lambda e, x: e(op.nn.relu(e(op.nn.adaptive_avg_pool2d(x, (1, 1), layout="NHWC")))),
        )
    ):
        run = Runner(partition([variable("x", (n, h, 7, 70), dtype)], body), tmp_path / str(number))
        got = run(data)
        close(got.reshape(2, 1, 1, 70), np.maximum(wanted, 0) if number == 2 else wanted, 63)


# softmax and layer norm


def softmax(x: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    exponentials = np.exp(wide(x) - wide(x).max(-1, keepdims=True))
    return exponentials / exponentials.sum(-1, keepdims=True)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("columns", [1, 3, 16, 77])
def test_softmax_of_what_comes_before_it(dtype: str, columns: int, tmp_path: Path) -> None:
    n = symbol()
    arguments = [variable("x", (n, 4, 6, columns), dtype), variable("m", (n, 1, 1, columns), dtype)]

    def scale(e, x, m):
        return e(op.add(e(op.multiply(x, relax.const(0.5, dtype))), m))

    def two(e, x, m):
        scaled = scale(e, x, m)
        return e(op.nn.softmax(scaled, -1)), e(op.nn.log_softmax(scaled, -1))

    one = partition(arguments, lambda e, x, m: e(op.nn.softmax(scale(e, x, m), -1)))
    both = partition(arguments, two)
    single, double = Runner(one, tmp_path / "one"), Runner(both, tmp_path / "both")
    assert [function.symbol for function in single.group.functions] == ["pkc_part_0_softmax"]
    for batch in (1, 3):
        x, m = random((batch, 4, 6, columns), dtype), random((batch, 1, 1, columns), dtype)
        scaled = x * np.asarray(0.5, dtype) + m
        close(single(x, m), softmax(scaled))
        first, second = double(x, m)
        close(first, softmax(scaled))
        close(second, np.log(softmax(scaled)), 10)


def test_softmax_along_an_axis_before_axes_of_one(tmp_path: Path) -> None:
    run = Runner(partition([variable("x", (2, 10, 1, 1))], lambda e, x: e(op.nn.softmax(x, 1))), tmp_path)
    data = random((2, 10, 1, 1))
    close(run(data), softmax(data.reshape(2, 10)).reshape(2, 10, 1, 1))


def test_softmax_of_rows_with_infinities_and_nan(tmp_path: Path) -> None:
    run = Runner(partition([variable("x", (4, 20))], lambda e, x: e(op.nn.softmax(x, -1))), tmp_path)
    data = random((4, 20))
    data[0, 3] = -np.inf
    data[1, 5] = np.nan
    data[2] = -np.inf
    with np.errstate(invalid="ignore"):
        wanted = softmax(data)
    np.testing.assert_allclose(run(data), wanted, rtol=1e-5, equal_nan=True)
    assert run(data)[0, 3] == 0


def layer_norm(x: np.ndarray, axes: int, epsilon: float) -> np.ndarray:
    """Over the last axes."""
    over = tuple(range(-axes, 0))
    centered = wide(x) - wide(x).mean(over, keepdims=True)
    return centered / np.sqrt((centered**2).mean(over, keepdims=True) + epsilon)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("axes", [1, 2])
def test_layer_norm_of_a_sum_that_is_a_result_too(dtype: str, axes: int, tmp_path: Path) -> None:
    n = symbol()
    shape = (n, 5, 7)
    inner = shape[3 - axes :]
    arguments = [variable(name, shape, dtype) for name in "xy"]
    arguments += [variable(name, inner, dtype) for name in ("gamma", "beta")]

    def body(e, x, y, gamma, beta):
        total = e(op.add(x, y))
        return total, e(op.nn.layer_norm(total, gamma, beta, list(range(-axes, 0)), 1e-3))

    run = Runner(partition(arguments, body), tmp_path)
    assert len(run.group.functions) == 1
    for batch in (1, 4):
        x, y, gamma, beta = (
            random((batch, *shape[1:]) if len(argument.ty.shape.values) == 3 else inner, dtype)
            for argument in arguments
        )
        gamma, beta = random(inner, dtype), random(inner, dtype)
        total, got = run(x, y, gamma, beta)
        np.testing.assert_array_equal(total, x + y)
        close(got, layer_norm(x + y, axes, 1e-3) * gamma + beta, 4)


@pytest.mark.parametrize("square", ["power", "multiply"])
def test_decomposed_layer_norm(square: str, tmp_path: Path) -> None:
    def body(e, x, gamma, beta):
        centered = e(op.subtract(x, e(op.mean(x, [-1], keepdims=True))))
        two = relax.const(2.0, "float32")
        squared = e(op.power(centered, two) if square == "power" else op.multiply(centered, centered))
        variance = e(op.add(e(op.mean(squared, [-1], keepdims=True)), relax.const(1e-5, "float32")))
        normal = e(op.divide(centered, e(op.sqrt(variance))))
        return e(op.add(e(op.multiply(normal, gamma)), beta))

    arguments = [variable("x", (symbol(), 24)), variable("gamma", (24,)), variable("beta", (24,))]
    run = Runner(partition(arguments, body, [1, 2]), tmp_path)
    assert [function.symbol for function in run.group.functions] == ["pkc_part_0_layer_norm"]
    x, gamma, beta = random((5, 24)), random((24,)), random((24,))
    close(run(x, gamma, beta), layer_norm(x, 1, 1e-5) * gamma + beta, 4)
