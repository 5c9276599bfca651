"""Slices that several read are views of each that computes elements, in place of one copy for all."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tvm")
from tvm import relax

from packager.graph.dataflow import bindings_of, operator_of
from packager.transforms.repeat_views import repeat_views
from tests.unit.transforms.products.test_modulated_convs import function, inputs
from tests.unit.tvm_machine import assert_same_results

R = relax.op


def read_by_all(emit: Any, rows: Any, other: Any) -> Any:
    """Queries that attention, a gate and a sum read, as ConvBERT's (arXiv:2008.02496)."""
    q = emit(R.strided_slice(rows, [1], [8], [24]))
    heads = emit(R.reshape(q, (6, 2, 8)))
    gate = emit(R.multiply(q, other))
    return R.add(emit(R.add(gate, q)), emit(R.reshape(emit(R.negative(heads)), (6, 16))))


def read_once(emit: Any, rows: Any, other: Any) -> Any:
    return R.multiply(emit(R.strided_slice(rows, [1], [8], [24])), other)


def read_by_products(emit: Any, rows: Any, other: Any) -> Any:
    q = emit(R.strided_slice(rows, [1], [8], [24]))
    return R.add(emit(R.matmul(emit(R.matmul(q, emit(R.permute_dims(other)))), q)), other)


@pytest.mark.parametrize(("make", "slices"), [(read_by_all, 3), (read_once, 1), (read_by_products, 1)])
def test_elementwise_readers_have_slices_of_their_own(make: Any, slices: int) -> None:
    module = function(inputs((6, 32), (6, 16)), make)
    made = repeat_views(module)
    assert sum(operator_of(binding.value) == "strided_slice" for binding in bindings_of(made["main"])) == slices
    assert_same_results(made, module, rtol=1e-5, atol=1e-5)
