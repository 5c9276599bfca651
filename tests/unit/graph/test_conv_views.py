"""3-D convolutions as 2-D ones of views of their tensors, beside the definition."""

from __future__ import annotations

import math

import pytest
import torch

from packager.graph.products.conv2d import Convolution

CASES = {
    "1x1x1": ((4, 5, 6), (1, 1, 1), (0, 0, 0), (1, 1, 1), (1, 1, 1)),
    "a plane": ((4, 7, 8), (1, 3, 2), (0, 1, 0), (1, 2, 1), (1, 1, 2)),
    "a plane of one image": ((1, 7, 8), (1, 3, 3), (0, 1, 1), (1, 1, 1), (1, 1, 1)),
    "a column": ((7, 4, 5), (3, 1, 1), (2, 0, 0), (2, 1, 1), (2, 1, 1)),
}


def convolution(image: tuple[int, ...], *places: tuple[int, ...]) -> Convolution:
    window, padding, stride, dilation = places
    axes = zip(image, window, padding, stride, dilation, strict=True)
    result = tuple((n + 2 * pad - step * (size - 1) - 1) // by + 1 for n, size, pad, by, step in axes)
    return Convolution("float32", 2, image, 3, 4, result, window, padding, stride, dilation)


def last(data: torch.Tensor) -> torch.Tensor:
    """Return a tensor with channels last, contiguous."""
    return data.movedim(1, -1).contiguous()


@pytest.mark.parametrize("name", CASES)
def test_views_are_the_same_convolution(name: str) -> None:
    conv = convolution(*CASES[name])
    flat = conv.planar
    assert len(flat.image) == len(flat.window) == 2
    assert flat.is_product == (name == "1x1x1")
    x, w = torch.randn(2, 3, *conv.image), torch.randn(4, 3, *conv.window)
    options = {"stride": conv.stride, "padding": conv.padding, "dilation": conv.dilation}
    wanted = last(torch.nn.functional.conv3d(x, w, **options))
    assert wanted.shape == (2, *conv.result, 4)
    images = last(x).view(flat.batch, *flat.image, 3).movedim(-1, 1)
    filters = last(w).view(4, *flat.window, 3).movedim(-1, 1)
    options = {"stride": flat.stride, "padding": flat.padding, "dilation": flat.dilation}
    found = last(torch.nn.functional.conv2d(images, filters, **options))
    assert found.shape == (flat.batch, *flat.result, 4)
    assert torch.allclose(found.view(wanted.shape), wanted, atol=1e-5)


@pytest.mark.parametrize(
    "places",
    [
        ((3, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
        ((1, 3, 3), (0, 1, 1), (2, 1, 1), (1, 1, 1)),
        ((1, 3, 3), (1, 1, 1), (1, 1, 1), (1, 1, 1)),
        ((3, 3, 1), (1, 1, 0), (1, 1, 1), (1, 1, 1)),
        ((3, 1, 1), (1, 0, 0), (1, 1, 2), (1, 1, 1)),
        ((1, 1, 1), (0, 0, 0), (2, 2, 2), (1, 1, 1)),
    ],
    ids=str,
)
def test_what_is_no_view(places: tuple[tuple[int, ...], ...]) -> None:
    conv = convolution((5, 6, 7), *places)
    assert conv.planar is conv


def test_padding_behind_is_what_the_result_needs() -> None:
    conv = convolution((5, 6, 8), (3, 3, 2), (1, 1, 1), (1, 2, 3), (1, 1, 1))
    assert conv.behind == (1, 0, 0)
    assert math.prod(conv.result) == 5 * 3 * 3
