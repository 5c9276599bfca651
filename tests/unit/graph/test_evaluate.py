"""numpy_ops.evaluate against TVM's own virtual machine."""

from __future__ import annotations

import numpy as np
import pytest
import tvm
from tvm import relax
from tvm_machine import compute

from packager.graph.block_weights import DEQUANTIZE
from packager.graph.evaluate import OPERATORS, evaluate


def transform(build: object, *shapes: tuple[int, ...], dtype: str = "float32") -> relax.Function:
    """Return a function from a tuple of weights to a tuple of what ``build`` makes of them."""
    builder = relax.BlockBuilder()
    parameter = relax.Var("weights", relax.TupleType([relax.TensorType(shape, dtype) for shape in shapes]))
    with builder.function("main", [parameter]):
        with builder.dataflow():
            weights = [builder.emit(relax.TupleGetItem(parameter, index)) for index in range(len(shapes))]
            results = builder.emit_output(relax.Tuple([builder.emit(r) for r in build(builder, *weights)]))  # type: ignore[operator]
        builder.emit_func_output(results)
    return builder.get()["main"]


def in_tvm(function: relax.Function, values: list[np.ndarray]) -> list[np.ndarray]:
    return compute(tvm.IRModule({"main": function}), [values])


def chain(builder: relax.BlockBuilder, a: relax.Var, b: relax.Var) -> list[relax.Expr]:
    """Use every operator that evaluate knows."""
    op = relax.op
    packed = builder.emit(op.permute_dims(builder.emit(op.reshape(a, (2, 2, 6))), [2, 0, 1]))
    flat = builder.emit(op.squeeze(builder.emit(op.expand_dims(b, [0])), [0]))
    wide = builder.emit(op.broadcast_to(flat, (4, 6)))
    scaled = builder.emit(op.divide(builder.emit(op.multiply(a, wide)), builder.emit(op.sqrt(wide))))
    shifted = builder.emit(op.subtract(builder.emit(op.add(scaled, relax.const(1.5, "float32"))), op.negative(b)))
    part = builder.emit(op.strided_slice(a, [0, 1], [1, 0], [100, -1], [2, 1]))
    padded = op.nn.pad(a, [1, 0, 2, 3], pad_value=0.5)
    steps = relax.const(np.int8([[-128, 3], [7, 127]]), "int8")
    scaled_back = op.dequantize(steps, relax.const([0.5, 0.1], "float32"), relax.const([3, -4], "int8"), axis=1)
    rows = builder.emit(op.astype(builder.emit(op.arange(1, 4, 1, "int64")), "int32"))
    some = builder.emit(op.take(a, rows, axis=0))
    mixed = builder.emit(op.take(a, relax.const([[5, 0], [0, 2]], "int64"), axis=1))
    extents = builder.emit(op.shape_to_tensor(builder.emit(op.shape_of(a))))
    halved = builder.emit(op.astype(a, "float16"))
    smaller = builder.emit(op.where(builder.emit(op.less(a, b)), a, b))
    zeros = builder.emit(op.full((4, 6), relax.const(0.25, "float32"), "float32"))
    inside = builder.emit(op.logical_and(builder.emit(op.greater(a, zeros)), builder.emit(op.less_equal(a, b))))
    either = builder.emit(op.logical_or(inside, builder.emit(op.equal(a, zeros))))
    other = builder.emit(op.logical_not(builder.emit(op.greater_equal(b, a))))
    masks = [either, other, builder.emit(op.astype(inside, "float32"))]
    clipped, unknown = op.clip(a, -0.5, 0.25), op.isnan(a)
    joined = [op.concat([a, wide], 0), op.concat([a, builder.emit(op.strided_slice(a, [1], [0], [2])), wide], -1)]
    views = [packed, shifted, a, part]
    return [*views, some, mixed, extents, halved, smaller, unknown, *masks, padded, scaled_back, clipped, *joined]


@pytest.mark.slow
def test_every_operator_equals_tvm() -> None:
    function = transform(chain, (4, 6), (6,))
    rng = np.random.default_rng(0)
    values = [rng.standard_normal((4, 6)).astype("f"), rng.uniform(1, 2, 6).astype("f")]
    used = set()
    relax.analysis.post_order_visit(
        function, lambda e: used.add(e.op.name) if isinstance(e, relax.Call) and hasattr(e.op, "name") else None
    )
    assert used == set(OPERATORS) - {DEQUANTIZE}  # tests/unit/backends/ccompiler/test_ccompiler_block_weights.py
    results = evaluate(function, values)
    for ours, theirs in zip(results, in_tvm(function, values), strict=True):
        assert ours is not None
        np.testing.assert_array_equal(ours, theirs)
    views = [index for index, result in enumerate(results) if np.may_share_memory(result, values[0])]
    assert views == [0, 2, 3, 4]


@pytest.mark.parametrize(
    ("build", "dtype"),
    [
        (lambda _, a: [relax.op.exp(a)], "float32"),
        (lambda _, a: [relax.op.divide(a, relax.const(2, "int32"))], "int32"),
        (lambda _, a: [relax.op.astype(a, "int32")], "float32"),
        (lambda _, a: [relax.op.strided_slice(a, [0], [3], [0], [-1])], "float32"),
        (lambda _, a: [relax.op.take(a, relax.const([0, 4], "int64"), axis=0)], "float32"),
    ],
    ids=["exp", "integer division", "float to integer", "backwards slice", "take outside"],
)
def test_gives_up_on_what_it_does_not_know(build: object, dtype: str) -> None:
    function = transform(build, (4,), dtype=dtype)
    assert evaluate(function, [np.arange(4).astype(dtype)]) == [None]


def test_what_is_known_does_not_suffer_from_what_is_not() -> None:
    def build(builder: relax.BlockBuilder, a: relax.Var) -> list[relax.Expr]:
        unknown = builder.emit(relax.op.exp(a))
        return [unknown, relax.op.negative(unknown), relax.op.permute_dims(a, [1, 0])]

    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    first, second, third = evaluate(transform(build, (2, 3)), [values])
    assert first is None
    assert second is None
    np.testing.assert_array_equal(third, values.T)
