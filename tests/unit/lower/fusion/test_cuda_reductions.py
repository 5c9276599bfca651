"""A reduction, what makes its operand and what is computed of its result are one kernel on GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
import tvm
from tvm import relax
from tvm.ir import Op

from packager.graph.dataflow import bindings_of
from packager.ir.model import CallSource
from packager.lower.cuda.algorithms.scatters.sorted_scatter import SCATTER_SORTED
from packager.lower.cuda.fusion.reductions import join_reductions
from tests.unit.lower.test_cuda_shared_rows import fused, kernels, run

R = relax.op
GENERATOR = np.random.default_rng(5)
F = "float32"
ROWS, COLUMNS = (("rows", (24, 512), 1), ("columns", (6, 80, 32), 1))
MADE = {
    "sum": (R.sum, np.sum),
    "mean": (R.mean, np.mean),
    "max": (R.max, np.max),
    "min": (R.min, np.min),
}


def joined(make: Any, *types: tuple[tuple[Any, ...], str]) -> tuple[tvm.IRModule, list[CallSource]]:
    """Return the module of what ``make`` computes as it is scheduled, with the sources of its bindings."""
    return join_reductions(*fused(make, *types))


@pytest.mark.parametrize(("shape", "axis"), [each[1:] for each in (ROWS, COLUMNS)], ids=[ROWS[0], COLUMNS[0]])
@pytest.mark.parametrize("name", MADE)
def test_one_kernel_makes_reduces_and_finishes(name: str, shape: tuple[int, ...], axis: int) -> None:
    reduce, wanted = MADE[name]

    def make(emit: Any, x: Any, y: Any, z: Any) -> Any:
        return emit(R.tanh(emit(R.add(emit(reduce(emit(R.multiply(x, y)), axis)), z))))

    kept = tuple(extent for at, extent in enumerate(shape) if at != axis)
    module, sources = joined(make, (shape, F), (shape, F), (kept, F))
    assert kernels(module) == len(sources) == 1
    x, y = (GENERATOR.normal(size=shape).astype(F) for _ in range(2))
    z = GENERATOR.normal(size=kept).astype(F)
    np.testing.assert_allclose(run(module, x, y, z)[0], np.tanh(wanted(x * y, axis) + z), rtol=1e-4, atol=1e-5)


def test_both_sources_are_kept() -> None:
    def make(emit: Any, x: Any) -> Any:
        return emit(R.tanh(emit(R.max(x, 1))))

    _, sources = joined(make, ((24, 512), F))
    assert [len(source.ops) for source in sources] == [2]


def test_what_others_read_stays_apart() -> None:
    def make(emit: Any, x: Any, y: Any) -> Any:
        made = emit(R.multiply(x, y))
        found = emit(R.max(made, 1))
        return emit(relax.Tuple([made, found, emit(R.tanh(found))]))

    module, sources = joined(make, ((24, 512), F), ((24, 512), F))
    assert kernels(module) == 3
    assert len(sources) == len(bindings_of(module["main"]))


def test_what_is_broadcast_back_is_no_end_of_a_reduction() -> None:
    def make(emit: Any, x: Any, y: Any) -> Any:
        return emit(R.multiply(y, emit(R.tanh(emit(R.max(x, [1], keepdims=True))))))

    module, _ = joined(make, ((24, 512), F), ((24, 512), F))
    x, y = (GENERATOR.normal(size=(24, 512)).astype(F) for _ in range(2))
    assert kernels(module) == 2
    np.testing.assert_allclose(run(module, x, y)[0], y * np.tanh(x.max(1, keepdims=True)), rtol=1e-5, atol=1e-6)


def test_windows_that_overlap_are_made_once() -> None:
    """Each element of what is pooled would be computed for each window that it is in."""

    def make(emit: Any, x: Any) -> Any:
        return emit(R.nn.max_pool2d(emit(R.tanh(x)), (3, 3), (1, 1), (1, 1), layout="NHWC"))

    module, _ = joined(make, ((2, 16, 16, 32), F))
    assert kernels(module) == 2


@pytest.mark.parametrize("columns", [128, 6, 3])
def test_scatters_compute_what_becomes_of_their_sums(columns: int) -> None:
    places, number = 50, 400

    def make(emit: Any, data: Any, order: Any, starts: Any, updates: Any, scale: Any) -> Any:
        attributes = tvm.ir.make_node("ir.DictAttrs", axis=0, reduction="add")
        made = emit(relax.Call(Op.get(SCATTER_SORTED), [data, order, starts, updates], attributes))
        total = emit(R.divide(made, scale))
        return emit(R.multiply(total, emit(R.sigmoid(total))))

    types = [((places, columns), F), ((number,), "int32"), ((places + 1,), "int32")]
    module, _ = joined(make, *types, ((number, columns), F), ((places, columns), F))
    assert kernels(module) == 1
    index = GENERATOR.integers(0, places, number)
    order = np.argsort(index, kind="stable").astype("int32")
    starts = np.searchsorted(np.sort(index), np.arange(places + 1)).astype("int32")
    data, updates = (GENERATOR.normal(size=(extent, columns)).astype(F) for extent in (places, number))
    scale = GENERATOR.uniform(1, 2, (places, columns)).astype(F)
    wanted = data.copy()
    np.add.at(wanted, index, updates)
    wanted /= scale
    wanted *= 1 / (1 + np.exp(-wanted))
    np.testing.assert_allclose(run(module, data, order, starts, updates, scale)[0], wanted, rtol=1e-5, atol=1e-5)


def test_extents_that_are_not_known() -> None:
    def make(emit: Any, x: Any, y: Any) -> Any:
        return emit(R.tanh(emit(R.sum(emit(R.multiply(x, y)), 1))))

    n = tvm.tirx.Var("n", "int64")
    module, _ = joined(make, ((n, 512), F), ((n, 512), F))
    assert kernels(module) == 1
