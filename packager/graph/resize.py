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
from packager.ir.pattern_kinds import INJECTIVE

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
    return _legalized(builder, call, {})


def legalize_fused_resize(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize a call for GPUs: a function that fuses with what reads it, such as a concatenation.

    TVM does not see that an element is made of few: where they are read from is data.
    """
    return _legalized(builder, call, {"op_pattern": INJECTIVE})


def _legalized(builder: relax.BlockBuilder, call: relax.Call, attributes: dict[str, int]) -> relax.Expr:
    resizing, (data, given) = attributes_of_call(call.attrs), call.args
    if isinstance(given, relax.Tuple):
        tables = list(given.fields)
    else:
        tables = [relax.TupleGetItem(given, index) for index in range(len(given.ty.fields))]
    axes = [
        _Axis(axis, tables[3 * i : 3 * i + 3], is_cropped)
        for i, (axis, is_cropped) in enumerate(zip(resizing.axes, resizing.cropped, strict=True))
    ]
    exact = all(axis.taps == 1 for axis in axes)
    work = str(tables[1].ty.dtype)
    read = [table for axis in axes for table in axis.read(exact)]

    def compute(x: Any, *arrays: Any) -> Any:
        found = iter(arrays)
        places = [[next(found) for _ in axis.read(exact)] for axis in axes]
        sizes = list(x.shape)
        for axis in axes:
            sizes[axis.axis] = axis.tables[0].ty.shape.values[0]
        return te.compute(
            sizes, lambda *index: _sum(x, axes, places, work, resizing.extrapolation, index), name="resize"
        )

    return builder.call_te(compute, data, *read, primfunc_name_hint="resize", primfunc_attrs=attributes)


class _Axis:
    """A resized axis: its tables of indices, weights and what is beyond, and its ``factor`` if each element repeats."""

    def __init__(self, axis: int, tables: Sequence[Any], is_cropped: bool) -> None:
        self.axis, self.tables, self.is_cropped = axis, tables, is_cropped
        self.taps = int(tables[0].ty.shape.values[1])
        self.factor = _repeats(tables[0])

    def read(self, exact: bool) -> list[Any]:
        """Return the tables that are read."""
        indices, weights, beyond = self.tables
        return [indices] * (self.factor is None) + [weights] * (not exact) + [beyond] * self.is_cropped


def _repeats(indices: Any) -> int | None:
    """Return how often each element is repeated by indices that are known, or None: an index is then a quotient."""
    if not isinstance(indices, tvm.ir.GenericConst):
        return None
    found = np.asarray(indices.value.numpy())
    factor = np.count_nonzero(found == 0)
    fits = factor > 0 and np.array_equal(found, np.arange(len(found))[:, None] // factor)
    return int(factor) if fits else None


def _sum(
    x: Any, axes: Sequence[_Axis], places: Sequence[Sequence[Any]], work: str, extrapolation: float, index: Any
) -> Any:
    """Return an element; ``places`` has the tables that are read of each axis, of ``_Axis.read``."""
    dtype = str(x.dtype)
    exact = all(axis.taps == 1 for axis in axes)
    total = None
    for choice in itertools.product(*(range(axis.taps) for axis in axes)):
        source, weight = list(index), None
        for axis, tables, tap in zip(axes, places, choice, strict=True):
            at = index[axis.axis]
            known = axis.factor is not None
            source[axis.axis] = at // axis.factor if known else tables[0][at, tap].astype("int64")
            if not exact:
                factor = tables[0 if known else 1][at, tap]
                weight = factor if weight is None else weight * factor
        term = x(*source) if exact else x(*source).astype(work) * weight
        total = term if total is None else total + term
    if not exact:
        total = _stored(total, dtype)
    for axis, tables in zip(axes, places, strict=True):
        if axis.is_cropped:
            beyond = tables[-1][index[axis.axis]] != 0
            total = tirx.Select(beyond, tirx.const(extrapolation, dtype), total)
    return total


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
