"""Schedules of loops without a reduction: runs of contiguous elements, of whatever length."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
import tvm
from tvm import relax, tirx
from tvm.tirx import stmt as st
from tvm_ffi import structural_map

from packager.graph.rewrite import nodes_of
from packager.lower.cpu.schedule import schedule
from tests.stages import primfuncs_of

R = relax.op
Shape = tuple[int | str, ...]
KINDS = tirx.ForKind


def scheduled(make: Callable[..., Any], *inputs: tuple[Shape, str]) -> Any:
    """Return the only PrimFunc of an operator, scheduled; a dim that is a string is symbolic."""
    (found,) = primfuncs_of("cpu", make, *inputs)
    return schedule(found)


def loops(primfunc: Any) -> list[tuple[int, int | None]]:
    """Return the kind and the extent of each loop, the outermost first."""
    found = nodes_of(primfunc.body, tirx.For)[::-1]  # of one nest: TVM walks it from the inside
    return [(int(o.kind), int(o.extent) if isinstance(o.extent, tirx.IntImm) else None) for o in found]


def run(primfunc: Any, *arrays: np.ndarray, shape: Shape) -> np.ndarray:
    """Run it with parallel loops as serial ones."""

    def one_by_one(loop: Any) -> Any:
        kind = st.ForKind.SERIAL if loop.kind == st.ForKind.PARALLEL else loop.kind
        return st.For(loop.loop_var, loop.min, loop.extent, kind, loop.body)

    body = structural_map(primfunc.body, [(st.For, one_by_one)])
    named = primfunc.with_body(body).with_attr("global_symbol", "main")
    library = tvm.compile(tvm.IRModule({"main": named}), target="llvm")
    tensors = [tvm.runtime.tensor(array) for array in (*arrays, np.full(shape, np.nan, np.float32))]
    library["main"](*tensors)
    result: np.ndarray = tensors[-1].numpy()
    return result


def numbers(*shape: int) -> np.ndarray:
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("shape", [(2, 6, 5, 7), (1, 9, 56, 56), (3, 4, 50), (4, 48), (5, 1)])
def test_a_lookup_copies_whole_slices(shape: tuple[int, ...]) -> None:
    """Its index is found once for each slice, or part of it: behind the parallel loop are only those of the slice."""
    axis = 1 if len(shape) > 2 else 0
    made = scheduled(lambda x, i: R.take(x, i, axis=axis), (shape, "float32"), ((11,), "int64"))
    size = min(int(np.prod(shape[axis + 1 :])), 784)
    found = loops(made)
    assert found[0][0] == KINDS.PARALLEL
    assert np.prod([extent for kind, extent in found if kind != KINDS.PARALLEL]) == size
    data, indices = numbers(*shape), np.random.default_rng(1).integers(0, shape[axis], 11)
    wanted = np.take(data, indices, axis)
    np.testing.assert_array_equal(run(made, data, indices, shape=wanted.shape), wanted)


def test_long_slices_are_cut_for_threads() -> None:
    made = scheduled(lambda x, i: R.take(x, i, axis=0), ((3, 512, 64), "float32"), ((2,), "int64"))
    kind, extent = loops(made)[0]
    assert (kind, extent) == (KINDS.PARALLEL, 64)


@pytest.mark.parametrize("shape", [(3, 133, 133), (2, 8, 16), (65, 3)])
def test_triangles_of_any_number_of_columns(shape: tuple[int, ...]) -> None:
    data = numbers(*shape)
    np.testing.assert_array_equal(run(scheduled(R.tril, (shape, "float32")), data, shape=shape), np.tril(data))


def test_padding_has_no_vectors_of_conditions() -> None:
    """TVM would take them apart; LLVM has masks."""
    made = scheduled(lambda x: R.nn.pad(x, [0, 0, 3, 5]), ((4, 24), "float32"))
    assert KINDS.VECTORIZED not in [kind for kind, _ in loops(made)]
    data = numbers(4, 24)
    np.testing.assert_array_equal(run(made, data, shape=(4, 32)), np.pad(data, [(0, 0), (3, 5)]))


@pytest.mark.parametrize("shape", [(8191,), (64, 100), (7, 4099), (1,), (2, 3, 1)])
def test_functions_of_any_number_of_elements(shape: tuple[int, ...]) -> None:
    made = scheduled(R.atanh, (shape, "float32"))
    assert loops(made)[0][0] == KINDS.PARALLEL
    data = np.tanh(numbers(*shape))
    np.testing.assert_allclose(run(made, data, shape=shape), np.arctanh(data), rtol=2e-5, atol=1e-6)


@pytest.mark.parametrize("rows", [1, 5, 200])
def test_rows_whose_number_a_run_decides(rows: int) -> None:
    made = scheduled(lambda x, i: R.take(x, i, axis=0), ((9, 50), "float32"), (("n",), "int64"))
    data, indices = numbers(9, 50), np.random.default_rng(1).integers(0, 9, rows)
    np.testing.assert_array_equal(run(made, data, indices, shape=(rows, 50)), data[indices])
