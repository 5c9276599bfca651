"""FillBeyond: overwrite the elements of a bounded-size tensor beyond its count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax

from packager.frontends.onnx.ops.operands import Convert, Converter, dtype_of, static_extents, tensor_constant, text


def _fill_beyond(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """Fill the slices from a count on with a constant."""
    data, count = inputs
    axis, dtype, shape = attributes["axis"], dtype_of(data), static_extents(data)
    positions = np.arange(shape[axis], dtype=np.int64).reshape([-1 if i == axis else 1 for i in range(len(shape))])
    inside = builder.emit(relax.op.less(tensor_constant(positions), count))
    return relax.op.where(inside, data, relax.const(_fill_value(text(attributes, "fill", ""), dtype), dtype))


def _fill_value(fill: str, dtype: str) -> Any:
    if dtype == "bool":
        return fill in ("one", "highest")
    if fill in ("zero", "one"):
        return int(fill == "one")
    if dtype.startswith(("int", "uint")):
        info = np.iinfo(dtype)
        return info.min if fill == "lowest" else info.max
    return -np.inf if fill == "lowest" else np.inf


COUNT_CONVERTERS: Mapping[str, Converter] = {"FillBeyond": _fill_beyond}
