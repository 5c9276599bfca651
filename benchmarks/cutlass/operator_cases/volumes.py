"""Cases of cutlass/operators.py: 3-D convolutions by kernels of their own, and those that are 2-D ones of views."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from benchmarks.cutlass.operator_cases import ACTIVATIONS, TOLERANCES, Case

Triple = tuple[int, int, int]
ONES, THREES = (1, 1, 1), (3, 3, 3)


def volume(
    *sizes: Any,
    window: Triple = THREES,
    stride: Triple = ONES,
    padding: Sequence[int] | None = None,
    dilation: Triple = ONES,
    activation: str = "relu",
    residual: bool = False,
    dtype: str = "float16",
    **options: Any,
) -> Case:
    """A 3-D convolution with bias; a residual is added before the activation.

    ``sizes`` are the name, the batches, channels, filters, and the image's depth, height and width. ``padding`` is
    that before and behind each axis, by default half of the window.
    """
    name, batch, channels, filters, *image = sizes
    count = "n" if len(batch) > 1 else str(batch[0])
    runs = [{"n": each} for each in batch] if len(batch) > 1 else [{}]
    halves = [(extent - 1) * step // 2 for extent, step in zip(window, dilation, strict=True)]
    pads = list(padding or halves * 2)
    after = [
        (image[axis] + pads[axis] + pads[3 + axis] - dilation[axis] * (window[axis] - 1) - 1) // stride[axis] + 1
        for axis in range(3)
    ]
    attributes = f"strides = {list(stride)}, pads = {pads}, dilations = {list(dilation)}"
    shape = f"{dtype}[{count},{filters},{','.join(map(str, after))}]"
    inputs = f"{dtype}[{count},{channels},{','.join(map(str, image))}] x" + (f", {shape} r" if residual else "")
    last = "a = Add(p, r) " if residual else "a = Identity(p) "
    text = f"({inputs}) => ({shape} y) {{ p = Conv<{attributes}>(x, weight, b) {last}{ACTIVATIONS[activation]} }}"
    weights = {"weight": (filters, channels, *window), "b": (filters,)}
    return Case(name, text, weights, TOLERANCES[options.get("precision") or dtype], runs, **options)


def volumes() -> Iterator[Case]:
    """Yield views of images first, then windows of three axes."""
    yield volume("volume_1x1x1", [2], 64, 128, 6, 10, 12, window=ONES)
    yield volume("volume_1x1x1_odd", [2], 10, 21, 5, 7, 9, window=ONES)
    yield volume("volume_plane", [1, 3], 64, 64, 6, 14, 10, window=(1, 3, 3), residual=True)
    yield volume("volume_plane_stride", [2], 64, 128, 6, 14, 11, window=(1, 3, 3), stride=(1, 2, 2))
    yield volume("volume_plane_odd", [2], 10, 21, 5, 9, 7, window=(1, 3, 3))
    yield volume("volume_column", [1, 3], 64, 64, 8, 7, 9, window=(3, 1, 1), residual=True)
    yield volume("volume_column_stride", [2], 64, 128, 8, 7, 9, window=(3, 1, 1), stride=(2, 1, 1))
    yield volume("volume_column_dilated", [2], 64, 64, 9, 6, 7, window=(3, 1, 1), dilation=(2, 1, 1))
    yield volume("volume_column_odd", [2], 45, 64, 8, 7, 9, window=(3, 1, 1))
    yield volume("volume_column_3xtf32", [2], 64, 64, 8, 7, 9, window=(3, 1, 1), dtype="float")
    for channels in (8, 16, 32, 64):
        yield volume(f"volume_ic{channels}", [1, 2], channels, 32, 9, 10, 11)
    for filters in (8, 16, 48, 128, 320):
        yield volume(f"volume_oc{filters}", [2], 32, filters, 8, 9, 10)
    yield volume("volume_wide", [1], 128, 256, 4, 7, 7)
    for filters in (64, 128, 160, 192, 256):
        yield volume(f"volume_rows_{filters}", [1], 64, filters, 16, 34, 33)
    yield volume("volume_residual_relu", [2], 64, 64, 5, 9, 7, residual=True)
    yield volume("volume_residual", [1, 3], 16, 16, 8, 8, 8, residual=True, activation="")
    yield volume("volume_silu", [2], 32, 32, 6, 7, 8, activation="silu")
    for axis, name in enumerate(("depth", "height", "width")):
        stride = tuple(2 if axis == each else 1 for each in range(3))
        yield volume(f"volume_stride_{name}", [2], 32, 64, 9, 10, 11, stride=stride)
        longer = tuple(3 if axis == each else 1 for each in range(3))
        yield volume(f"volume_dilated_{name}", [2], 32, 64, 11, 12, 13, dilation=longer)
        edge = tuple(2 if axis == each else 0 for each in range(6))
        yield volume(f"volume_before_{name}", [2], 32, 64, 7, 8, 9, padding=edge)
        edge = tuple(2 if 3 + axis == each else 0 for each in range(6))
        yield volume(f"volume_behind_{name}", [2], 32, 64, 7, 8, 9, padding=edge)
    yield volume("volume_stride_2", [2], 64, 128, 8, 14, 14, stride=(2, 2, 2))
    yield volume("volume_no_padding", [2], 32, 64, 7, 8, 9, padding=(0,) * 6)
    yield volume("volume_1x1x1_stride_2", [2], 64, 128, 8, 14, 14, window=ONES, stride=(2, 2, 2))
    yield volume("volume_plane_every_second", [2], 64, 64, 8, 9, 10, window=(1, 3, 3), stride=(2, 1, 1))
    yield volume("volume_window_2x5x7", [2], 32, 64, 6, 12, 14, window=(2, 5, 7), padding=(1, 2, 3, 0, 2, 3))
    yield volume("volume_window_3x3x1", [2], 32, 64, 6, 7, 8, window=(3, 3, 1))
    yield volume("volume_bf16", [2], 32, 32, 6, 7, 8, dtype="float", precision="bf16")
