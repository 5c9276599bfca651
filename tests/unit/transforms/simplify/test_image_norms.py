"""Normalizations over whole images are those of rows of channels last, whatever stands between the reshapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm")
from tvm import relax
from tvm_machine import compute

from packager.graph.dataflow import axes_of, bindings_of, operator_of
from packager.graph.normalize import Normalization, normalize
from packager.graph.rewrite import apply
from packager.lower.devices import DEVICES
from packager.lower.legalize.normalize import expand_norms
from packager.lower.lowering import FLATTEN, FUSE
from packager.transforms.simplify.group_norms import images_as_rows
from tests.unit.transforms.products.test_modulated_convs import function

R = relax.op
SHAPE, F = (2, 12, 5, 3), "float32"


def rows(emit: Callable[[Any], Any], x: Any, groups: int = 1) -> Any:
    return emit(R.reshape(x, [2, groups, 180 // groups]))


def whole(emit: Callable[[Any], Any], x: Any) -> Any:
    found = emit(normalize(rows(emit, x), Normalization((2,), 1e-5)))
    found = emit(R.add(emit(R.multiply(found, relax.const(2.0, F))), relax.const(0.5, F)))
    return emit(R.nn.relu(emit(R.reshape(found, SHAPE))))


def of_groups(emit: Callable[[Any], Any], x: Any) -> Any:
    return emit(R.reshape(emit(normalize(rows(emit, x, 3), Normalization((2,), 1e-5))), SHAPE))


def read_twice(emit: Callable[[Any], Any], x: Any) -> Any:
    flat = rows(emit, x)
    found = emit(R.add(emit(normalize(flat, Normalization((2,), 1e-5))), flat))
    return emit(R.reshape(found, SHAPE))


def of_another_shape(emit: Callable[[Any], Any], x: Any) -> Any:
    found = emit(normalize(rows(emit, x), Normalization((2,), 1e-5)))
    return emit(R.reshape(found, [2, 5, 3, 12]))


@pytest.mark.parametrize(
    ("make", "changes"), [(whole, True), (of_groups, False), (read_twice, False), (of_another_shape, False)]
)
def test_whole_images_are_normalized_with_channels_last(make: Callable[..., Any], changes: bool) -> None:
    before = function([relax.Var("x", relax.TensorType(SHAPE, F))], make)
    after = images_as_rows(before)
    orders = [axes_of(binding.value) for binding in bindings_of(after["main"])]
    assert [order for order in orders if order] == ([(0, 2, 3, 1), (0, 3, 1, 2)] if changes else [])
    assert sum(operator_of(binding.value) == "packager.normalize" for binding in bindings_of(after["main"])) == 1
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(F)
    got, want = (compute(expand_norms(module), [x])[0] for module in (after, before))
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_reshapes_that_are_fused_are_one_view(device: str) -> None:
    def twice(emit: Callable[[Any], Any], x: Any) -> Any:
        flat = emit(R.reshape(emit(R.expand_dims(x, 1)), [2, 1, 180]))
        return emit(R.sum(emit(R.reshape(emit(R.expand_dims(flat, 3)), [2, 36, 5])), [1]))

    module = function([relax.Var("x", relax.TensorType(SHAPE, F))], twice)
    lowered = apply([*DEVICES[device].legalize, *FUSE, *FLATTEN], module)
    assert [operator_of(binding.value) for binding in bindings_of(lowered["main"])] == ["reshape", "call_tir"]
