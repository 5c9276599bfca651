"""No-ops that are dropped."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from tvm import relax

from packager.graph.dataflow import bindings_of, operator_of
from packager.transforms.simplify.no_ops import drop_no_ops
from tests.unit.tvm_machine import compute


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [
        ([0, 2, 1], [0, 2, 1], 0),
        ([1, 2, 0], [2, 0, 1], 0),
        ([1, 2, 0], [1, 2, 0], 2),
        (None, None, 0),
        (None, [-1, 0, 1], 2),
    ],
)
def test_a_permutation_and_its_inverse(first: list[int] | None, second: list[int] | None, left: int) -> None:
    x = relax.Var("x", relax.TensorType((2, 3, 4), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            once = builder.emit(relax.op.permute_dims(x, first))
            result = builder.emit_output(relax.op.nn.relu(builder.emit(relax.op.permute_dims(once, second))))
        builder.emit_func_output(result)
    passes = (drop_no_ops, relax.transform.CanonicalizeBindings(), relax.transform.DeadCodeElimination())
    module = builder.get()
    for transform in passes:
        module = transform(module)
    names = [operator_of(binding.value) for binding in bindings_of(module["main"])]
    assert names.count("permute_dims") == left


@pytest.mark.parametrize(
    ("first", "second", "left"),
    [
        (([1], [2], [9]), ([1], [1], [4]), [(0, 2), (3, 6)]),
        (([1], [2], [9]), ([0], [1], [2]), [(1, 2), (2, 9)]),
        (([1], [-8], [2**62]), ([1], [-3], [-1]), [(0, 2), (7, 9)]),
    ],
)
def test_a_slice_of_a_slice(first: Any, second: Any, left: list[tuple[int, int]]) -> None:
    x = relax.Var("x", relax.TensorType((2, 10), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            result = builder.emit_output(
                relax.op.strided_slice(builder.emit(relax.op.strided_slice(x, *first)), *second)
            )
        builder.emit_func_output(result)
    module = builder.get()
    reduced = relax.transform.DeadCodeElimination()(drop_no_ops(module))
    (binding,) = bindings_of(reduced["main"])
    axes, begins, ends = ([int(number) for number in fields.fields] for fields in binding.value.args[1:4])
    assert [(begins[axis], ends[axis]) for axis in sorted(axes)] == left
    values = np.arange(20, dtype=np.float32).reshape(2, 10)
    np.testing.assert_array_equal(compute(reduced, [values])[0], compute(module, [values])[0])


def test_slices_with_steps_stay() -> None:
    x = relax.Var("x", relax.TensorType((2, 10), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            even = builder.emit(relax.op.strided_slice(x, [1], [0], [10], [2]))
            result = builder.emit_output(relax.op.strided_slice(even, [1], [1], [3]))
        builder.emit_func_output(result)
    assert len(bindings_of(relax.transform.DeadCodeElimination()(drop_no_ops(builder.get()))["main"])) == 2
