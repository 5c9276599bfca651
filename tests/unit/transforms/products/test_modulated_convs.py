"""Convolutions whose filters a style scales, and which are normalized: the image and the result are scaled instead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from tvm import relax

from packager.graph.dataflow import bindings_of, operator_of
from packager.transforms.products.modulated_convs import unmodulate_convs
from tests.unit.tvm_machine import compute

R = relax.op
F = "float32"


def inputs(*shapes: tuple[int, ...]) -> list[Any]:
    return [relax.Var(f"x{number}", relax.TensorType(shape, F)) for number, shape in enumerate(shapes)]


def function(parameters: list[Any], make: Any) -> Any:
    builder = relax.BlockBuilder()
    with builder.function("main", parameters):
        with builder.dataflow():
            result = builder.emit_output(make(builder.emit, *parameters))
        builder.emit_func_output(result)
    return builder.finalize()


def shifted(emit: Any, total: Any, epsilon: float) -> Any:
    return emit(R.add(total, relax.const(epsilon, F))) if epsilon else total


def grouped(*, normalized: bool = True, window: int = 3, epsilon: float = 1e-8) -> tuple[Any, list[Any]]:
    """A group for each image: [3, 8, 6, 5] with a style [3, 8], and filters [1, 12, 8, window, window].

    With an epsilon of 0 there is no addition, as in what torch's newer ONNX exporter makes of 1e-8.
    """
    parameters = inputs((3, 8, 6, 5), (3, 8), (1, 12, 8, window, window))

    def make(emit: Any, image: Any, style: Any, filters: Any) -> Any:
        weights = emit(R.multiply(filters, emit(R.reshape(style, (3, 1, 8, 1, 1)))))
        if normalized:
            total = emit(R.sum(emit(R.multiply(weights, weights)), [2, 3, 4]))
            scale = emit(R.rsqrt(shifted(emit, total, epsilon)))
            weights = emit(R.multiply(weights, emit(R.reshape(scale, (3, 12, 1, 1, 1)))))
        stacked = emit(R.reshape(weights, (36, 8, window, window)))
        joined = emit(R.reshape(image, (1, 24, 6, 5)))
        half = window // 2
        result = emit(R.nn.conv2d(joined, stacked, padding=(half, half), groups=3))
        return emit(R.reshape(result, (3, 12, int(result.ty.shape.values[2]), int(result.ty.shape.values[3]))))

    return function(parameters, make), parameters


def single(*, epsilon: float = 1e-8) -> tuple[Any, list[Any]]:
    """One style for all images, as the normalized filters of one are written."""
    parameters = inputs((2, 8, 6, 5), (8, 1, 1), (12, 8, 3, 3))

    def make(emit: Any, image: Any, style: Any, filters: Any) -> Any:
        weights = emit(R.multiply(filters, style))
        total = emit(R.sum(emit(R.multiply(weights, weights)), [1, 2, 3], keepdims=True))
        root = emit(R.sqrt(shifted(emit, total, epsilon)))
        scaled = emit(R.multiply(weights, emit(R.divide(relax.const(1.0, F), root))))
        return emit(R.nn.conv2d(image, scaled, padding=(1, 1), strides=(2, 1)))

    return function(parameters, make), parameters


CASES = {
    "grouped": grouped(),
    "pixels": grouped(window=1),
    "not normalized": grouped(normalized=False),
    "a large epsilon": grouped(epsilon=0.7),
    "no epsilon": grouped(epsilon=0.0),
    "single": single(),
    "single, no epsilon": single(epsilon=0.0),
    "single, a large epsilon": single(epsilon=3.0),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("size", [1.0, 60.0])
def test_filters_stay_constant(name: str, size: float) -> None:
    module, parameters = CASES[name]
    rewritten = relax.transform.DeadCodeElimination()(unmodulate_convs(module, 2))
    (conv,) = [b.value for b in bindings_of(rewritten["main"]) if operator_of(b.value) == "nn.conv2d"]
    assert int(conv.attrs.groups) == 1
    rng = np.random.default_rng(0)
    shapes = [[int(extent) for extent in parameter.ty.shape.values] for parameter in parameters]
    arrays = [rng.standard_normal(shape).astype(F) for shape in shapes]
    arrays[1] *= size
    arrays[2] *= size
    if "no epsilon" not in name:
        arrays[2][..., 3, :, :, :] = 0  # a filter of zeros, which only an epsilon saves from a division of zero by zero
    wanted = compute(module, arrays)[0]
    error = np.abs(compute(rewritten, arrays)[0] - wanted).max() / np.abs(wanted).max()
    assert error < 2e-6


def test_filters_that_an_input_scales_otherwise_stay() -> None:
    """A factor for each filter is no style, and filters that are inputs are not normalized ahead."""
    parameters = inputs((2, 8, 6, 5), (12, 1, 1, 1), (12, 8, 3, 3))

    def make(emit: Any, image: Any, factor: Any, filters: Any) -> Any:
        return emit(R.nn.conv2d(image, emit(R.multiply(filters, factor))))

    module = function(parameters, make)
    assert unmodulate_convs(module, 2).same_as(module)
    constant, _ = grouped()
    assert unmodulate_convs(constant, 3).same_as(constant)
