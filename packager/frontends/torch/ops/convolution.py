"""The converter of torch's convolutions, transposed ones too, of one, two and three dimensions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvm import relax

# Layouts of data and of the filters' spatial axes, by the number of spatial axes.
_LAYOUTS = {1: ("NCW", "W"), 2: ("NCHW", "HW"), 3: ("NCDHW", "DHW")}


def _convolution(importer: Any, node: Any) -> Any:
    """Convert ``convolution``, whose result has the type of the data."""
    data, weight, bias, stride, padding, dilation, transposed, output_padding, groups = node.args
    rank = data.meta["val"].ndim - 2
    layout, axes = _LAYOUTS[rank]
    attributes = {
        "strides": _each(stride, rank),
        "padding": _each(padding, rank) * 2,
        "dilation": _each(dilation, rank),
        "groups": groups,
        "data_layout": layout,
        "kernel_layout": f"{'IO' if transposed else 'OI'}{axes}",
        "out_dtype": importer.dtype(node),
    }
    if transposed:
        attributes["output_padding"] = _each(output_padding, rank)
    function = getattr(relax.op.nn, f"conv{rank}d{'_transpose' if transposed else ''}")
    result = function(importer.tensor(data), importer.tensor(weight), **attributes)
    if bias is None:
        return result
    column = importer.emit(relax.op.reshape(importer.tensor(bias), (1, -1, *[1] * rank)))
    return relax.op.add(importer.emit(result), column)


def _each(values: Any, rank: int) -> list[int]:
    """Return a value for each axis: torch may give one for all."""
    given = [int(value) for value in values]
    return given * rank if len(given) == 1 else given


CONVOLUTIONS: Mapping[str, Callable[[Any, Any], Any]] = {"convolution.default": _convolution}
