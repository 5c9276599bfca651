"""The Relax operator ``packager.resize``: weighted sums along axes, whose indices and weights tables give.

All modes of ONNX's Resize with extents that are known are such sums, in any layout.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, te, tirx
from tvm.ir import Op

from packager.graph.own_operators import register

NAME = "relax.packager.resize"


@dataclass(frozen=True)
class Resizing:
    """The attributes of a call: the resized axes, and the value beyond the edges along those of ``cropped``."""

    axes: tuple[int, ...]
    cropped: tuple[bool, ...]
    extrapolation: float = 0.0


def resize(data: Any, tables: Sequence[Any], attributes: Resizing) -> relax.Call:
    """Return the call.

    ``tables`` has three for each axis: indices, int32 [extent, taps], weights, floats of that shape, and whether an
    element is beyond the edges, int32 [extent]. Sums are computed in the type of the weights.
    """
    attrs = tvm.ir.make_node(
        "ir.DictAttrs",
        axes=list(attributes.axes),
        cropped=list(map(int, attributes.cropped)),
        extrapolation=attributes.extrapolation,
    )
    return relax.Call(Op.get(NAME), [data, relax.Tuple(list(tables))], attrs)


def attributes_of_call(attrs: Any) -> Resizing:
    """Return the attributes of a call."""
    return Resizing(
        tuple(int(axis) for axis in attrs["axes"]),
        tuple(bool(int(flag)) for flag in attrs["cropped"]),
        float(attrs["extrapolation"]),
    )


def legalize_resize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize a call: one loop nest."""
    attributes, (data, given) = attributes_of_call(call.attrs), call.args
    if isinstance(given, relax.Tuple):
        tables = list(given.fields)
    else:
        tables = [relax.TupleGetItem(given, index) for index in range(len(given.ty.fields))]
    taps = [int(table.ty.shape.values[1]) for table in tables[::3]]

    def compute(x: Any, *arrays: Any) -> Any:
        return _sums(x, arrays, taps, attributes)

    return builder.call_te(compute, data, *tables, primfunc_name_hint="resize")


def _sums(x: Any, tables: Sequence[Any], taps: Sequence[int], attributes: Resizing) -> Any:
    dtype, work = str(x.dtype), str(tables[1].dtype)
    exact = all(count == 1 for count in taps)

    def element(*index: Any) -> Any:
        total = None
        for choice in itertools.product(*map(range, taps)):
            source, weight = list(index), None
            for number, (axis, tap) in enumerate(zip(attributes.axes, choice, strict=True)):
                source[axis] = tables[3 * number][index[axis], tap].astype("int64")
                factor = tables[3 * number + 1][index[axis], tap]
                weight = factor if weight is None else weight * factor
            term = x(*source) if exact else x(*source).astype(work) * weight
            total = term if total is None else total + term
        if not exact:
            total = _stored(total, dtype)
        for number, (axis, is_cropped) in enumerate(zip(attributes.axes, attributes.cropped, strict=True)):
            if is_cropped:
                beyond = tables[3 * number + 2][index[axis]] != 0
                total = tirx.Select(beyond, tirx.const(attributes.extrapolation, dtype), total)
        return total

    sizes = list(x.shape)
    for number, axis in enumerate(attributes.axes):
        sizes[axis] = tables[3 * number].shape[0]
    return te.compute(sizes, element, name="resize")


def _stored(value: Any, dtype: str) -> Any:
    """Convert a sum to the result type: integers are truncated and saturate."""
    if not dtype.startswith(("int", "uint")):
        return value.astype(dtype)
    limits = np.iinfo(dtype)
    low, high = (tirx.const(float(limit), value.ty.dtype) for limit in (limits.min, limits.max))
    return tirx.min(tirx.max(value, low), high).astype(dtype)


def _infer(call: Any, _builder: Any) -> Any:
    data, tables = call.args[0].ty, call.args[1].ty
    extents = list(data.shape.values)
    for number, axis in enumerate(attributes_of_call(call.attrs).axes):
        extents[axis] = tables.fields[3 * number].shape.values[0]
    return relax.TensorType(extents, str(data.dtype))


register(NAME, "Weighted sums along axes", ("data", "tables"), _infer)
