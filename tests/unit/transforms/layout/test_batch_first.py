"""Attention that runs sequence first inside, as torch's MultiheadAttention, is computed batch first."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from tvm import relax, tirx

from packager.graph.dataflow import bindings_of, operator_of
from packager.transforms.layout.batch_first import HEADS, batch_first
from packager.transforms.layout.slice_views import slice_before_views
from tests.unit.transforms.products.test_modulated_convs import F, function, inputs
from tests.unit.tvm_machine import compute

R = relax.op
BATCH, ROWS, WIDTH, COUNT = 2, 5, 12, 3  # COUNT heads
DEPTH = WIDTH // COUNT
MATRICES = ((WIDTH, 3 * WIDTH), (3 * WIDTH,), (WIDTH, WIDTH), (WIDTH,))


def attention(
    emit: Any,
    x: Any,
    matrices: Any,
    *,
    batch: Any = BATCH,
    joined: bool = False,
    swapped: bool = False,
    flat: bool = True,
) -> Any:
    """Return what ``nn.MultiheadAttention`` computes of [rows, batch, width]; ``joined``: batch and heads are one axis
    of its products, as where weights are returned; ``swapped``: keys are transposed at once."""
    into, shift, out, last = matrices
    packed = emit(R.add(emit(R.matmul(x, into)), shift))
    apart = emit(R.expand_dims(emit(R.reshape(packed, (ROWS, batch, 3, WIDTH))), [0]))
    first = emit(R.squeeze(emit(R.permute_dims(apart, [3, 1, 2, 0, 4])), [3]))
    heads = []
    for index in range(3):
        part = emit(R.squeeze(emit(R.strided_slice(first, [0], [index], [index + 1])), [0]))
        split = emit(R.reshape(part, (ROWS, batch * COUNT, DEPTH)))
        if swapped and index == 1:
            heads.append(emit(R.permute_dims(split, [1, 2, 0])))
            continue
        one = emit(R.permute_dims(split, [1, 0, 2]))
        heads.append(one if joined else emit(R.reshape(one, (batch, COUNT, ROWS, DEPTH))))
    q, k, v = heads
    turned = k if swapped else emit(R.permute_dims(k, [0, 2, 1] if joined else [0, 1, 3, 2]))
    scores = emit(R.multiply(emit(R.matmul(q, turned)), relax.const(1 / math.sqrt(DEPTH), F)))
    mixed = emit(R.matmul(emit(R.nn.softmax(scores, -1)), v))
    mixed = emit(R.permute_dims(mixed, [1, 0, 2] if joined else [2, 0, 1, 3]))
    shape = (ROWS * batch, WIDTH) if flat else (ROWS, batch, WIDTH)
    result = emit(R.add(emit(R.matmul(emit(R.reshape(mixed, shape)), out)), last))
    return emit(R.reshape(result, (ROWS, batch, WIDTH))) if flat else result


def layer(change: Callable[..., Any], *, batch: Any = BATCH) -> Any:
    """Return a module of what ``change`` computes of [batch, rows, width] and the matrices."""
    parameters = [relax.Var("x", relax.TensorType((batch, ROWS, WIDTH), F)), *inputs(*MATRICES)]
    return function(parameters, lambda emit, x, *matrices: change(emit, x, matrices))


def turned_inside(**form: Any) -> Callable[..., Any]:
    def change(emit: Any, x: Any, matrices: Any) -> Any:
        rows_first = emit(R.permute_dims(x, [1, 0, 2]))
        return emit(R.add(x, emit(R.permute_dims(attention(emit, rows_first, matrices, **form), [1, 0, 2]))))

    return change


def two_layers(emit: Any, x: Any, matrices: Any) -> Any:
    """A norm, an activation and a residual stand between two attentions, all sequence first."""
    x = emit(R.permute_dims(x, [1, 0, 2]))
    for _ in range(2):
        x = emit(R.add(x, attention(emit, x, matrices)))
        x = emit(R.nn.gelu(emit(R.nn.layer_norm(x, matrices[3], matrices[3], [-1]))))
    return emit(R.permute_dims(x, [1, 0, 2]))


def changed(module: Any) -> Any:
    return batch_first(slice_before_views(module))


def orders(module: Any) -> list[list[int]]:
    """Return the orders of the transposes in a module, without those of the keys' last axes."""
    calls = [binding.value for binding in bindings_of(module["main"])]
    found = [[int(axis) for axis in call.attrs.axes] for call in calls if operator_of(call) == "permute_dims"]
    return [order for order in found if order not in ([0, 1, 3, 2], [0, 2, 1])]


def arguments(*, batch: int = BATCH) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape).astype(F) for shape in ((batch, ROWS, WIDTH), *MATRICES)]


CASES = {
    "flat": turned_inside(),
    "not flat": turned_inside(flat=False),
    "weights": turned_inside(joined=True),
    "weights, of ONNX": turned_inside(joined=True, swapped=True),
    "two layers": two_layers,
}


@pytest.mark.parametrize("name", CASES)
def test_only_heads_are_transposed(name: str) -> None:
    module = layer(CASES[name])
    made = changed(module)
    assert {tuple(order) for order in orders(made)} == {tuple(HEADS)}
    given = arguments()
    np.testing.assert_allclose(compute(made, given)[0], compute(module, given)[0], rtol=1e-4, atol=1e-4)


def test_of_any_batch() -> None:
    batch = tirx.Var("batch", "int64")
    module = layer(turned_inside(batch=batch), batch=batch)
    made = changed(module)
    assert {tuple(order) for order in orders(made)} == {tuple(HEADS)}
    given = arguments(batch=4)
    np.testing.assert_allclose(compute(made, given)[0], compute(module, given)[0], rtol=1e-4, atol=1e-4)


def test_queries_keys_and_values_are_slices_of_columns() -> None:
    made = changed(layer(turned_inside()))
    calls = [binding.value for binding in bindings_of(made["main"])]
    slices = [call for call in calls if operator_of(call) == "strided_slice"]
    assert [[int(end) for end in call.args[3].fields] for call in slices] == [[12], [24], [36]]


def test_a_model_that_is_sequence_first_outside_keeps_its_order() -> None:
    module = function(inputs((ROWS, BATCH, WIDTH), *MATRICES), lambda emit, x, *matrices: attention(emit, x, matrices))
    assert orders(changed(module)) == orders(slice_before_views(module))


def whole_sequences(emit: Any, x: Any, _matrices: Any) -> Any:
    """What mixes rows is not moved across a transpose."""
    turned = emit(R.permute_dims(x, [1, 0, 2]))
    return emit(R.permute_dims(emit(R.cumsum(turned, 0)), [1, 0, 2]))


def another_for_each_row(emit: Any, x: Any, matrices: Any) -> Any:
    """A column [rows, 1, 1] is added: each row has a number of its own."""
    turned = emit(R.permute_dims(x, [1, 0, 2]))
    column = emit(R.reshape(emit(R.strided_slice(matrices[3], [0], [0], [ROWS])), (ROWS, 1, 1)))
    return emit(R.permute_dims(emit(R.add(turned, column)), [1, 0, 2]))


def a_slice_of_rows(emit: Any, x: Any, _matrices: Any) -> Any:
    turned = emit(R.permute_dims(x, [1, 0, 2]))
    return emit(R.permute_dims(emit(R.strided_slice(turned, [0], [1], [3])), [1, 0, 2]))


def halves_as_heads(emit: Any, x: Any, _matrices: Any) -> Any:
    """Rows of [batch * 2, rows, width / 2] that are joined without a transpose back are no rows of width."""
    split = emit(R.reshape(emit(R.permute_dims(x, [1, 0, 2])), (ROWS, BATCH * 2, WIDTH // 2)))
    return emit(R.reshape(emit(R.permute_dims(split, [1, 0, 2])), (BATCH, 2 * ROWS, WIDTH // 2)))


def two_transposed_factors(emit: Any, x: Any, _matrices: Any) -> Any:
    """A product for each row: the second operand is no matrix of all rows."""
    turned = emit(R.permute_dims(x, [1, 0, 2]))
    other = emit(R.permute_dims(emit(R.reshape(x, (WIDTH, ROWS, BATCH))), [1, 0, 2]))
    return emit(R.permute_dims(emit(R.matmul(turned, other)), [1, 0, 2]))


def a_matrix_of_rows(emit: Any, x: Any, matrices: Any) -> Any:
    """The matrix of a product is rows in another order, too."""
    wide = emit(R.matmul(emit(R.reshape(emit(R.permute_dims(x, [1, 0, 2])), (ROWS * BATCH, WIDTH))), matrices[2]))
    square = emit(R.matmul(wide, emit(R.permute_dims(wide, [1, 0]))))
    flat = emit(R.reshape(emit(R.permute_dims(x, [1, 0, 2])), (ROWS * BATCH, WIDTH)))
    product = emit(R.reshape(emit(R.matmul(square, flat)), (ROWS, BATCH, WIDTH)))
    return emit(R.permute_dims(emit(R.add(product, emit(R.permute_dims(x, [1, 0, 2])))), [1, 0, 2]))


def a_square_of_rows(emit: Any, x: Any, _matrices: Any) -> Any:
    """Both operands are the same rows: [10, 10] of [batch, 5, 10 / batch] would not be."""
    part = emit(R.strided_slice(x, [2], [0], [ROWS * BATCH]))
    flat = emit(R.reshape(emit(R.permute_dims(part, [1, 0, 2])), (ROWS * BATCH, ROWS * BATCH)))
    product = emit(R.reshape(emit(R.matmul(flat, flat)), (ROWS, BATCH, ROWS * BATCH)))
    return emit(R.permute_dims(product, [1, 0, 2]))


def rows_of_two_sizes(emit: Any, x: Any, _matrices: Any) -> Any:
    """[10, 12] of 5 rows and 2 batches, and of 10 rows and one batch."""
    flat = emit(R.reshape(emit(R.permute_dims(x, [1, 0, 2])), (ROWS * BATCH, WIDTH)))
    other = emit(R.permute_dims(emit(R.reshape(x, (1, ROWS * BATCH, WIDTH))), [1, 0, 2]))
    both = emit(R.add(flat, emit(R.reshape(other, (ROWS * BATCH, WIDTH)))))
    return emit(R.permute_dims(emit(R.reshape(both, (ROWS, BATCH, WIDTH))), [1, 0, 2]))


OTHERS = [
    rows_of_two_sizes,
    two_transposed_factors,
    a_matrix_of_rows,
    a_square_of_rows,
    whole_sequences,
    another_for_each_row,
    a_slice_of_rows,
    halves_as_heads,
]


@pytest.mark.parametrize("change", OTHERS)
def test_others_compute_the_same(change: Callable[..., Any]) -> None:
    module = layer(change)
    given = arguments()
    np.testing.assert_allclose(compute(changed(module), given)[0], compute(module, given)[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("order", "axis", "moves"),
    [([2, 0, 1, 3], 0, True), ([0, 2, 1, 3], 1, True), ([2, 1, 0, 3], 0, False)],
)
def test_slices_come_before_a_transpose_that_moves_their_axis_alone(order: list[int], axis: int, moves: bool) -> None:
    def make(emit: Any, x: Any) -> Any:
        apart = emit(R.permute_dims(emit(R.reshape(x, (4, 3, 2, 5))), order))
        return emit(R.strided_slice(apart, [axis], [1], [2]))

    module = function(inputs((4, 3, 10)), make)
    made = slice_before_views(module)
    assert (not orders(made)) == moves
    x = np.random.default_rng(0).standard_normal((4, 3, 10)).astype(F)
    np.testing.assert_array_equal(compute(made, [x])[0], compute(module, [x])[0])
