"""Products of tiny matrices, as linear attention has them, become sums; a softmax along tokens becomes reductions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx.parser
import pytest

pytest.importorskip("tvm")
from tvm import relax

from packager.graph.dataflow import Dataflow, bindings_of, operator_of
from packager.transforms.products.small_products import sum_small_products
from tests.stages import placed_file
from tests.unit.transforms.products.test_modulated_convs import F, function, inputs
from tests.unit.tvm_machine import assert_same_results, compute

R = relax.op
TOKENS, HEADS = 70, 4


def linear(depth: int = 8, tokens: int = TOKENS) -> tuple[Any, list[Any]]:
    """Return linear attention of packed queries, keys and values, weighed along tokens."""
    parameters = inputs((2, tokens, 3 * HEADS * depth))

    def make(emit: Any, packed: Any) -> Any:
        heads = emit(R.permute_dims(emit(R.reshape(packed, (2, tokens, 3, HEADS, depth))), [2, 0, 3, 1, 4]))
        parts = emit(R.split(heads, 3, axis=0))
        q, k, v = (emit(R.squeeze(emit(relax.TupleGetItem(parts, i)), [0])) for i in range(3))
        keys = emit(R.permute_dims(emit(R.nn.softmax(k, axis=2)), [0, 1, 3, 2]))
        return R.matmul(q, emit(R.matmul(keys, v)))

    return function(parameters, make), parameters


def scored(tokens: int = 16, depth: int = 8) -> tuple[Any, list[Any]]:
    """Return attention of so few tokens that each product is tiny."""
    parameters = inputs(*[(2, HEADS, tokens, depth)] * 3)

    def make(emit: Any, q: Any, k: Any, v: Any) -> Any:
        scores = emit(R.matmul(q, emit(R.permute_dims(k, [0, 1, 3, 2]))))
        weights = emit(R.nn.softmax(emit(R.multiply(scores, relax.const(0.25, "float32"))), axis=-1))
        return R.matmul(weights, v)

    return function(parameters, make), parameters


def product(*shapes: tuple[int, ...]) -> Any:
    return function(inputs(*shapes), lambda _emit, a, b: R.matmul(a, b))


def dynamic_conv() -> Any:
    """Return windows of values, weighed by a softmax of what a layer makes of the token (arXiv:2008.02496)."""

    def make(emit: Any, windows: Any, tokens: Any, weight: Any, bias: Any) -> Any:
        kernels = emit(R.reshape(emit(R.add(emit(R.matmul(tokens, weight)), bias)), (40, 9, 1)))
        return R.matmul(windows, emit(R.nn.softmax(kernels, axis=1)))

    return function(inputs((40, 64, 9), (40, 32), (32, 9), (9,)), make)


def summed_in(module: Any, constants: int = 0) -> Any:
    """Rewrite a module whose last parameters are constants."""
    return sum_small_products(module, len(module["main"].params) - constants)


def in_half(text: str, folder: Path) -> Dataflow:
    """Return what a model with a matrix m is in half precision."""
    model = onnx.parser.parse_model(text)
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(8, dtype=np.float32), "m"))
    path = folder / "model.onnx"
    onnx.save(model, path)
    return Dataflow(placed_file(path, targets=("cuda -arch=sm_90a",), precision="fp16").module["main"])


def operators(module: Any) -> list[str]:
    return [operator_of(binding.value) for binding in bindings_of(module["main"])]


@pytest.mark.parametrize("depth", [8, 16])
def test_products_of_small_heads_are_sums_of_slices(depth: int) -> None:
    module, parameters = linear(depth)
    summed = summed_in(module)
    found = operators(summed)
    assert not {"matmul", "nn.softmax", "split"} & set(found)
    assert (found.count("sum"), found.count("max"), found.count("strided_slice")) == (3, 1, 3)
    assert found.index("strided_slice") < found.index("permute_dims")  # which no others read then
    rng = np.random.default_rng(0)
    given = [rng.standard_normal([int(e) for e in each.ty.shape.values]).astype(np.float32) for each in parameters]
    np.testing.assert_allclose(compute(summed, given), compute(module, given), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("depth", [8, 32])
def test_attention_with_scores_stays(depth: int) -> None:
    module, _ = scored(depth=depth)
    assert operators(summed_in(module)) == operators(module)


def test_attention_whose_mask_chooses_the_scores_stays() -> None:
    """The scores are the last operand of the choice, or of the sum with a mask."""
    parameters = inputs(*[(2, HEADS, 16, 8)] * 3, (16, 16))

    def make(emit: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        scores = emit(R.matmul(q, emit(R.permute_dims(k, [0, 1, 3, 2]))))
        hidden = emit(R.greater(mask, relax.const(0.0, F)))
        chosen = emit(R.where(hidden, relax.const(-1e9, F), emit(R.add(mask, scores))))
        return R.matmul(emit(R.nn.softmax(chosen, axis=-1)), v)

    module = function(parameters, make)
    assert operators(summed_in(module)) == operators(module)


def test_slices_of_reversed_axes_come_before() -> None:
    def make(emit: Any, a: Any, b: Any, image: Any) -> Any:
        part = emit(R.strided_slice(emit(R.permute_dims(image)), [0], [1], [3]))
        return R.add(emit(R.matmul(a, b)), emit(R.reshape(part, (8, 8, 8))))

    parameters = inputs((8, 8, 100), (8, 100, 8), (16, 16, 5))
    module = function(parameters, make)
    summed = summed_in(module)
    assert operators(summed).index("strided_slice") < operators(summed).index("reshape")
    rng = np.random.default_rng(0)
    given = [rng.standard_normal([int(e) for e in each.ty.shape.values]).astype(np.float32) for each in parameters]
    np.testing.assert_allclose(compute(summed, given), compute(module, given), rtol=1e-4, atol=1e-5)


def test_larger_heads_stay_and_their_softmax_is_reductions() -> None:
    found = operators(summed_in(linear(depth=32)[0]))
    assert found.count("matmul") == 2
    assert "nn.softmax" not in found
    assert operators(summed_in(linear(depth=32, tokens=40)[0])).count("nn.softmax") == 1  # of few tokens


@pytest.mark.parametrize(
    ("shapes", "is_sum"),
    [
        ([(8, 16, 100), (8, 100, 16)], True),
        ([(2, 4, 100, 8), (2, 4, 8, 16)], True),
        ([(7, 8, 100), (7, 100, 8)], False),
        ([(8, 17, 100), (8, 100, 8)], False),
        ([(8, 8, 100), (8, 100, 17)], False),
        ([(8, 100, 100), (8, 100, 8)], False),
        ([(8, 8, 8), (8, 8, 8)], False),  # as small as it is, no reduction is long
        ([(8, 14, 14, 4), (4, 4)], True),
        ([(1024, 8), (8, 3)], True),
        ([(1023, 8), (8, 3)], False),
        ([(2048, 8), (8, 9)], False),
    ],
)
def test_what_is_small(shapes: list[tuple[int, ...]], is_sum: bool) -> None:
    assert operators(summed_in(product(*shapes)))[-1] == ("sum" if is_sum else "matmul")


def test_windows_that_a_softmax_of_a_layer_weighs_are_sums() -> None:
    """It is no attention: one operand of the product that it is of is a weight."""
    module = dynamic_conv()
    assert operators(summed_in(module)).count("matmul") == 2
    summed = summed_in(module, constants=2)
    assert (operators(summed).count("matmul"), operators(summed)[-1]) == (1, "sum")
    assert_same_results(summed, module, rtol=1e-4, atol=1e-5)


def test_products_are_not_rounded_before_they_are_summed(tmp_path: Path) -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 17]> net (float[8,70,8] x) => (float[8,70,8] y) { k = MatMul(x, m)'
        " v = MatMul(k, m) q = MatMul(v, m) t = Transpose <perm = [0, 2, 1]> (k) w = MatMul(t, v) y = MatMul(q, w) }"
    )
    flow = in_half(text, tmp_path)
    sums = [each for each in flow.variables if flow.call(each, "sum") is not None]
    factors = [flow.value(flow.value(each).args[0]) for each in sums]
    assert [operator_of(each) for each in factors] == ["multiply", "multiply"]
    halves = [flow.value(factor.args[0]) for factor in factors]
    assert [(operator_of(each), str(each.args[0].ty.dtype)) for each in halves] == [("astype", "float16")] * 2


def test_sums_that_are_written_out_are_rounded_once(tmp_path: Path) -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 17]> net (float[8,8] x) => (float[8,8] y) { a = MatMul(x, m)'
        " b = MatMul(a, m) c = MatMul(b, m) p = Mul(a, b) q = Mul(b, c) r = Mul(a, c) s = Add(p, q) t = Add(s, r)"
        " y = MatMul(t, m) }"
    )
    flow = in_half(text, tmp_path)
    rounded = [flow.value(each).args[0] for each in flow.variables if operator_of(flow.value(each)) == "astype"]
    halves = [operator_of(flow.value(each)) for each in rounded if str(each.ty.dtype) == "float32"]
    assert "multiply" not in halves
    assert halves.count("add") == 1


def test_rows_of_a_few_heads_are_sums() -> None:
    """Heads that talk before and after their softmax."""
    parameters = inputs((2, 4, 24, 32), (4, 4), (4, 4))

    def make(emit: Any, scores: Any, before: Any, after: Any) -> Any:
        mixed = emit(R.matmul(emit(R.permute_dims(scores, [0, 2, 3, 1])), before))
        weights = emit(R.nn.softmax(emit(R.permute_dims(mixed, [0, 3, 1, 2])), axis=-1))
        return R.permute_dims(emit(R.matmul(emit(R.permute_dims(weights, [0, 2, 3, 1])), after)), [0, 3, 1, 2])

    module = function(parameters, make)
    summed = summed_in(module)
    found = operators(summed)
    assert [found.count(name) for name in ("matmul", "sum", "multiply", "add")] == [0, 0, 2 * 4, 2 * 3]
    rng = np.random.default_rng(0)
    given = [rng.standard_normal([int(e) for e in each.ty.shape.values]).astype(np.float32) for each in parameters]
    np.testing.assert_allclose(compute(summed, given), compute(module, given), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shapes", [((16, 1, 128, 12), (16, 1, 12, 1)), ((9, 5, 40), (9, 40, 1)), ((1200, 7), (7, 1))])
def test_products_with_vectors_are_sums_along_rows(shapes: tuple[tuple[int, ...], ...]) -> None:
    """Along the last axis: no schedule took sums along the last but one of a column."""
    module = product(*shapes)
    after = sum_small_products(module, len(shapes))
    calls = [binding.value for binding in bindings_of(after["main"])]
    (total,) = [call for call in calls if operator_of(call) == "sum"]
    assert [int(axis) % len(shapes[0]) for axis in total.attrs.axis] == [len(shapes[0]) - 1]
    assert_same_results(after, module, rtol=1e-5, atol=1e-5)
