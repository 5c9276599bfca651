"""Indices that data decide stay in their tensors; those of a thread's own variables cost nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
import tvm
from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.graph.rewrite import nodes_of
from packager.lower.cuda.algorithms.nests import Nests, cast, int64, keep, local, locals_of
from packager.transforms.clamp_indices import clamp_indices

SIZE = 8


def indexed(index: Callable[[Any, Any], Any]) -> tirx.PrimFunc:
    """Return a function of x [8] and indices [8] that reads x at what is written of each position and the indices."""
    nests = Nests([relax.TensorType([SIZE], "float32"), relax.TensorType([SIZE], "int32")], _result())
    (x, indices), (y,) = nests.inputs, nests.outputs
    with nests.grid("read", SIZE) as (position,):
        y[position] = x[index(position, indices)]
    return nests.primfunc()


def _result() -> list[Any]:
    return [relax.TensorType([SIZE], "float32")]


def kept(position: Any, _indices: Any) -> Any:
    return keep(int64(SIZE) - 1 - keep(position + 0))


def loaded(position: Any, indices: Any) -> Any:
    return cast(indices[position], "int64")


def kept_of_loaded(position: Any, indices: Any) -> Any:
    return keep(cast(keep(indices[position]), "int64") + 1)


def set_twice(position: Any, _indices: Any) -> Any:
    at = local(position)
    with T.While(at[0] < int64(100)):
        at[0] = at[0] + 1
    return at[0]


def set_in_a_branch(position: Any, indices: Any) -> Any:
    at = locals_of(1, "int64")
    with T.If(indices[position] > 0), T.Then():
        at[0] = position
    return at[0]


def test_what_a_branch_may_leave_unset_is_clamped() -> None:
    assert len(nodes_of(clamp_indices(indexed(set_in_a_branch)).body, tirx.Min)) == 1


@pytest.mark.parametrize(
    ("index", "bounds"),
    [(kept, 0), (loaded, 1), (kept_of_loaded, 1), (set_twice, 1)],
    ids=["kept", "loaded", "kept of loaded", "set twice"],
)
def test_what_data_may_decide_is_clamped(index: Callable[[Any, Any], Any], bounds: int) -> None:
    function = clamp_indices(indexed(index))
    assert len(nodes_of(function.body, tirx.Min)) == bounds
    built = tvm.compile(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}), "llvm")
    x, given = np.arange(SIZE, dtype="f4"), np.array([-9, 0, 1, 5, 7, 8, 2**31 - 2, -(2**31)], "i4")
    arguments = [tvm.runtime.tensor(array) for array in (x, given, np.zeros(SIZE, "f4"))]
    built["main"](*arguments)
    wanted = {kept: SIZE - 1 - np.arange(SIZE), loaded: given, kept_of_loaded: given.astype("i8") + 1}
    wanted[set_twice] = np.full(SIZE, 100)
    np.testing.assert_array_equal(arguments[-1].numpy(), x[np.clip(wanted[index], 0, SIZE - 1)])
