"""Read the geometry of any convolution: of one to three axes, grouped, transposed, padded by an operator before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from packager.graph.dataflow import Dataflow, operator_of, shape_of

OPERATORS = tuple(f"nn.conv{axes}d{suffix}" for suffix in ("", "_transpose") for axes in (1, 2, 3))
SPATIAL = {1: "W", 2: "HW", 3: "DHW"}


@dataclass(frozen=True)
class AnyConvolution:
    """A convolution of ``data``, whose batch, channels and spatial extents are in one of two orders.

    ``image``, ``result``, ``window``, ``before``, ``after`` (padding), ``stride`` and ``dilation`` have an entry for
    each spatial axis. ``filters`` are the channels of the result. The weights are [filters, channels / groups], those
    of a transposed convolution [channels, filters / groups], with the window behind or, if ``weights_last``, between.
    ``pads`` are the variables of a padding that is part of it.
    """

    data: Any
    weights: Any
    dtype: str
    batch: Any
    channels: int
    filters: int
    groups: int
    image: tuple[Any, ...]
    result: tuple[Any, ...]
    window: tuple[int, ...]
    before: tuple[int, ...]
    after: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    transposed: bool
    channels_last: bool
    weights_last: bool
    pads: tuple[Any, ...] = ()

    @property
    def is_depthwise(self) -> bool:
        """Whether no channel is added to another."""
        return self.groups > 1 and self.groups == self.channels


def read_convolution(flow: Dataflow, anchor: Any) -> AnyConvolution | None:
    """Return the convolution that a variable is bound to, of any types; None if its layout is another."""
    call = flow.value(anchor)
    data, weights = call.args
    image, extents, result = shape_of(data), shape_of(weights), shape_of(anchor)
    if not image or not extents or not result or operator_of(call) not in OPERATORS:
        return None
    attrs, spatial = call.attrs, SPATIAL[len(image) - 2]
    transposed = operator_of(call).endswith("_transpose")
    rows, columns = "IO" if transposed else "OI"
    layouts = {f"NC{spatial}": False, f"N{spatial}C": True}
    kernels = {f"{rows}{columns}{spatial}": False, f"{rows}{spatial}{columns}": True}
    last, weights_last = layouts.get(str(attrs.data_layout)), kernels.get(str(attrs.kernel_layout))
    if last is None or weights_last is None or str(attrs.out_layout) not in (str(attrs.data_layout), ""):
        return None
    inner = extents[1:-1] if weights_last else extents[2:]
    channels = image[-1 if last else 1], result[-1 if last else 1]
    if not all(isinstance(extent, int) and extent > 0 for extent in (*extents, *channels)):
        return None
    padding, axes = _numbers(attrs.padding), len(spatial)
    return AnyConvolution(
        data=data,
        weights=weights,
        dtype=str(data.ty.dtype),
        batch=image[0],
        channels=channels[0],
        filters=channels[1],
        groups=int(attrs.groups),
        image=tuple(image[1:-1] if last else image[2:]),
        result=tuple(result[1:-1] if last else result[2:]),
        window=tuple(inner),
        before=padding[:axes],
        after=padding[axes:],
        stride=_numbers(attrs.strides),
        dilation=_numbers(attrs.dilation),
        transposed=transposed,
        channels_last=last,
        weights_last=weights_last,
    )


def with_padding(flow: Dataflow, conv: AnyConvolution) -> AnyConvolution:
    """Return a convolution of the image before a padding with zeros that nothing else reads; else itself."""
    call = flow.call(conv.data, "nn.pad")
    if call is None or conv.transposed or flow.is_result(conv.data) or len(flow.readers(conv.data)) != 1:
        return conv
    widths, source = _numbers(call.attrs.pad_width), shape_of(call.args[0])
    if call.attrs.pad_mode != "constant" or float(call.attrs.pad_value) != 0 or min(widths) < 0 or not source:
        return conv
    first = 1 if conv.channels_last else 2
    axes = range(first, first + len(conv.window))
    if any(widths[2 * axis] or widths[2 * axis + 1] for axis in range(len(source)) if axis not in axes):
        return conv
    changes = {
        "data": call.args[0],
        "image": tuple(source[axis] for axis in axes),
        "before": tuple(width + widths[2 * axis] for width, axis in zip(conv.before, axes, strict=True)),
        "after": tuple(width + widths[2 * axis + 1] for width, axis in zip(conv.after, axes, strict=True)),
        "pads": (conv.data,),
    }
    return AnyConvolution(**{**vars(conv), **changes})


def _numbers(values: Any) -> tuple[int, ...]:
    return tuple(int(value) for value in values)
