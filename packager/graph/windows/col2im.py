"""The Relax operator ``packager.col2im``: adds up windows that overlap in an image.

It is the inverse of im2col, ONNX's Col2Im, and the second half of a transposed convolution, after a product that
computes the windows of each pixel.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import tvm
from tvm import relax, te, tirx
from tvm.ir import Op

from packager.graph.own_operators import register

NAME = "relax.packager.col2im"


@dataclass(frozen=True)
class Windows:
    """The attributes of a call, each with a number for each axis of the image.

    Tap ``k`` of window ``i`` is added to the element ``i * strides + k * dilations - before`` of an image of
    ``extents``, unless that is beyond its edges. There are ``counts`` windows of ``size`` taps.
    """

    extents: tuple[int, ...]
    size: tuple[int, ...]
    counts: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[int, ...]


def col2im(data: Any, windows: Windows) -> relax.Call:
    """Return the call on [N, C * taps, windows], of which the last may be several axes; the result is [N, C, ...]."""
    attrs = tvm.ir.make_node("ir.DictAttrs", **{name: list(values) for name, values in asdict(windows).items()})
    return relax.Call(Op.get(NAME), [data], attrs)


def windows_of_call(attrs: Any) -> Windows:
    """Return the attributes of a call."""
    names = ("extents", "size", "counts", "strides", "dilations", "before")
    return Windows(*(tuple(int(value) for value in attrs[name]) for name in names))


def legalize_col2im(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize a call: a gather of what each element of the image adds up, so that no element has two writers."""
    windows = windows_of_call(call.attrs)
    batch, channels = call.ty.shape.values[:2]

    def compute(x: Any) -> Any:
        taps = [te.reduce_axis((0, size), name=f"k{axis}") for axis, size in enumerate(windows.size)]

        def element(n: Any, c: Any, *pixel: Any) -> Any:
            row, places, inside = c, [], []
            for axis, (size, count) in enumerate(zip(windows.size, windows.counts, strict=True)):
                row = row * size + taps[axis]
                from_start = pixel[axis] + windows.before[axis] - taps[axis] * windows.dilations[axis]
                place = tirx.floordiv(from_start, windows.strides[axis])
                inside += [tirx.floormod(from_start, windows.strides[axis]) == 0, place >= 0, place < count]
                places.append(place)
            if len(x.shape) == 3:
                column = places[0]
                for place, count in zip(places[1:], windows.counts[1:], strict=True):
                    column = column * count + place
                places = [column]
            return te.sum(tirx.if_then_else(tirx.all(*inside), x(n, row, *places), tirx.const(0, x.dtype)), axis=taps)

        return te.compute((batch, channels, *windows.extents), element, name="col2im")

    return builder.call_te(compute, call.args[0], primfunc_name_hint="col2im")


def _infer(call: Any, _builder: Any) -> Any:
    data, windows = call.args[0].ty, windows_of_call(call.attrs)
    batch, rows = data.shape.values[:2]
    channels = tirx.IntImm("int64", int(rows) // math.prod(windows.size))
    return relax.TensorType([batch, channels, *windows.extents], str(data.dtype))


register(NAME, "Windows of an image, added up", ("data",), _infer)
