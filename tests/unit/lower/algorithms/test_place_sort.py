"""Indices are sorted by the places that they name in one launch for GPUs, its loops run one after the other here."""

from __future__ import annotations

import math
import re
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
import tvm
from tvm import relax
from tvm.ir import Op

from packager.lower.cuda.algorithms.scatters.place_sort import BLOCKS, MOST_INDICES, SMALL_BLOCKS, THREADS
from packager.lower.cuda.algorithms.scatters.sorted_scatter import SORT_INDICES
from packager.lower.cuda.schedule import schedule_cuda
from packager.lower.devices import DEVICES
from packager.lower.lowering import _make_kernels
from tests.unit.lower.algorithms.test_cuda_algorithms import legalized, runs
from tests.unit.lower.test_schedule_cuda import TARGET, lower

GENERATOR = np.random.default_rng(7)


def module_of(indices: tuple[int, ...], places: tuple[int, ...]) -> tvm.IRModule:
    def make(found: Any) -> relax.Call:
        return relax.Call(Op.get(SORT_INDICES), [found, relax.ShapeExpr(places)])

    return legalized(make, relax.TensorType(indices, "int64"))[0]


def check(indices: np.ndarray, places: tuple[int, ...]) -> None:
    """Compare order and starts with numpy's stable sort."""
    order, starts = runs(module_of(indices.shape, places))(indices)
    count = math.prod(places)
    wrapped = np.where(indices < 0, indices + np.array(places), indices)
    keys = np.ravel_multi_index(tuple(np.moveaxis(wrapped, -1, 0)), places)
    wanted = np.argsort(keys, axis=-1, kind="stable")
    begins = [np.searchsorted(np.sort(row), np.arange(count + 1)) for row in keys]
    np.testing.assert_array_equal(order.reshape(keys.shape), wanted)
    np.testing.assert_array_equal(starts.reshape(len(keys), -1), np.stack(begins))


@pytest.mark.parametrize(
    ("rows", "number", "places"),
    [
        pytest.param(1, 300, (7,), id="a block for each place"),
        pytest.param(1, 3000, (SMALL_BLOCKS,), id="as many places as small blocks"),
        pytest.param(1, 3000, (SMALL_BLOCKS + 1,), id="the last small blocks have no places"),
        pytest.param(1, 9000, (BLOCKS,), id="as many places as blocks"),
        pytest.param(1, 9000, (BLOCKS + 1,), id="the last blocks have no places"),
        pytest.param(1, 5000, (4001,), id="passes end in the other buffer"),
        pytest.param(1, 257, (100_000,), id="more places than indices"),
        pytest.param(3, 1500, (50,), id="several rows"),
        pytest.param(2 * BLOCKS, 300, (19,), id="many rows"),
        pytest.param(SMALL_BLOCKS + 1, 300, (9,), id="more rows than blocks"),
        pytest.param(1, 2000, (20, 30), id="coordinates"),
        pytest.param(2, THREADS, (1,), id="one place"),
    ],
)
def test_indices_are_in_the_order_of_their_places(rows: int, number: int, places: tuple[int, ...]) -> None:
    extents = np.array(places)
    check(GENERATOR.integers(-extents, extents, (rows, number, len(places))), places)


@pytest.mark.parametrize("place", [0, 77, 999])
def test_all_indices_may_name_one_place(place: int) -> None:
    check(np.full((1, 2500, 1), place), (1000,))


def test_indices_that_are_in_order_or_reversed() -> None:
    ascending = np.sort(GENERATOR.integers(0, 600, (1, 2500, 1)), axis=1)
    check(ascending, (600,))
    check(ascending[:, ::-1].copy(), (600,))


@pytest.mark.parametrize(("number", "launches"), [(300, 1), (MOST_INDICES, 1), (MOST_INDICES + 1, 5)])
def test_more_indices_are_merged(number: int, launches: int) -> None:
    """Then sorted tiles, three merges and a search of where places begin are launched."""
    functions = [f for f in module_of((1, number, 1), (4000,)).functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    assert len(functions) == 1
    assert len(_make_kernels("sort", functions[0], DEVICES["cuda"]).functions) == launches


@pytest.mark.parametrize("places", [7, 4000, 1_000_000])
def test_the_most_indices_fit_in_shared_memory(places: int) -> None:
    """A kernel may declare 48 KiB (CUDA C++ Programming Guide, compute capabilities)."""
    found = module_of((1, MOST_INDICES, 1), (places,)).functions.values()
    (function,) = (f for f in found if isinstance(f, tvm.tirx.PrimFunc))
    source, _ = lower(schedule_cuda(function, TARGET))
    kernel = source[source.rindex("__global__") :]
    declared = [int(number) for number in re.findall(r"__shared__ alignas\(\d+\) int \w+\[(\d+)\]", kernel)]
    assert len(declared) == kernel.count("__shared__")
    assert 4 * sum(declared) <= 48 * 1024
