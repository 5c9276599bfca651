"""One token of many is normalized alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from tvm import relax

from packager.graph.dataflow import bindings_of, operator_of, shape_of
from packager.transforms.simplify.slice_norms import slice_before_norms
from tests.unit.transforms.products.test_modulated_convs import function, inputs
from tests.unit.tvm_machine import compute

R = relax.op
SHAPES = ((2, 5, 6), (6,), (6,))


def normalized(emit: Any, x: Any, scale: Any, shift: Any) -> Any:
    return emit(R.nn.layer_norm(x, scale, shift, axes=[-1]))


def token(emit: Any, *given: Any) -> Any:
    return emit(R.squeeze(emit(R.strided_slice(normalized(emit, *given), [1], [0], [1])), [1]))


def root_mean(emit: Any, x: Any, scale: Any, _: Any) -> Any:
    return emit(R.strided_slice(emit(R.nn.rms_norm(x, scale, axes=[-1])), [0, 1], [1, 2], [2, 4]))


def columns(emit: Any, *given: Any) -> Any:
    return emit(R.strided_slice(normalized(emit, *given), [2], [0], [3]))


def read_twice(emit: Any, *given: Any) -> Any:
    rows = normalized(emit, *given)
    return emit(R.multiply(rows, emit(R.strided_slice(rows, [1], [0], [1]))))


@pytest.mark.parametrize(
    ("make", "rows"), [(token, (2, 1, 6)), (root_mean, (1, 2, 6)), (columns, (2, 5, 6)), (read_twice, (2, 5, 6))]
)
def test_rows_that_are_read_are_normalized_alone(make: Any, rows: tuple[int, ...]) -> None:
    module = function(inputs(*SHAPES), make)
    rewritten = slice_before_norms(module)
    (norm,) = (b for b in bindings_of(rewritten["main"]) if operator_of(b.value) in {"nn.layer_norm", "nn.rms_norm"})
    assert shape_of(norm.var) == rows
    arrays = [np.random.default_rng(0).standard_normal(shape).astype(np.float32) for shape in SHAPES]
    np.testing.assert_allclose(compute(rewritten, arrays)[0], compute(module, arrays)[0], rtol=1e-5, atol=1e-6)
