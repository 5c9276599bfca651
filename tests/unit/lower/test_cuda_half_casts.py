"""Kernels of half precision read and write it, whatever they compute in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from tvm import relax, tirx

from packager.graph.rewrite import apply
from packager.lower.cuda.fusion.half_casts import read_half_means
from packager.lower.devices import DEVICES
from packager.lower.lowering import FLATTEN, FUSE
from packager.transforms.repeat_views import repeat_casts
from tests.unit.transforms.products.test_modulated_convs import function
from tests.unit.tvm_machine import compute

R = relax.op
H, F = "float16", "float32"
SHAPE = (2, 9, 5, 64)


def halves(*shapes: tuple[int, ...]) -> list[Any]:
    return [relax.Var(f"x{number}", relax.TensorType(shape, H)) for number, shape in enumerate(shapes)]


def response(emit: Any, x: Any) -> Any:
    """A norm over the places of an image, and its product with the image."""
    wide = emit(R.astype(emit(R.nn.relu(x)), F))
    norm = emit(R.sqrt(emit(R.sum(emit(R.multiply(wide, wide)), [1, 2], keepdims=True))))
    return emit(R.astype(emit(R.multiply(wide, norm)), H))


def gate(emit: Any, x: Any) -> Any:
    """Squeeze and excitation: the mean is of the values that it scales."""
    wide = emit(R.astype(emit(R.nn.relu(x)), F))
    return emit(R.astype(emit(R.multiply(wide, emit(R.mean(wide, [1, 2], keepdims=True)))), H))


def pooled(emit: Any, x: Any) -> Any:
    """The mean alone reads the cast."""
    return emit(R.astype(emit(R.mean(emit(R.astype(emit(R.nn.relu(x)), F)), [1, 2])), H))


def widened(emit: Any, x: Any) -> Any:
    """Without axes."""
    return emit(R.mean(emit(R.astype(x, F))))


def smoothed(emit: Any, x: Any) -> Any:
    """PoolFormer: the difference of neighbors' means and the values."""
    wide = emit(R.astype(emit(R.nn.relu(x)), F))
    means = emit(R.nn.avg_pool2d(wide, [3, 3], padding=[1, 1, 1, 1], layout="NHWC", count_include_pad=False))
    return emit(R.astype(emit(R.subtract(means, wide)), H))


def strided(emit: Any, x: Any) -> Any:
    """With an incomplete last window."""
    wide = emit(R.astype(x, F))
    return emit(R.nn.avg_pool2d(wide, [2, 3], [2, 2], [0, 1, 1, 0], ceil_mode=True, layout="NHWC"))


@pytest.mark.parametrize("make", [response, gate, pooled, smoothed])
def test_kernels_write_halves(make: Any) -> None:
    module = apply([*DEVICES["cuda"].legalize, *FUSE, *FLATTEN], function(halves(SHAPE), make))
    functions = [f for f in module.functions.values() if isinstance(f, tirx.PrimFunc)]
    assert len(functions) > 1
    large = [p for f in functions for p in f.params if [int(e) for e in p.shape] == list(SHAPE)]
    assert {str(p.dtype) for p in large} == {H}


@pytest.mark.parametrize("make", [response, gate, pooled, widened, smoothed, strided])
def test_the_result_is_the_same(make: Any) -> None:
    module = function(halves(SHAPE), make)
    x = np.random.default_rng(0).standard_normal(SHAPE).astype(H)
    (got,), (wanted,) = (compute(m, [x]) for m in (read_half_means(repeat_casts(module)), module))
    np.testing.assert_allclose(got, wanted, rtol=2e-3)
    assert got.dtype == wanted.dtype


def test_what_is_returned_stays_shared() -> None:
    """As what one operator reads, or one that is fused with nothing before it."""

    def make(emit: Any, x: Any, y: Any) -> Any:
        wide = emit(R.astype(x, F))
        return emit(relax.Tuple([wide, emit(R.matmul(wide, emit(R.astype(y, F))))]))

    module = function(halves((8, 16), (16, 4)), make)
    assert str(repeat_casts(module)) == str(module)
