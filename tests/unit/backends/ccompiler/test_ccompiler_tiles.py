"""Whether there is a tile for every part of a product that a thread may be given, and what tiles do at the end."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")

from ccompiler_runner import Runner, partition, variable
from test_ccompiler_families import close, random
from tvm import relax, tirx
from tvm.relax import op

from packager.backends.ccompiler.core.machine import COLUMNS, KINDS, Machine
from packager.backends.ccompiler.gemm.tiles import (
    BAND,
    NEAR_STEPS,
    heights_of,
    product_rows,
    registers_of,
    tiles_of,
)
from packager.backends.ccompiler.module import render_module

MACHINES = [Machine(64, 32, "avx512"), Machine(32, 16, "avx2"), Machine(16, 16, "sse2"), Machine(16, 32, "aarch64")]


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_units_of_any_bands_have_their_tiles(machine: Machine, kind: str) -> None:
    """Tiles are as wide as they can be, and half of that while columns are left: products.c.j2 does the same."""
    columns, rows = [16, 37, 40, 64, 72, 96, 128, 200, 264, 512], [1, 2, 5, 8, 14, 15, 56]
    depths = [None, NEAR_STEPS, NEAR_STEPS + 1]
    missing = {
        case: found
        for case in itertools.product(rows, columns, [False, True], [BAND, BAND // 2], depths)
        if (found := missing_tiles(machine, kind, *case))
    }
    assert not missing


def missing_tiles(
    machine: Machine, kind: str, rows: int, columns: int, grouped: bool, band: int, steps: int | None
) -> set[tuple[int, int, bool]]:
    """Return the tiles, (rows, panels, half of the last), that some unit needs and that are not made.

    ``steps`` are those of dense and conv2d, whose tiles may have fewer rows.
    """
    registers = registers_of(machine, KINDS[kind].name)
    most = product_rows(machine, KINDS[kind].name, (rows,), steps) if steps else registers.rows
    half = kind == "float32" and 0 < columns % COLUMNS <= COLUMNS // 2
    made = tiles_of(machine, KINDS[kind], (rows,), columns, band, most=most, grouped=grouped, half=half)
    needed = set()
    both = grouped and 2 * rows <= most
    heights = {rows, 2 * rows} if both else heights_of(rows, most)
    whole, step = -(-columns // COLUMNS), band // COLUMNS
    for first in range(0, whole, step):
        for last in {*range(first + step, whole, step), whole}:
            left, wide = last - first, registers.panels(max(heights) if both else rows)
            while left > 0:
                while wide > left:
                    wide //= 2
                needed |= {(height, wide, half and wide == left and last == whole) for height in heights}
                left -= wide
    return needed - {(tile.rows, tile.panels, tile.half) for tile in made}


def test_tiles_of_deep_products_are_tall() -> None:
    """Tiles are short where their weights are near; elsewhere each byte of them is to serve many rows."""
    wide, narrow = MACHINES[:2]
    rows = {steps: product_rows(wide, "f32", (56,), steps) for steps in (64, NEAR_STEPS, NEAR_STEPS + 1, 4096)}
    assert rows == {64: 7, NEAR_STEPS: 7, NEAR_STEPS + 1: 14, 4096: 14}
    assert product_rows(wide, "f32", (16, 8), 64) == 8
    assert product_rows(narrow, "f32", (56,), 64) == product_rows(narrow, "f32", (56,), 4096) == 6


@pytest.mark.parametrize(
    ("depths", "fetches"), [((64, 128), False), ((1024, 1024), True), ((8, "k"), True)], ids=["few", "many", "any"]
)
def test_weights_are_fetched_where_they_may_be_far_away(depths: Sequence[Any], fetches: bool) -> None:
    """What counts is how many there are in all partitions together: 192 or 2048 rows of 64 columns here."""
    extents = [tirx.Var(depth, "int64") if isinstance(depth, str) else depth for depth in depths]
    partitions = [
        partition(
            [variable("x", (8, k)), variable("w", (k, 64))], lambda e, x, w: e(relax.op.matmul(x, w)), name=f"p{i}"
        )
        for i, k in enumerate(extents)
    ]
    source, groups, _ = render_module(partitions, (), MACHINES[0])
    assert len(groups) == len(depths)
    assert ("__builtin_prefetch(next" in source) == fetches


@pytest.mark.parametrize(("depth", "columns"), [(64, 64), (40_000, 128)], ids=["cache", "memory"])
def test_a_row_reads_more_panels_at_once_from_memory(depth: int, columns: int) -> None:
    arguments = [variable("x", (1, depth)), variable("w", (depth, 128))]
    part = partition(arguments, lambda e, x, w: e(relax.op.matmul(x, w)), [1])
    source, _, _ = render_module([part], (), MACHINES[0])
    assert set(re.findall(r"void pk_tile_f32_1x(\d+)", source)) >= {str(columns)}
    assert ("void pk_tile_f32_1x128" in source) == (columns == 128)


# Bounds after a bias that tiles compute in registers, and one that they do not.
FINISHES: dict[str, Callable[..., Any]] = {
    "bias alone": lambda _, x: x,
    "relu": lambda e, x: e(relax.op.nn.relu(x)),
    "clip": lambda e, x: e(relax.op.clip(x, -0.5, 0.75)),
    "upper bound": lambda e, x: e(relax.op.minimum(x, relax.const(0.75, "float32"))),
    "two bounds": lambda e, x: e(
        relax.op.minimum(e(relax.op.maximum(x, relax.const(-0.5, "float32"))), relax.const(0.75, "float32"))
    ),
    "bounds that cross": lambda e, x: e(
        relax.op.maximum(e(relax.op.minimum(x, relax.const(-0.5, "float32"))), relax.const(0.75, "float32"))
    ),
    "read twice": lambda e, x: e(relax.op.multiply(x, e(relax.op.nn.relu(x)))),
}
BOUNDS = {"relu": (0, np.inf), "clip": (-0.5, 0.75), "upper bound": (-np.inf, 0.75), "two bounds": (-0.5, 0.75)}
BOUNDS["bounds that cross"] = (0.75, 0.75)


@pytest.mark.slow
@pytest.mark.sampled(3, every_value=False)
@pytest.mark.parametrize("machine", ["avx2", "avx512", "aarch64"])
@pytest.mark.parametrize("finish", FINISHES)
def test_epilogues_in_registers(finish: str, machine: str, tmp_path: Path) -> None:
    """Panels that are not whole, sums of several passes, and NaN, which stays."""
    march = {"avx2": "x86-64-v3", "avx512": "x86-64-v4", "aarch64": "x86-64-v2"}[machine]
    chosen = Machine(16, 32, "aarch64") if machine == "aarch64" else None
    for number, (rows, depth, columns) in enumerate([(61, 150, 57), (3, 2100, 96), (29, 7, 328), (1, 5, 3)]):
        arguments = [variable("x", (rows, depth)), variable("w", (depth, columns)), variable("b", (columns,))]

        def body(e, x, w, b):
            return FINISHES[finish](e, e(relax.op.add(e(relax.op.matmul(x, w)), b)))

        folder = tmp_path / str(number)
        run = Runner(partition(arguments, body, [1, 2]), folder, f"ccompiler -march={march}", machine=chosen)
        source = (folder / "ccompiler.c").read_text()
        whole = columns % 16 == 0 or (depth <= 1024 and columns >= 48)
        assert ("pk_finish_t finish =" in source) == (whole and finish not in ("read twice", "bounds that cross"))
        data, weights, bias = random((rows, depth)), random((depth, columns)), random((columns,))
        data[0, -1] = np.nan
        exact = data.astype(np.float64) @ weights + bias
        wanted = (
            exact * np.maximum(exact, 0)
            if finish == "read twice"
            else np.clip(exact, *BOUNDS.get(finish, (-np.inf, np.inf)))
        )
        got = run(data, weights, bias)
        assert np.isnan(got[0]).all()
        close(got[1:], wanted[1:], depth * (16 if finish == "read twice" else 1))


@pytest.mark.slow
@pytest.mark.parametrize("machine", [None, Machine(16, 16, "sse2"), Machine(64, 32, "avx512")], ids=str)
@pytest.mark.parametrize(
    ("rows", "depth", "columns"), [(1, 7, 50), (1, 300, 200), (2, 129, 64), (3, 5, 1), (4, 40, 71)]
)
def test_few_rows_pack_nothing(machine: Machine | None, rows: int, depth: int, columns: int, tmp_path: Path) -> None:
    if machine is not None and machine.name == "avx512" and " avx512vl " not in Path("/proc/cpuinfo").read_text():
        pytest.skip("no AVX-512")

    def body(e: Any, x: Any, w: Any, b: Any) -> Any:
        return e(op.nn.relu(e(op.add(e(op.matmul(x, w)), b))))

    shapes = (3, 2, rows, depth), (3, 2, depth, columns), (columns,)
    part = partition([variable(name, shape) for name, shape in zip("xwb", shapes, strict=True)], body)
    flags = () if machine is None else ("-O2", *(["-march=x86-64-v4"] if machine.name == "avx512" else []))
    run = Runner(part, tmp_path, flags=flags, machine=machine)
    assert len(run.group.functions) == 1
    assert not run.group.workspaces
    x, w, b = (np.random.default_rng(i).standard_normal(s).astype("f4") for i, s in enumerate(shapes))
    wanted = np.maximum(x.astype("f8") @ w + b, 0)
    np.testing.assert_allclose(run(x, w, b), wanted, rtol=0, atol=2e-6 * np.sqrt(depth) * 3)


# Axes of the rows of a matrix, as it lies, of [batch, heads, columns, depth], and how it is permuted.
PERMUTED = {"swapped": ((0, 1, 2, 3), (0, 1, 3, 2)), "of heads": ((0, 2, 1, 3), (0, 2, 3, 1))}


@pytest.mark.slow
@pytest.mark.parametrize("machine", [*MACHINES[2:], None], ids=lambda machine: machine.name if machine else "own")
@pytest.mark.parametrize(
    ("rows", "depth", "columns", "lies"),
    [(1, 37, 130, "swapped"), (2, 64, 67, "of heads"), (3, 16, 5, "swapped"), (4, 80, 64, "of heads")],
)
def test_few_rows_times_a_transposed_matrix(
    machine: Machine | None, rows: int, depth: int, columns: int, lies: str, tmp_path: Path
) -> None:
    """Nothing is transposed: a function for dot products of rows, and what follows, for any number of batches."""
    rng = np.random.default_rng(11)
    order, axes = PERMUTED[lies]
    extents, n = (2, 3, columns, depth), tirx.Var("n", "int64")
    shape = tuple(extents[axis] for axis in order)
    x, w, bias = variable("x", (n, 3, rows, depth)), variable("w", (n, *shape[1:])), variable("b", (columns,))

    def body(e: Any, x: Any, w: Any, bias: Any) -> Any:
        return e(op.nn.relu(e(op.add(e(op.matmul(x, e(op.permute_dims(w, axes)))), bias))))

    target = "ccompiler" if machine is None else "ccompiler -march=x86-64-v2"
    run = Runner(partition([x, w, bias], body), tmp_path, target, machine=machine)
    assert len(run.group.functions) == 1
    data, matrix = rng.standard_normal((2, 3, rows, depth)).astype("f4"), rng.standard_normal(shape).astype("f4")
    shift = rng.standard_normal(columns).astype("f4")
    wanted = np.maximum(data.astype("f8") @ matrix.transpose(axes).astype("f8") + shift, 0)
    np.testing.assert_allclose(run(data, matrix, shift), wanted, rtol=1e-5, atol=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize("batched", [False, True])
def test_matrix_times_a_vector(batched: bool, tmp_path: Path) -> None:
    """One column is one row of dot products; the vector may be a constant, and the number of rows symbolic."""
    rng = np.random.default_rng(12)
    n = tirx.Var("n", "int64")
    x = variable("x", (4, n, 33) if batched else (3, n, 33))
    vector, bias = variable("v", (4, 33, 1) if batched else (33, 1)), variable("b", (1,))

    def body(e: Any, x: Any, vector: Any, bias: Any) -> Any:
        return e(op.sigmoid(e(op.add(e(op.matmul(x, vector)), bias))))

    run = Runner(partition([x, vector, bias], body, () if batched else [1]), tmp_path)
    assert len(run.group.functions) == 1
    data = rng.standard_normal((4 if batched else 3, 71, 33)).astype("f4")
    column, shift = rng.standard_normal((4, 33, 1) if batched else (33, 1)).astype("f4"), np.array([0.5], "f4")
    wanted = 1 / (1 + np.exp(-(data.astype("f8") @ column.astype("f8") + shift)))
    np.testing.assert_allclose(run(data, column, shift), wanted, rtol=1e-5, atol=1e-6)
