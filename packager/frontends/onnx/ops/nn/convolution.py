"""Converter of convolutions whose padding follows from the extents: ``auto_pad``, as files from TensorFlow have it.

TVM's importer pads by a loop of its own then, which no pass moves and no convolution takes in. ONNX operator Conv (22).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from packager.frontends.onnx.ops.nn.padding import padded, same_padding
from packager.frontends.onnx.ops.operands import Convert, Converter, dtype_of, extents, static_extents, text


def convolve(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """Convolve ``inputs``: the image [N, C, ...], the filters [O, C / groups, ...] and a bias or None."""
    auto = text(attributes, "auto_pad", "NOTSET")
    if not auto.startswith("SAME"):
        return convert("Conv", list(inputs), attributes)
    image, filters, *bias = inputs
    before, after = _padding(image, filters, attributes, upper=auto == "SAME_UPPER")
    plain = {name: value for name, value in attributes.items() if name != "auto_pad"}
    if all(isinstance(width, int) for width in (*before, *after)):
        return convert("Conv", [image, filters, *bias], plain | {"pads": [*before, *after]})
    zero, none = relax.const(0, dtype_of(image)), [0, 0]
    widths = ([*none, *before], [*none, *after])
    image = builder.emit(builder.call_te(padded, image, zero, *widths, "constant", primfunc_name_hint="pad"))
    return convert("Conv", [image, filters, *bias], plain | {"pads": [0] * len(before + after)})


def _padding(image: Any, filters: Any, attributes: Mapping[str, Any], *, upper: bool) -> tuple[list[Any], list[Any]]:
    """Return the padding before and after each axis: as much as keeps every ``stride``-th pixel; ``upper`` pads an odd
    one after the image."""
    spatial, kernel = extents(image)[2:], static_extents(filters, "the filters of a convolution", 2)
    strides = attributes.get("strides", [1] * len(spatial))
    dilations = attributes.get("dilations", [1] * len(spatial))
    axes = zip(spatial, kernel, strides, dilations, strict=True)
    widths = [same_padding(extent, (size - 1) * d + 1, stride, upper=upper) for extent, size, stride, d in axes]
    return [before for before, _ in widths], [after for _, after in widths]


CONVERTERS: Mapping[str, Converter] = {"Conv": convolve}
