"""Gathers and scatters, and resizing by tables of indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from packager.emit.errors import CannotWriteError
from packager.emit.function_writer import FunctionWriter, Rules, dtype_of, extents, is_integer, rank, static_extents
from packager.graph.resize import attributes_of_call

_REDUCTIONS = {"update": None, "add": "add", "mul": "mul", "max": "max", "min": "min"}


def _take(writer: FunctionWriter, call: Any) -> str:
    data, indices = call.args
    value, axis = writer.value(data), call.attrs.axis
    if axis is None:
        value, axis = str(writer.node("Reshape", [value, writer.integers([-1])])), 0
        limit: Any = None
    else:
        axis = int(axis) % rank(data)
        limit = extents(data)[axis]
    places, dtype = writer.value(indices), dtype_of(indices)
    if dtype not in ("int32", "int64"):
        places, dtype = writer.cast(places, "int64"), "int64"
    # Other modes differ from Gather only beyond the range -limit to limit - 1, which ONNX forbids.
    if str(call.attrs.mode) == "clip":
        if limit is None:
            raise CannotWriteError("indices into a flattened tensor are clipped")
        last = writer.scalar(limit - 1, dtype)
        places = str(writer.node("Clip", [places, writer.constant(0, dtype), last]))
    return str(writer.node("Gather", [value, places], axis=axis))


def _gather_elements(writer: FunctionWriter, call: Any) -> str:
    data, indices = map(writer.value, call.args)
    return str(writer.node("GatherElements", [data, indices], axis=int(call.attrs.axis)))


def _gather_nd(writer: FunctionWriter, call: Any) -> str:
    data, indices = call.args
    places = writer.value(indices)
    if dtype_of(indices) != "int64":
        places = writer.cast(places, "int64")
    return str(writer.node("GatherND", [writer.value(data), places], batch_dims=int(call.attrs.batch_dims) or None))


def _scatter_elements(writer: FunctionWriter, call: Any) -> str:
    return _scatter("ScatterElements", writer, call, axis=int(call.attrs.axis))


def _scatter_nd(writer: FunctionWriter, call: Any) -> str:
    return _scatter("ScatterND", writer, call)


def _scatter(operator: str, writer: FunctionWriter, call: Any, **attributes: int) -> str:
    how = str(call.attrs.reduction)
    if how not in _REDUCTIONS:
        raise CannotWriteError(f"ONNX scatters have no reduction {how!r}")
    operands = [writer.value(operand) for operand in call.args]
    if dtype_of(call.args[1]) not in (("int32", "int64") if operator == "ScatterElements" else ("int64",)):
        operands[1] = writer.cast(operands[1], "int64")
    since = 18 if how in ("max", "min") else 0
    return str(writer.node(operator, operands, since=since, reduction=_REDUCTIONS[how], **attributes))


def _index_tensor(writer: FunctionWriter, call: Any) -> str:
    """Write data[i, j, ...], whose indices are broadcast and are of the first axes."""
    data, indices = call.args
    fields = list(indices.fields) if isinstance(indices, relax.Tuple) else None
    if fields is None or not all(is_integer(field) for field in fields):
        raise CannotWriteError("its indices are not tensors of integers")
    values = [writer.cast(writer.value(field), "int64") for field in fields]
    if len(values) == 1:
        return str(writer.node("Gather", [writer.value(data), values[0]], axis=0))
    common = extents(call)[: rank(call) - rank(data) + len(values)]
    shape = writer.shape(common)
    spread = [writer.node("Expand", [value, shape]) for value in values]
    apart = [writer.node("Unsqueeze", [value, writer.integers([len(common)])]) for value in spread]
    return str(writer.node("GatherND", [writer.value(data), writer.node("Concat", apart, axis=len(common))]))


def _index_put(writer: FunctionWriter, call: Any) -> str:
    """Write data[i, j, ...] = values, or += with ``accumulate``; indices are broadcast and are of the first axes."""
    data, indices, values = call.args
    fields = list(indices.fields) if isinstance(indices, relax.Tuple) else [indices]
    shapes = [extents(field) for field in fields]
    if not all(is_integer(field) for field in fields) or any(shape != shapes[0] for shape in shapes):
        raise CannotWriteError("its indices are not tensors of integers of one shape")
    last = writer.integers([len(shapes[0])])
    apart = [writer.node("Unsqueeze", [writer.cast(writer.value(field), "int64"), last]) for field in fields]
    places = writer.node("Concat", apart, axis=len(shapes[0])) if len(apart) > 1 else apart[0]
    wanted = [*shapes[0], *extents(data)[len(fields) :]]
    given = writer.node("Expand", [writer.value(values), writer.shape(wanted)])
    reduction = "add" if bool(call.attrs.accumulate) else None
    return str(writer.node("ScatterND", [writer.value(data), places, given], reduction=reduction))


def _resize(writer: FunctionWriter, call: Any) -> str:
    """Write weighted sums along each axis in turn: the tables are those of separable filters."""
    data, given = call.args
    attributes = attributes_of_call(call.attrs)
    tables = _fields(given)
    if any(attributes.cropped):
        raise CannotWriteError("elements beyond the edges have a value of their own")
    value, dtype = writer.value(data), dtype_of(data)
    taps = [static_extents(table)[1] for table in tables[::3]]
    work = dtype if max(taps) == 1 else dtype_of(tables[1])
    if dtype != work:
        if is_integer(data):
            raise CannotWriteError("the result is rounded to integers")
        value = writer.cast(value, work)
    for number, axis in enumerate(attributes.axes):
        indices, weights = tables[3 * number : 3 * number + 2]
        value = _along(writer, value, axis, [indices, weights], taps[number], rank(data))
    return value if work == dtype else writer.cast(value, dtype)


def _along(writer: FunctionWriter, value: str, axis: int, table: Sequence[Any], taps: int, ranks: int) -> str:
    """Return the sum, over the taps, of gathered elements times weights."""
    indices, weights = map(writer.value, table)
    total = ""
    for tap in range(taps):
        term = str(writer.node("Gather", [value, _column(writer, indices, tap)], axis=axis))
        if taps > 1:
            factors = _column(writer, weights, tap)
            after = writer.integers(range(1, ranks - axis))
            shaped = writer.node("Unsqueeze", [factors, after]) if ranks - axis > 1 else factors
            term = str(writer.node("Mul", [term, shaped]))
        total = str(writer.node("Add", [total, term])) if total else term
    return total


def _column(writer: FunctionWriter, table: str, number: int) -> str:
    array = writer.known(table)
    if array is not None:
        return writer.constant(array[:, number])
    return str(writer.node("Gather", [table, writer.constant(number, "int64")], axis=1))


def _fields(given: Any) -> list[Any]:
    if isinstance(given, relax.Tuple):
        return list(given.fields)
    return [relax.TupleGetItem(given, index) for index in range(len(given.ty.fields))]


_COORDINATES = ("half_pixel", "align_corners", "asymmetric")
_METHODS = {"nearest_neighbor": "nearest", "linear": "linear", "cubic": "cubic"}
_ROUNDING = {name: name for name in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")} | {"": "floor"}


def _resize_image(writer: FunctionWriter, call: Any) -> str:
    data, attrs = call.args[0], call.attrs
    method, how = str(attrs.method), str(attrs.coordinate_transformation_mode)
    if method not in _METHODS or how not in _COORDINATES or str(attrs.layout) not in ("NCHW", "NCDHW"):
        raise CannotWriteError(f"it resizes by {method}, {how}, {attrs.layout}")
    rounding = _ROUNDING.get(str(attrs.rounding_method)) if method == "nearest_neighbor" else None
    if method == "nearest_neighbor" and rounding is None:
        raise CannotWriteError(f"it rounds by {attrs.rounding_method}")
    alpha = float(attrs.cubic_alpha) if method == "cubic" else None
    return str(
        writer.node(
            "Resize",
            [writer.value(data), "", "", writer.shape(extents(call))],
            mode=_METHODS[method],
            coordinate_transformation_mode=how,
            nearest_mode=rounding,
            cubic_coeff_a=alpha,
        )
    )


def _grid_sample(writer: FunctionWriter, call: Any) -> str:
    """Write a call whose grid has the coordinates first; ONNX's has them last."""
    (data, grid), attrs = call.args, call.attrs
    if str(attrs.layout) not in ("NCHW", "NCDHW"):
        raise CannotWriteError(f"it samples in layout {attrs.layout}")
    last = writer.transpose(writer.value(grid), [0, *range(2, rank(grid)), 1])
    return str(
        writer.node(
            "GridSample",
            [writer.value(data), last],
            since=20 if rank(data) == 5 else 0,
            mode=str(attrs.method),
            padding_mode=str(attrs.padding_mode),
            align_corners=int(bool(attrs.align_corners)),
        )
    )


RULES: Rules = {
    "gather_elements": _gather_elements,
    "gather_nd": _gather_nd,
    "image.grid_sample": _grid_sample,
    "image.resize2d": _resize_image,
    "image.resize3d": _resize_image,
    "index_put": _index_put,
    "index_tensor": _index_tensor,
    "packager.resize": _resize,
    "scatter_elements": _scatter_elements,
    "scatter_nd": _scatter_nd,
    "take": _take,
}
