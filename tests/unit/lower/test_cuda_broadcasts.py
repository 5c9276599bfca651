"""On a GPU a reduction is fused with what has its shape or its rows, not with larger tensors that read it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tvm
from tvm import relax

from packager.graph.normalize import Normalization, normalize
from tests.unit.lower.test_cuda_lookups import kernels
from tests.unit.transforms.products.test_modulated_convs import function, inputs

R = relax.op
WHOLE, SMALL = (2, 14, 14, 320), (2, 1, 1, 320)


def response_norm(emit: Any, x: Any, norm: Any) -> Any:
    """ConvNeXt-V2: a norm of each channel by the mean of all channels, as a factor of the image."""
    mean = emit(R.add(emit(R.mean(norm, [-1], keepdims=True)), relax.const(1e-6)))
    return emit(R.multiply(x, emit(R.divide(norm, mean))))


def less_its_mean(*axes: int) -> Callable[..., Any]:
    def make(emit: Any, x: Any) -> Any:
        return emit(R.exp(emit(R.subtract(x, emit(R.mean(x, list(axes), keepdims=True))))))

    return make


def gated(emit: Any, x: Any, code: Any, weights: Any) -> Any:
    return emit(R.multiply(x, emit(R.sigmoid(emit(R.matmul(code, weights))))))


def product_gated(emit: Any, x: Any, code: Any, weights: Any) -> Any:
    return gated(emit, emit(R.matmul(x, weights)), code, weights)


def sliced(emit: Any, x: Any, weights: Any) -> Any:
    product = emit(R.matmul(x, weights))
    return emit(R.strided_slice(product, [1], [0], [16]))


def padded(emit: Any, x: Any) -> Any:
    """Windows of SAM's encoder: a norm, and zeros behind rows and columns."""
    rows = emit(normalize(x, Normalization((3,), 1e-6, centered=True)))
    return emit(R.nn.pad(rows, [0, 0, 0, 4, 0, 4, 0, 0]))


@pytest.mark.parametrize(
    ("make", "shapes", "expected"),
    [
        (response_norm, (WHOLE, SMALL), ["fused_mean_add_divide", "multiply1"]),
        (less_its_mean(-1), (WHOLE,), ["fused_mean_subtract_tir_exp"]),
        (less_its_mean(2, 3), (WHOLE,), ["fused_mean_subtract_tir_exp"]),
        (less_its_mean(1, 2), (WHOLE,), ["fused_subtract1_tir_exp", "mean"]),
        (less_its_mean(1), (WHOLE,), ["fused_subtract1_tir_exp", "mean"]),
        (gated, (WHOLE, (2, 1, 1, 64), (64, 320)), ["fused_matmul_tir_sigmoid", "multiply1"]),
        (product_gated, ((2, 8, 64), (2, 1, 64), (64, 320)), ["fused_matmul_tir_sigmoid_multiply", "matmul11"]),
        (padded, (WHOLE,), ["normalize", "pad1"]),
        (sliced, ((70, 64), (64, 320)), ["fused_matmul_strided_slice"]),
    ],
)
def test_kernels_end_where_a_reduction_is_broadcast(make: Any, shapes: Any, expected: list[str]) -> None:
    assert sorted(kernels(function(inputs(*shapes), make))) == expected


def test_of_symbolic_extents() -> None:
    count = tvm.tirx.Var("n", "int64")
    whole, small = (
        relax.Var(name, relax.TensorType((count, rows, 64), "float32")) for name, rows in (("x", 9), ("s", 1))
    )
    assert sorted(kernels(function([whole, small], response_norm))) == ["fused_mean_add_divide", "multiply1"]
    assert kernels(function([whole], less_its_mean(-1))) == ["fused_mean_subtract_tir_exp"]
