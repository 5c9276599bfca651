"""Sums over the last axes are computed in blocks: as accurate as they are fast."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
import tvm
from tvm import relax, tirx
from tvm_machine import compute

from packager.graph.dataflow import bindings_of, operator_of
from packager.lower.cpu.schedule import schedule
from packager.lower.legalize.split_sums import split_sums

REDUCTIONS = {"sum": relax.op.sum, "mean": relax.op.mean, "max": relax.op.max}
# The shape, the axes, and how many sums there are.
CASES: dict[str, tuple[tuple[int, ...], list[int], int]] = {
    "a row of the least length": ((3, 64), [1], 1),
    "a row that eight divides": ((3, 1000), [1], 1),
    "a plane, its last elements apart": ((2, 5, 13, 11), [2, 3], 2),
    "volumes in blocks": ((2, 16, 28, 28), [1, 2, 3], 2),
    "all elements, of many blocks": ((70000,), [0], 2),
    "a prime number of elements": ((2, 10007), [1], 3),
}


def reduction(operator: str, shape: tuple[int, ...], axes: list[int], dtype: str = "float32") -> tvm.IRModule:
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, dtype))
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(REDUCTIONS[operator](x, axis=axes, keepdims=True))
        builder.emit_func_output(result)
    return builder.get()


def operators(module: Any) -> list[str]:
    return [operator_of(binding.value) for binding in bindings_of(module["main"])]


@pytest.mark.parametrize("operator", ["sum", "mean"])
@pytest.mark.parametrize("case", CASES)
def test_errors_do_not_grow_with_the_number_of_elements(operator: str, case: str) -> None:
    """The schedule has the lanes of a block, so that a block is one sum."""
    shape, axes, sums = CASES[case]
    changed = split_sums(reduction(operator, shape, axes))
    assert operators(changed).count("sum") == sums
    x = np.random.default_rng(5).random(shape, np.float32)
    legal = relax.transform.LegalizeOps()(changed)
    functions = {v: schedule(f) if isinstance(f, tirx.PrimFunc) else f for v, f in legal.functions.items()}
    (got,) = compute(tvm.IRModule(functions), [x])
    expected = getattr(np, operator)(x.astype("f8"), axis=tuple(axes), keepdims=True)
    assert got.shape == expected.shape
    np.testing.assert_allclose(got, expected, rtol=4e-7)


def test_other_reductions_stay() -> None:
    not_last, few = reduction("sum", (64, 5), [0]), reduction("sum", (5, 63), [1])
    integers, maxima = reduction("sum", (5, 64), [1], "int32"), reduction("max", (5, 64), [1])
    for module in (not_last, few, integers, maxima):
        assert operators(split_sums(module)) == operators(module)
