"""Splits on a GPU: parts that fuse with what reads them are slices; several that stay in memory are copied at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from tvm import relax

from packager.graph.dataflow import bindings_of, operator_of
from packager.transforms.simplify.splits import slice_splits
from tests.unit.lower.test_cuda_lookups import kernels
from tests.unit.transforms.products.test_modulated_convs import function, inputs
from tests.unit.tvm_machine import compute

R = relax.op
SHAPE = (2, 6, 10)


def gated(emit: Any, x: Any) -> Any:
    parts = emit(R.split(x, 2, axis=-1))
    return emit(R.multiply(emit(R.sigmoid(emit(parts[0]))), emit(parts[1])))


def uneven(emit: Any, x: Any) -> Any:
    parts = emit(R.split(x, [1, 4], axis=1))
    third = emit(R.squeeze(emit(R.strided_slice(emit(parts[2]), [1], [0], [1])), [1]))
    return emit(R.add(emit(R.squeeze(emit(parts[0]), [1])), third))


def one_in_memory(emit: Any, x: Any) -> Any:
    """A product reads one part as it is, an operator that fuses the other."""
    parts = emit(R.split(x, 2, axis=-1))
    rows = emit(R.reshape(emit(parts[0]), (12, 5)))
    return emit(R.matmul(rows, emit(R.reshape(emit(R.exp(emit(parts[1]))), (5, 12)))))


def both_in_memory(emit: Any, x: Any) -> Any:
    parts = emit(R.split(x, 2, axis=-1))
    return emit(R.matmul(emit(parts[0]), emit(R.reshape(emit(parts[1]), (2, 5, 6)))))


def read_by_convolutions(emit: Any, x: Any) -> Any:
    """As Inception-NeXt's: they follow the convolutions to channels last."""
    image = emit(R.reshape(x, (2, 10, 6, 1)))
    first, second, _ = (emit(emit(R.split(image, [4, 7], axis=1))[part]) for part in range(3))
    window = relax.const(np.ones((3, 4, 3, 1), np.float32))
    return emit(R.concat([emit(R.nn.conv2d(first, window, padding=(1, 0))), second], axis=1))


def operators(module: Any) -> list[str]:
    return [operator_of(binding.value) for binding in bindings_of(module["main"])]


@pytest.mark.parametrize("make", [gated, uneven, one_in_memory, read_by_convolutions])
def test_parts_that_fuse_are_slices(make: Any) -> None:
    module = function(inputs(SHAPE), make)
    sliced = slice_splits(module)
    assert "split" not in operators(sliced)
    array = np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)
    np.testing.assert_allclose(compute(sliced, [array])[0], compute(module, [array])[0], rtol=1e-6)


def test_a_gate_is_one_kernel() -> None:
    assert len(kernels(slice_splits(function(inputs(SHAPE), gated)))) == 1


def test_several_parts_in_memory_are_copied_at_once() -> None:
    assert operators(slice_splits(function(inputs(SHAPE), both_in_memory))).count("split") == 1
