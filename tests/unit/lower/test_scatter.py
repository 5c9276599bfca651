"""Scatters, and gathers of slices, on CPUs: any axis, indices for each element or each slice, updates in order."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from tvm import relax, tirx
from tvm_machine import compute

from packager.graph.dataflow import bindings_of, operator_of
from packager.lower.devices import CPU_LEGALIZERS
from packager.transforms.simplify.narrow_indices import narrow_indices

REDUCTIONS: dict[str, Callable[..., Any]] = {"add": np.add, "mul": np.multiply, "min": np.minimum, "max": np.maximum}
RANDOM = np.random.default_rng(3)
# Extents of the data, the axis, the number of indices along it, and whether all columns of a slice have one.
CASES = {
    "rows in bands": ((40, 96), 0, 70, True),
    "rows of a prime number of columns": ((6, 67), 0, 9, True),
    "slices of several images": ((2, 9, 3, 5), 1, 20, True),
    "elements of the last axis": ((3, 8), 1, 30, False),
    "elements of rows": ((7, 130), 0, 11, False),
}


def module(build: Callable[..., Any], *types: relax.TensorType) -> Any:
    builder = relax.BlockBuilder()
    parameters = [relax.Var(f"x{number}", ty) for number, ty in enumerate(types)]
    with builder.function("main", parameters):
        with builder.dataflow():
            result = builder.emit_output(build(builder, *parameters))
        builder.emit_func_output(result)
    return builder.get()


def scattered(data: np.ndarray, indices: np.ndarray, updates: np.ndarray, axis: int, reduction: str) -> np.ndarray:
    result = data.astype("f8")
    for at in np.ndindex(*updates.shape):
        place = list(at)
        place[axis] = int(indices[at])
        old, new = result[tuple(place)], float(updates[at])
        result[tuple(place)] = new if reduction == "update" else REDUCTIONS[reduction](old, new)
    return result


@pytest.mark.parametrize("reduction", ["update", *REDUCTIONS])
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("symbolic", [False, True])
def test_an_element_gets_its_updates_in_order(case: str, reduction: str, symbolic: bool) -> None:
    shape, axis, number, by_slice = CASES[case]
    if symbolic and reduction not in ("update", "add"):
        return
    counts = (*shape[:axis], number, *shape[axis + 1 :])
    own = (*counts[: axis + 1], *(1 for _ in shape[axis + 1 :])) if by_slice else counts
    extent = tirx.Var("n", "int64") if symbolic else number
    place = (*own[:axis], extent, *own[axis + 1 :])
    full = (*counts[:axis], extent, *counts[axis + 1 :])

    def build(builder: Any, data: Any, indices: Any, updates: Any) -> Any:
        wide = builder.emit(relax.op.broadcast_to(indices, full)) if by_slice else indices
        return relax.op.scatter_elements(data, wide, updates, axis=axis, reduction=reduction)

    types = [(shape, "float32"), (place, "int64"), (full, "float32")]
    changed = narrow_indices(module(build, *(relax.TensorType(list(dims), dtype) for dims, dtype in types)))
    operators = [operator_of(binding.value) for binding in bindings_of(changed["main"])]
    assert ("packager.scatter_slices" in operators) == by_slice
    data, updates = (RANDOM.standard_normal(dims).astype("f4") for dims in (shape, counts))
    indices = RANDOM.integers(-shape[axis], shape[axis], own)
    (got,) = compute(relax.transform.LegalizeOps(CPU_LEGALIZERS)(changed), [data, indices, updates])
    expected = scattered(data, np.broadcast_to(indices, counts), updates, axis, reduction)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("reduction", ["update", "add"])
@pytest.mark.parametrize("depth", [1, 2, 3])
def test_coordinates_may_count_from_the_end(reduction: str, depth: int) -> None:
    shape, count = (4, 5, 64), 6
    flat = RANDOM.permutation(int(np.prod(shape[:depth])))[:count]
    places = np.stack(np.unravel_index(flat % np.prod(shape[:depth]), shape[:depth]), -1)
    count = len(places)
    negative = np.where(RANDOM.random(places.shape) < 0.5, places, places - np.array(shape[:depth]))
    data = RANDOM.standard_normal(shape).astype("f4")
    updates = RANDOM.standard_normal((count, *shape[depth:])).astype("f4")

    def build(_builder: Any, data: Any, indices: Any, updates: Any) -> Any:
        return relax.op.scatter_nd(data, indices, updates, reduction)

    arrays = (data, negative.astype("i8"), updates)
    made = module(build, *(relax.TensorType(array.shape, str(array.dtype)) for array in arrays))
    (got,) = compute(relax.transform.LegalizeOps(CPU_LEGALIZERS)(made), arrays)
    expected = data.copy()
    if reduction == "add":
        np.add.at(expected, tuple(places.T), updates)
    else:
        expected[tuple(places.T)] = updates
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_a_gather_of_slices_is_a_lookup() -> None:
    data, indices = RANDOM.standard_normal((1, 9, 7)).astype("f4"), RANDOM.integers(-9, 9, (1, 20, 1))

    def build(builder: Any, data: Any, indices: Any) -> Any:
        wide = builder.emit(relax.op.broadcast_to(indices, (1, 20, 7)))
        return relax.op.gather_elements(data, wide, axis=1)

    made = narrow_indices(module(build, relax.TensorType(data.shape, "float32"), relax.TensorType((1, 20, 1), "int64")))
    assert "take" in [operator_of(binding.value) for binding in bindings_of(made["main"])]
    (got,) = compute(relax.transform.LegalizeOps()(made), [data, indices])
    np.testing.assert_array_equal(got, data[:, indices[0, :, 0]])
