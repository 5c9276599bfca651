"""Cumulative sums and products: ONNX operators CumSum (version 14) and CumProd (26)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvm import relax

from packager.frontends.onnx.ops.operands import Convert, Converter, known


def _convert(cumulate: Callable[..., Any], kind: str) -> Converter:
    def convert_node(_builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
        data = inputs[0]
        axis = int(known(inputs[1], attributes, f"the axis of {kind}").reshape(-1)[0]) % data.ty.ndim
        backwards, exclusive = bool(attributes.get("reverse", 0)), bool(attributes.get("exclusive", 0))
        ordered = relax.op.flip(data, axis) if backwards else data
        result = cumulate(ordered, axis, exclusive=exclusive)
        return relax.op.flip(result, axis) if backwards else result

    return convert_node


CONVERTERS: Mapping[str, Converter] = {
    "CumSum": _convert(relax.op.cumsum, "CumSum"),
    "CumProd": _convert(relax.op.cumprod, "CumProd"),
}
