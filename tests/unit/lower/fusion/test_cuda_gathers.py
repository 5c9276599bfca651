"""Gathers are fused with what makes their indices and with what reads their elements on GPUs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
import tvm
from tvm import relax, tirx

from packager.transforms.clamp_indices import clamp_indices
from tests.unit.lower.fusion.test_cuda_reductions import joined
from tests.unit.lower.test_cuda_shared_rows import kernels, run

R = relax.op
GENERATOR = np.random.default_rng(11)
F = "float32"


@pytest.mark.parametrize("axis", [0, 1, 2])
def test_elements_are_found_by_indices_that_the_kernel_computes(axis: int) -> None:
    shape, taken = (6, 20, 12), [6, 20, 12]
    taken[axis] = 5

    def make(emit: Any, x: Any, index: Any, moved: Any) -> Any:
        found = emit(R.gather_elements(x, emit(R.add(index, moved)), axis=axis))
        return emit(R.tanh(emit(R.multiply(found, found))))

    types = [(shape, F), (tuple(taken), "int64"), (tuple(taken), "int64")]
    module, _ = joined(make, *types)
    assert kernels(module) == 1
    x = GENERATOR.normal(size=shape).astype(F)
    index = GENERATOR.integers(-shape[axis], shape[axis], taken)
    moved = GENERATOR.integers(0, 1, taken)
    wanted = np.tanh(np.take_along_axis(x, index % shape[axis], axis) ** 2)
    np.testing.assert_allclose(run(module, x, index, moved)[0], wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("length", "batch"), [(1, 0), (2, 0), (3, 0), (1, 1), (2, 1)])
def test_tuples_find_slices(length: int, batch: int) -> None:
    shape, count = (4, 7, 5), 9

    def make(emit: Any, x: Any, index: Any) -> Any:
        return emit(R.tanh(emit(R.gather_nd(x, index, batch))))

    outer = shape[:batch]
    module, _ = joined(make, (shape, F), ((*outer, count, length), "int64"))
    assert kernels(module) == 1
    x = GENERATOR.normal(size=shape).astype(F)
    extents = np.array(shape[batch : batch + length])
    index = GENERATOR.integers(-extents, extents, (*outer, count, length))
    places = tuple(np.moveaxis(index % extents, -1, 0))
    first = tuple(np.ogrid[tuple(slice(extent) for extent in (*outer, count))][:batch])
    np.testing.assert_allclose(run(module, x, index)[0], np.tanh(x[(*first, *places)]), rtol=1e-5, atol=1e-6)


def test_what_is_beyond_the_ends_is_within() -> None:
    def make(emit: Any, x: Any, index: Any) -> Any:
        return emit(R.tanh(emit(R.gather_elements(x, index, axis=0))))

    module, _ = joined(make, ((6, 4), F), ((2, 4), "int64"))
    functions = {
        name: clamp_indices(function) if isinstance(function, tirx.PrimFunc) else function
        for name, function in module.functions.items()
    }
    x = GENERATOR.normal(size=(6, 4)).astype(F)
    found = run(tvm.IRModule(functions), x, np.array([[6, 100, -7, -100], [1 << 40, -(1 << 40), 5, 0]]))[0]
    assert np.isclose(found[..., None], np.tanh(x).ravel(), atol=1e-6).any(-1).all()


def test_each_gather_computes_the_indices_that_it_broadcasts() -> None:
    """Indices of 64-bit integers for each channel of each point took longer than what they were for."""

    def make(emit: Any, x: Any, y: Any, index: Any) -> Any:
        wide = emit(R.broadcast_to(emit(R.expand_dims(index, [1])), (3, 16, 40)))
        own = emit(
            R.where(emit(R.less(wide, relax.const(0, "int64"))), emit(R.add(wide, relax.const(30, "int64"))), wide)
        )
        found = [emit(R.tanh(emit(R.gather_elements(each, own, axis=2)))) for each in (x, y)]
        return emit(relax.Tuple(found))

    module, _ = joined(make, ((3, 16, 30), F), ((3, 16, 30), F), ((3, 40), "int64"))
    assert kernels(module) == 2
    x, y = (GENERATOR.normal(size=(3, 16, 30)).astype(F) for _ in range(2))
    index = GENERATOR.integers(-30, 30, (3, 40))
    wide = np.broadcast_to(index[:, None] % 30, (3, 16, 40))
    for found, each in zip(run(module, x, y, index), (x, y), strict=True):
        np.testing.assert_allclose(found, np.tanh(np.take_along_axis(each, wide, 2)), rtol=1e-5, atol=1e-6)
