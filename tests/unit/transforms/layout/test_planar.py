"""Convolutions of sequences are those of images of one row, of groups of four channels or more, or of one each."""

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


def convolution(channels: int, groups: int, **options: Any) -> Any:
    """Return a module of a convolution of [2, channels, 30] that relu follows; its last parameter is a constant."""
    shapes = [(2, channels, 30), (channels, channels // groups, 5)]
    return function(
        inputs(*shapes), lambda emit, x, w: R.nn.relu(emit(R.nn.conv1d(x, w, groups=groups, padding=[4, 0], **options)))
    )


@pytest.mark.parametrize("options", [{}, {"strides": 2}, {"dilation": 3}])
@pytest.mark.parametrize(("channels", "groups", "is_image"), [(8, 1, True), (8, 2, True), (8, 8, True), (8, 4, False)])
def test_lines_become_images(channels: int, groups: int, is_image: bool, options: dict[str, int]) -> None:
    module = convolution(channels, groups, **options)
    made = convolve_lines_as_images(module, 1)
    names = [operator_of(binding.value) for binding in bindings_of(made["main"])]
    assert ("nn.conv2d" in names, "nn.conv1d" in names) == (is_image, not is_image)
    assert_same_results(made, module, rtol=1e-5, atol=1e-5)
