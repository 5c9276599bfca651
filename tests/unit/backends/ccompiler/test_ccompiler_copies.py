"""Data movement by the ccompiler backend, against numpy: permutations in any order, and chains, as one copy each."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from ccompiler_runner import Runner, partition, variable
from tvm import tirx
from tvm.relax import op

pytestmark = pytest.mark.slow

Body = Callable[..., Any]
ORDERS = [order for order in itertools.permutations(range(4)) if order != (0, 1, 2, 3)]


def numbers(shape: tuple[int, ...], dtype: str = "float32") -> np.ndarray:
    """Return elements that differ as far as the type has so many."""
    return np.arange(np.prod(shape)).astype(dtype).reshape(shape)


def rolled(e: Body, x: Any, axis: int, shift: int, extent: int) -> Any:
    head = e(op.strided_slice(x, [axis], [shift], [extent]))
    return e(op.concat([head, e(op.strided_slice(x, [axis], [0], [shift]))], axis))


def windows(e: Body, x: Any) -> Any:
    whole = rolled(e, rolled(e, x, 1, 3, 14), 2, 3, 21)
    parts = e(op.permute_dims(e(op.reshape(whole, [-1, 2, 7, 3, 7, 5])), [0, 1, 3, 2, 4, 5]))
    return e(op.permute_dims(e(op.reshape(parts, [-1, 49, 5])), [0, 2, 1]))


def windows_of(x: np.ndarray) -> np.ndarray:
    parts = np.roll(x, (-3, -3), (1, 2)).reshape(-1, 2, 7, 3, 7, 5).transpose(0, 1, 3, 2, 4, 5)
    return parts.reshape(-1, 49, 5).transpose(0, 2, 1)


def merged(e: Body, x: Any) -> Any:
    cuts = [e(op.strided_slice(x, [1, 2], [i, j], [14, 21], [2, 2])) for j in (0, 1) for i in (0, 1)]
    cuts = [e(op.strided_slice(cut, [2], [0], [10])) for cut in cuts]
    return e(op.concat(cuts, -1))


def merged_of(x: np.ndarray) -> np.ndarray:
    return np.concatenate([x[:, i::2, j::2][:, :, :10] for j in (0, 1) for i in (0, 1)], -1)


def shuffled(e: Body, x: Any) -> Any:
    parts = e(op.reshape(x, [-1, 7, 2, 7, 3, 5]))
    return e(op.permute_dims(parts, [0, 5, 1, 4, 3, 2]))


def shuffled_of(x: np.ndarray) -> np.ndarray:
    return x.reshape(-1, 7, 2, 7, 3, 5).transpose(0, 5, 1, 4, 3, 2)


def padded(mode: str) -> Body:
    def body(e: Body, x: Any) -> Any:
        return e(op.flip(e(op.nn.pad(x, [0, 0, 2, 1, 0, 3, 1, 0], mode, 3.0)), 2))

    return body


def padded_of(mode: str) -> Callable[[np.ndarray], np.ndarray]:
    more = {"constant_values": 3} if mode == "constant" else {}
    name = {"replicate": "edge", "circular": "wrap"}.get(mode, mode)
    return lambda x: np.flip(np.pad(x, ((0, 0), (2, 1), (0, 3), (1, 0)), name, **more), 2)


def spread(e: Body, x: Any) -> Any:
    apart = e(op.reshape(x, [-1, 14, 1, 21, 5]))
    return e(op.permute_dims(e(op.broadcast_to(apart, (2, 14, 3, 21, 5))), [0, 1, 3, 2, 4]))


CASES: dict[str, tuple[Body, Callable[[np.ndarray], np.ndarray]]] = {
    "windows of what is rolled": (windows, windows_of),
    "patches that are merged": (merged, merged_of),
    "space to depth": (shuffled, shuffled_of),
    "broadcast": (spread, lambda x: np.broadcast_to(x.reshape(2, 14, 1, 21, 5), (2, 14, 3, 21, 5)).swapaxes(2, 3)),
    "repeated": (
        lambda e, x: e(op.repeat(e(op.tile(x, [1, 2, 1, 1])), 3, 3)),
        lambda x: np.tile(x, (1, 2, 1, 1)).repeat(3, 3),
    ),
    **{mode: (padded(mode), padded_of(mode)) for mode in ("constant", "replicate", "reflect", "circular")},
}  # fmt: skip


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CASES)
def test_chains_are_one_copy(name: str, tmp_path: Path) -> None:
    body, expected = CASES[name]
    batch = 2 if name == "broadcast" else tirx.Var("n", "int64")
    run = Runner(partition([variable("x", (batch, 14, 21, 5))], body), tmp_path)
    assert [function.symbol.split("_")[-1] for function in run.group.functions] == ["copy"]
    for count in (2,) if name == "broadcast" else (1, 3):
        x = numbers((count, 14, 21, 5))
        np.testing.assert_array_equal(run(x), expected(x))


@pytest.mark.parametrize("dtype", ["float16", "float64", "int8", "int64", "bool"])
def test_types(dtype: str, tmp_path: Path) -> None:
    def body(e: Body, x: Any) -> Any:
        return e(op.nn.pad(x, [0, 0, 1, 2, 1, 1, 0, 0], "constant", 1.0)), windows(e, x)

    run = Runner(partition([variable("x", (2, 14, 21, 5), dtype)], body), tmp_path)
    x = numbers((2, 14, 21, 5), dtype)
    first, second = run(x)
    np.testing.assert_array_equal(first, np.pad(x, ((0, 0), (1, 2), (1, 1), (0, 0)), constant_values=1))
    np.testing.assert_array_equal(second, windows_of(x))


def test_what_cannot_be_one_is_several(tmp_path: Path) -> None:
    n, m = tirx.Var("n", "int64"), tirx.Var("m", "int64")

    def body(e: Body, x: Any) -> Any:
        turned = e(op.permute_dims(x, [1, 0]))
        return e(op.permute_dims(e(op.reshape(turned, [n, m])), [1, 0]))  # as long as this, but of no axes of it

    run = Runner(partition([variable("x", (n, m))], body), tmp_path)
    assert [function.symbol.split("_")[-1] for function in run.group.functions] == ["copy", "copy"]
    for shape in ((3, 5), (40, 33)):
        np.testing.assert_array_equal(run(numbers(shape)), numbers(shape).T.reshape(shape).T)


def test_parts_between_loops(tmp_path: Path) -> None:
    """What is computed before a chain is stored once; what follows a part of it reads it too."""

    def body(e: Body, x: Any, y: Any) -> Any:
        total = e(op.nn.relu(e(op.add(x, y))))
        half = e(op.strided_slice(total, [2], [0], [9]))
        whole = e(op.concat([half, e(op.flip(half, 2))], 2))
        return e(op.multiply(whole, whole)), half

    run = Runner(partition([variable(name, (3, 17, 20)) for name in "xy"], body), tmp_path)
    x, y = numbers((3, 17, 20)) - 500, numbers((3, 17, 20))
    first, second = run(x, y)
    half = np.maximum(x + y, 0)[:, :, :9]
    np.testing.assert_array_equal(second, half)
    np.testing.assert_array_equal(first, np.concatenate([half, half[:, :, ::-1]], 2) ** 2)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("order", ORDERS, ids=str)
def test_every_order_of_symbolic_axes(order: tuple[int, ...], tmp_path: Path) -> None:
    dims = [tirx.Var(name, "int64") for name in "abcd"]
    run = Runner(partition([variable("x", dims)], lambda e, x: e(op.permute_dims(x, list(order)))), tmp_path)
    for shape in ((1, 1, 1, 1), (2, 3, 4, 5), (3, 17, 2, 33), (1, 300, 1, 16), (2, 16, 32, 48)):
        np.testing.assert_array_equal(run(numbers(shape)), numbers(shape).transpose(order))


@pytest.mark.parametrize("dtype", ["float32", "float16", "float64", "int8", "int64", "bool"])
def test_types_of_permutations(dtype: str, tmp_path: Path) -> None:
    n = tirx.Var("n", "int64")
    arguments = [variable("x", (n, 35, 50), dtype), variable("y", (n, 4, 6, 3), dtype)]

    def body(e, x, y):
        return e(op.permute_dims(x, [0, 2, 1])), e(op.permute_dims(y, [2, 0, 1, 3]))

    run = Runner(partition(arguments, body), tmp_path)
    for batch in (1, 3):
        x, y = numbers((batch, 35, 50), dtype), numbers((batch, 4, 6, 3), dtype)
        first, second = run(x, y)
        np.testing.assert_array_equal(first, x.transpose(0, 2, 1))
        np.testing.assert_array_equal(second, y.transpose(2, 0, 1, 3))


def test_what_follows_has_a_loop_of_its_own(tmp_path: Path) -> None:
    n = tirx.Var("n", "int64")

    def body(e, x):
        return e(op.nn.relu(e(op.permute_dims(x, [1, 0]))))

    run = Runner(partition([variable("x", (n, 19))], body), tmp_path)
    assert [function.symbol.split("_")[-1] for function in run.group.functions] == ["copy", "elementwise"]
    x = numbers((20, 19)) - 100
    np.testing.assert_array_equal(run(x), np.maximum(x.T, 0))


@pytest.mark.parametrize("shape", [(), (1,), (3,), (2, 1, 3)])
def test_broadcasts_alone(shape: tuple[int, ...], tmp_path: Path) -> None:
    """A number, too, which has no axes."""
    run = Runner(partition([variable("x", shape)], lambda e, x: e(op.broadcast_to(x, [4, 2, 5, 3]))), tmp_path)
    x = numbers(shape)
    np.testing.assert_array_equal(run(x), np.broadcast_to(x, (4, 2, 5, 3)))


def test_single_elements_far_apart_are_not_written_one_by_one(tmp_path: Path) -> None:
    """Phases of a transposed convolution, channels first in the end: two copies, of runs and of tiles."""
    arguments = [variable(f"x{phase}", (2, 6, 5, 21)) for phase in range(4)]

    def body(e: Body, *phases: Any) -> Any:
        rows = e(op.reshape(e(op.concat(phases, 3)), [2, 6, 20, 21]))
        return e(op.permute_dims(rows, [0, 3, 1, 2]))

    run = Runner(partition(arguments, body), tmp_path)
    arrays = [numbers((2, 6, 5, 21)) + 10000 * phase for phase in range(4)]
    wanted = np.stack(arrays, 3).reshape(2, 6, 20, 21).transpose(0, 3, 1, 2)
    np.testing.assert_array_equal(run(*arrays), wanted)
    assert len(run.group.functions) == 2


@pytest.mark.parametrize("axis", [1, 2])
def test_repeated_results_of_a_convolution_are_all_written(axis: int, tmp_path: Path) -> None:
    """As frames of phonemes are made: rows that are repeated cannot be written where they go once."""
    rng, shape = np.random.default_rng(7), (1, 3, 20, 32) if axis == 1 else (1, 20, 3, 32)

    def body(e: Any, x: Any, w: Any) -> Any:
        made = e(op.nn.conv1d(x, w, padding=1, data_layout="NWC", kernel_layout="OWI", out_layout="NWC"))
        return e(op.broadcast_to(e(op.expand_dims(made, axis)), shape))

    run = Runner(partition([variable("x", (1, 20, 5)), variable("w", (32, 3, 5))], body, [1]), tmp_path)
    x, w = (rng.standard_normal(size).astype("f4") for size in ((1, 20, 5), (32, 3, 5)))
    padded = np.pad(x, ((0, 0), (1, 1), (0, 0)))
    lines = sum(padded[:, tap : tap + 20] @ w[:, tap].T for tap in range(3))
    got = run(x, w)
    np.testing.assert_allclose(got, np.broadcast_to(np.expand_dims(lines, axis), shape), rtol=1e-5, atol=1e-5)
