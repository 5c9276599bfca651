"""Rows of reductions that are padded: the function computes the same, of a number of rows that threads share."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
import tvm
from tvm import relax, tirx
from tvm.s_tir import ScheduleError
from tvm.tirx import stmt as st

from packager.graph.rewrite import nodes_of
from packager.lower.blocks import blocks, extents, is_reduction, schedule_of
from packager.lower.cuda.padded_rows import pad_rows
from packager.lower.cuda.schedule import schedule_cuda
from tests.stages import primfuncs_of
from tests.unit.lower.test_schedule_cuda import lower, serial

R = relax.op
TARGET = tvm.target.Target({"kind": "cuda", "arch": "sm_90"})


def reduction_of(make: Callable[[Any], Any], shape: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """Return a schedule, its reduction, and the loop of that."""
    (primfunc,) = primfuncs_of("cuda", make, (shape, "float32"))
    sch = schedule_of(primfunc)
    (reduction,) = [block for block in blocks(sch) if is_reduction(sch, block)]
    loops = list(sch.get_loops(reduction))
    (loop,) = [each for each in loops if extents(sch, [each])[0] == shape[1]]
    return sch, reduction, loop


@pytest.mark.parametrize("rows", [67, 64])
@pytest.mark.parametrize("name", ["sum", "max", "min"])
def test_padded_rows_change_no_result(name: str, rows: int) -> None:
    sch, reduction, loop = reduction_of(lambda x: getattr(R, name)(x, axis=1), (3, rows, 5))
    padded = pad_rows(sch, reduction, loop, 16)
    (again,) = [block for block in blocks(padded) if is_reduction(padded, block)]
    assert extents(padded, list(padded.get_loops(again)))[-1] == -(-rows // 16) * 16
    x = np.random.default_rng(0).standard_normal((3, rows, 5)).astype(np.float32)
    result = np.zeros((3, 5), np.float32)
    given = [tvm.runtime.tensor(each) for each in (x, result)]
    tvm.compile(tvm.IRModule({"main": padded.mod["main"].with_attr("global_symbol", "main")}), "llvm")["main"](*given)
    np.testing.assert_allclose(given[1].numpy(), getattr(x, name)(axis=1), rtol=1e-5, atol=1e-5)


def test_other_reductions_are_refused() -> None:
    sch, reduction, loop = reduction_of(lambda x: R.prod(x, axis=1), (3, 67, 5))
    with pytest.raises(ScheduleError):
        pad_rows(sch, reduction, loop, 16)


def launched(primfunc: tirx.PrimFunc) -> dict[str, int]:
    """Return the extents of the first kernel of a scheduled function, by blockIdx.x and others."""
    found: dict[str, int] = {}
    for loop in nodes_of(schedule_cuda(primfunc, TARGET).body, st.For):
        if loop.thread_binding is not None:
            found.setdefault(str(loop.thread_binding.thread_tag), int(loop.extent))
    return found


@pytest.mark.parametrize("tokens", [3137, 785, 197])
@pytest.mark.parametrize("name", ["sum", "max"])
def test_a_prime_number_of_rows_is_shared(tokens: int, name: str) -> None:
    """Tokens of an image and one that is its class, of 64 heads with 8 elements."""
    (primfunc,) = primfuncs_of("cuda", lambda x: getattr(R, name)(x, axis=1), ((64, tokens, 8), "float16"))
    found = launched(primfunc)
    assert found["threadIdx.y"] > 1  # threads share rows


@pytest.mark.parametrize("sides", [(53, 53), (13, 15), (9, 41)])
@pytest.mark.parametrize("name", ["sum", "max", "mean"])
def test_places_of_images_of_odd_extents_are_shared(sides: tuple[int, int], name: str) -> None:
    """Global poolings: of 53 x 53 places, of which nothing but 53 divides the number, one thread had a column."""
    shape = (2, *sides, 32)
    (primfunc,) = primfuncs_of("cuda", lambda x: getattr(R, name)(x, axis=[1, 2]), (shape, "float32"))
    assert launched(primfunc)["threadIdx.y"] > 1
    scheduled = schedule_cuda(primfunc, TARGET)
    lower(scheduled)
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    given = [tvm.runtime.tensor(each) for each in (x, np.full((2, 32), np.nan, np.float32))]
    tvm.compile(tvm.IRModule({"main": serial(scheduled).with_attr("global_symbol", "main")}), "llvm")["main"](*given)
    np.testing.assert_allclose(given[-1].numpy(), getattr(x, name)(axis=(1, 2)), rtol=1e-4, atol=1e-4)


def outer_products(k: Any, v: Any) -> Any:
    wide = [R.astype(R.expand_dims(each, [axis]), "float32") for each, axis in ((k, 4), (v, 3))]
    return R.sum(R.multiply(*wide), axis=2)


@pytest.mark.parametrize(("tokens", "depth", "threads"), [(197, 8, 16), (785, 16, 32), (70, 8, 16), (3137, 8, 64)])
def test_heads_of_few_elements_are_columns_together(tokens: int, depth: int, threads: int) -> None:
    shape = (1, 4, tokens, depth)
    (primfunc,) = primfuncs_of("cuda", outer_products, (shape, "float16"), (shape, "float16"))
    found = launched(primfunc)
    assert found["threadIdx.x"] * found["threadIdx.y"] >= threads
    scheduled = schedule_cuda(primfunc, TARGET)
    lower(scheduled)
    k, v = (np.random.default_rng(seed).standard_normal(shape).astype(np.float16) for seed in (0, 1))
    result = np.full((1, 4, depth, depth), np.nan, str(scheduled.params[-1].dtype))
    given = [tvm.runtime.tensor(each) for each in (k, v, result)]
    tvm.compile(tvm.IRModule({"main": serial(scheduled).with_attr("global_symbol", "main")}), "llvm")["main"](*given)
    want = np.einsum("bhni,bhnj->bhij", k.astype("f8"), v.astype("f8"))
    np.testing.assert_allclose(given[-1].numpy(), want, rtol=1e-2, atol=1e-2)
