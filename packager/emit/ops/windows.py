"""Convolutions and pooling."""

from __future__ import annotations

from dataclasses import astuple
from functools import partial
from typing import Any

from packager.emit.errors import CannotWriteError
from packager.emit.function_writer import FunctionWriter, Rules, dtype_of, rank, static_extents
from packager.emit.ops.reductions import reduce
from packager.graph.windows.col2im import windows_of_call


def _permutation(have: str, wanted: str) -> list[int]:
    return [have.index(axis) for axis in wanted]


def _spatial(layout: str) -> str:
    return "".join(axis for axis in layout if axis not in "NCOI")


def _in(writer: FunctionWriter, value: str, have: str, wanted: str) -> str:
    return writer.transpose(value, _permutation(have, wanted))


def _window(attrs: Any) -> dict[str, list[int]]:
    return {
        "strides": [int(stride) for stride in attrs.strides],
        "pads": [int(pad) for pad in attrs.padding],
        "dilations": [int(step) for step in attrs.dilation],
    }


def _conv(transposed: bool, writer: FunctionWriter, call: Any) -> str:
    (data, weight), attrs = call.args, call.attrs
    layout, result = str(attrs.data_layout), str(attrs.out_layout) or str(attrs.data_layout)
    spatial = _spatial(layout)
    first = "IO" if transposed else "OI"
    operands = [
        _in(writer, writer.value(data), layout, f"NC{spatial}"),
        _in(writer, writer.value(weight), str(attrs.kernel_layout), f"{first}{spatial}"),
    ]
    kernel = static_extents(weight, [str(attrs.kernel_layout).index(axis) for axis in spatial])
    attributes: dict[str, Any] = {"kernel_shape": kernel, "group": int(attrs.groups), **_window(attrs)}
    if transposed:
        attributes["output_padding"] = [int(extra) for extra in attrs.output_padding]
    made = _product(writer, operands, dtype_of(data), dtype_of(call), transposed, attributes)
    return _in(writer, made, f"NC{spatial}", result)


def _product(
    writer: FunctionWriter, operands: list[str], narrow: str, wide: str, transposed: bool, attributes: dict[str, Any]
) -> str:
    if narrow in ("int8", "uint8"):
        if transposed or wide != "int32":
            raise CannotWriteError(f"ONNX has no such convolution from {narrow} to {wide}")
        return str(writer.node("ConvInteger", operands, **attributes))
    if "float" not in wide:
        raise CannotWriteError(f"ONNX has no convolution of {narrow}")
    if narrow != wide:
        operands = [writer.cast(operand, wide) for operand in operands]
    since = 22 if wide == "bfloat16" else 0
    return str(writer.node("ConvTranspose" if transposed else "Conv", operands, since=since, **attributes))


def _pool(operator: str, writer: FunctionWriter, call: Any) -> str:
    (data,), attrs = call.args, call.attrs
    layout, result = str(attrs.layout), str(attrs.out_layout) or str(attrs.layout)
    spatial, window = _spatial(layout), _window(attrs)
    attributes: dict[str, Any] = {"kernel_shape": [int(size) for size in attrs.pool_size], **window}
    attributes["ceil_mode"] = 1 if attrs.ceil_mode else None
    since = 22 if dtype_of(data) == "bfloat16" else 0
    if operator == "AveragePool":
        attributes["count_include_pad"] = int(bool(attrs.count_include_pad))
        if all(step == 1 for step in window["dilations"]):
            del attributes["dilations"]
        else:
            since = max(since, 19)
    value = _in(writer, writer.value(data), layout, f"NC{spatial}")
    return _in(writer, str(writer.node(operator, [value], since=since, **attributes)), f"NC{spatial}", result)


def _adaptive_pool(writer: FunctionWriter, call: Any) -> str:
    (data,), layout = call.args, str(call.attrs.layout)
    places = [place for place, axis in enumerate(layout) if axis not in "NC"]
    wanted = static_extents(call, places)
    if all(size == 1 for size in wanted):
        return reduce(writer, "ReduceMean", writer.value(data), places)
    have = static_extents(data, places)
    if layout[:2] != "NC" or any(extent % size for extent, size in zip(have, wanted, strict=True)):
        raise CannotWriteError(f"it pools {have} to {wanted}, with windows of several sizes")
    sizes = [extent // size for extent, size in zip(have, wanted, strict=True)]
    return str(writer.node("AveragePool", [writer.value(data)], kernel_shape=sizes, strides=sizes))


def _quantize(operator: str, writer: FunctionWriter, call: Any) -> str:
    data, scale, zero = call.args
    narrow = dtype_of(call) if operator == "QuantizeLinear" else dtype_of(data)
    if narrow not in ("int8", "uint8") and not (narrow == "int32" and operator == "DequantizeLinear"):
        raise CannotWriteError(f"ONNX quantizes to int8 and uint8, not {narrow}")
    # Scales of all channels alike are scalars in ONNX.
    factors, offset = (_scalar_if_one(writer, operand) for operand in (scale, zero))
    if dtype_of(zero) != narrow:
        offset = writer.cast(offset, narrow)
    wide = dtype_of(data) if operator == "QuantizeLinear" else dtype_of(call)
    since = 0 if wide == "float32" == dtype_of(scale) else 19
    axis = int(call.attrs.axis) % max(rank(data), 1)
    per_channel = rank(scale) and static_extents(scale) != [1]
    inputs = [writer.value(data), factors, offset]
    return str(writer.node(operator, inputs, since=since, axis=axis if per_channel else None))


def _scalar_if_one(writer: FunctionWriter, operand: Any) -> str:
    value = writer.value(operand)
    return writer.reshape(value, []) if rank(operand) and static_extents(operand) == [1] else value


def _col2im(writer: FunctionWriter, call: Any) -> str:
    """Write the sum of overlapping windows; padding at the end is what makes as many windows."""
    windows = windows_of_call(call.attrs)
    value = writer.value(call.args[0])
    if rank(call.args[0]) > 3:
        value = str(writer.node("Reshape", [value, writer.integers([0, 0, -1])]))
    after = [
        (count - 1) * stride + dilation * (size - 1) + 1 - extent - before
        for extent, size, count, stride, dilation, before in zip(*astuple(windows), strict=True)
    ]
    if any(left <= -stride for left, stride in zip(after, windows.strides, strict=True)):
        raise CannotWriteError("the image has room for more windows")
    return str(
        writer.node(
            "Col2Im",
            [value, writer.integers(list(windows.extents)), writer.integers(list(windows.size))],
            since=18,
            dilations=list(windows.dilations),
            pads=[*windows.before, *(max(left, 0) for left in after)],
            strides=list(windows.strides),
        )
    )


RULES: Rules = {
    "dequantize": partial(_quantize, "DequantizeLinear"),
    "quantize": partial(_quantize, "QuantizeLinear"),
    **{f"nn.conv{axes}d": partial(_conv, False) for axes in (1, 2, 3)},
    **{f"nn.conv{axes}d_transpose": partial(_conv, True) for axes in (1, 2, 3)},
    "packager.col2im": _col2im,
    **{f"nn.max_pool{axes}d": partial(_pool, "MaxPool") for axes in (1, 2, 3)},
    **{f"nn.avg_pool{axes}d": partial(_pool, "AveragePool") for axes in (1, 2, 3)},
    **{f"nn.adaptive_avg_pool{axes}d": _adaptive_pool for axes in (1, 2, 3)},
}
