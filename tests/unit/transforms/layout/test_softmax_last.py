"""Softmax over another axis than the last one is taken over rows, between permutations that convolutions cancel."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from tvm import relax, tirx

from packager.graph.dataflow import bindings_of, operator_of
from packager.transforms.layout.softmax_last import to_last_axis
from tests.unit.transforms.products.test_modulated_convs import F, function
from tests.unit.tvm_machine import compute

R = relax.op


def operators(module: Any) -> list[str]:
    return [operator_of(binding.value) for binding in bindings_of(module["main"])]


@pytest.mark.parametrize("name", ["softmax", "log_softmax"])
@pytest.mark.parametrize(("shape", "axis"), [((3, 5, 4), 1), ((2, 3, 4, 5), 1), ((4, 6), 0), ((2, 7, 3, 2), -3)])
def test_rows(name: str, shape: tuple[int, ...], axis: int) -> None:
    x = relax.Var("x", relax.TensorType((tirx.Var("n", "int64"), *shape[1:]), F))
    module = function([x], lambda _emit, x: getattr(R.nn, name)(x, axis))
    turned = to_last_axis(module)
    assert operators(turned) == ["permute_dims", f"nn.{name}", "permute_dims"]
    data = np.random.default_rng(0).standard_normal(shape).astype(F)
    exact = np.exp(data.astype("f8")) / np.exp(data.astype("f8")).sum(axis, keepdims=True)
    (result,) = compute(turned, [data])
    np.testing.assert_allclose(result, np.log(exact) if name == "log_softmax" else exact, rtol=1e-5, atol=1e-6)


def test_the_last_axis_stays() -> None:
    x = relax.Var("x", relax.TensorType((2, 3, 4), F))
    module = function([x], lambda _emit, x: R.nn.softmax(x, -1))
    assert operators(to_last_axis(module)) == ["nn.softmax"]


@pytest.mark.parametrize(
    ("shape", "axis"), [((2, 3, 4, 5), 1), ((2, 3, 4, 5), 2), ((2, 3, 4), 1), ((2, 3, 2, 4, 5), -4)]
)
def test_channels_of_images_alone_where_asked_for(shape: tuple[int, ...], axis: int) -> None:
    module = function([relax.Var("x", relax.TensorType(shape, F))], lambda _emit, x: R.nn.softmax(x, axis))
    turned = operators(to_last_axis(module, of_images=True))
    assert (turned == ["permute_dims", "nn.softmax", "permute_dims"]) == (len(shape) > 3 and axis in (1, -4))
