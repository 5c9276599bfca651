"""No-ops that are dropped."""

from __future__ import annotations

import pytest

pytest.importorskip("tvm")
from tvm import relax

from packager.graph.dataflow import bindings_of, operator_of
from packager.transforms.simplify.no_ops import drop_no_ops


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
