"""Elements that take long to compute on a GPU: a thread for each where there are few, for vectors leave it idle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx
from tvm.s_tir import ScheduleError

from packager.graph.rewrite import nodes_of
from packager.lower.blocks import blocks, schedule_of
from packager.lower.cuda.element_loops import schedule_element_loops
from packager.lower.cuda.schedule import schedule_cuda
from tests.unit.lower.test_schedule_cuda import TARGET, functions, lower, serial

R = relax.op
TERMS = 60


def series(x: Any) -> Any:
    """Return a polynomial of many terms, by Horner's rule."""
    result = x
    for term in range(TERMS):
        result = R.add(R.multiply(result, x), R.subtract(x, relax.const(term / TERMS, "float32")))
    return result


def series_by_numpy(x: np.ndarray) -> np.ndarray:
    result = x
    for term in range(TERMS):
        result = result * x + (x - np.float32(term / TERMS))
    return result


def test_few_have_a_thread_each() -> None:
    (primfunc,) = functions(series, ((40, 64), "float32"))
    scheduled = schedule_cuda(primfunc, TARGET)
    sch = schedule_of(scheduled)
    (block,) = blocks(sch)
    assert len(sch.get_loops(block)) == 2  # a block of the grid, a thread
    source, _ = lower(scheduled)
    assert "float4" not in source
    library = tvm.compile(tvm.IRModule({"main": serial(scheduled).with_attr("global_symbol", "main")}), target="llvm")
    x = (np.random.default_rng(0).random((40, 64), np.float32) - 0.5) * 0.9
    arrays = [tvm.runtime.tensor(array) for array in (x, np.full(x.shape, np.nan, np.float32))]
    library["main"](*arrays)
    np.testing.assert_allclose(arrays[1].numpy(), series_by_numpy(x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(2048, 1024), (40, 64)], ids=["many elements", "short computations"])
def test_others_have_vectors(shape: tuple[int, int]) -> None:
    (primfunc,) = functions(series if shape[0] > 40 else R.exp, (shape, "float32"))
    with pytest.raises(ScheduleError):
        schedule_element_loops(primfunc)
    scheduled = schedule_cuda(primfunc, TARGET)
    assert any(loop.kind == tirx.ForKind.VECTORIZED for loop in nodes_of(scheduled.body, tirx.For))
