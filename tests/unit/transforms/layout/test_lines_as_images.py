"""Convolutions of sequences are those of images of one row, of groups of four channels or more, or of one each that
lie last."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tvm")
from tvm import relax

from packager.graph.dataflow import bindings_of, operator_of
from packager.transforms.layout.planar import convolve_lines_as_images
from tests.unit.transforms.products.test_modulated_convs import function, inputs
from tests.unit.tvm_machine import assert_same_results

R = relax.op


def convolution(channels: int, groups: int, *, last: bool, **options: Any) -> Any:
    """Return a module of a convolution of 30 places that relu follows; its last parameter is a constant."""

    def make(emit: Any, x: Any, w: Any) -> Any:
        first = emit(R.permute_dims(emit(R.tanh(x)), [0, 2, 1])) if last else x
        return R.nn.relu(emit(R.nn.conv1d(emit(R.negative(first)), w, groups=groups, padding=[4, 0], **options)))

    return function(inputs((2, 30, channels) if last else (2, channels, 30), (channels, channels // groups, 5)), make)


@pytest.mark.parametrize("options", [{}, {"strides": 2}, {"dilation": 3}])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize(("groups", "becomes"), [(1, "always"), (2, "always"), (8, "last"), (4, "never")])
def test_lines_become_images(groups: int, becomes: str, last: bool, options: dict[str, int]) -> None:
    module, is_image = convolution(8, groups, last=last, **options), becomes == "always" or (becomes == "last" and last)
    made = convolve_lines_as_images(module, 1)
    names = [operator_of(binding.value) for binding in bindings_of(made["main"])]
    assert ("nn.conv2d" in names, "nn.conv1d" in names) == (is_image, not is_image)
    assert_same_results(made, module, rtol=1e-5, atol=1e-5)
