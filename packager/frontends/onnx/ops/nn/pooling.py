"""Converters of pooling that TVM's importer lacks or computes differently: ``auto_pad``, ``ceil_mode``, dilated
averages, indices of maxima, integers, MaxUnpool.

ONNX operators AveragePool (version 22), MaxPool (22), LpPool (22), MaxUnpool (22). Windows are clipped to the padded
input; padding added by ``ceil_mode`` is excluded from averages.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax, te, tirx

from packager.bundle.dtypes import wide_type
from packager.frontends.onnx.ops.nn.padding import same_padding
from packager.frontends.onnx.ops.operands import (
    Convert,
    Converter,
    dtype_of,
    extents,
    known,
    optional,
    output_count,
    static_extents,
    text,
)
from packager.frontends.pooling import Window, max_and_indices, reduce_windows, windowed_mean


def _windows(data: Any, attributes: Mapping[str, Any]) -> list[Window]:
    kernel = list(attributes["kernel_shape"])
    rank = len(kernel)
    strides = attributes.get("strides", [1] * rank)
    dilations = attributes.get("dilations", [1] * rank)
    pads = list(attributes.get("pads", [0] * 2 * rank))
    auto = text(attributes, "auto_pad", "NOTSET")
    found = []
    for i, extent in enumerate(extents(data)[2:]):
        reach = (kernel[i] - 1) * dilations[i] + 1
        before, after = (pads[i], pads[rank + i]) if auto == "NOTSET" else (0, 0)
        if auto.startswith("SAME"):
            size = -(-extent // strides[i])
            before, after = same_padding(extent, reach, strides[i], upper=auto == "SAME_UPPER")
        else:
            steps = (extent + before + after - reach) / strides[i]
            size = (math.ceil(steps) if attributes.get("ceil_mode", 0) else math.floor(steps)) + 1
            # The last window must start inside the input or the padding before it.
            if attributes.get("ceil_mode", 0) and (size - 1) * strides[i] >= extent + before:
                size -= 1
        if size < 1:
            raise ValueError(f"the windows of pooling do not fit axis {i + 2} of extent {extent}")
        within = -(-(before + extent + after) // dilations[i])  # an exporter's way to a global pool is a huge window
        found.append(Window(extent, min(kernel[i], within), strides[i], dilations[i], before, after, size))
    return found


def _is_static(data: Any) -> bool:
    return len(extents(data)) > 2 and all(isinstance(extent, int) for extent in extents(data)[2:])


def _explicit(attributes: dict[str, Any], windows: Sequence[Window]) -> dict[str, Any]:
    """Return the attributes with clipped windows, and explicit padding instead of auto_pad and ceil_mode."""
    plain = {name: value for name, value in attributes.items() if name not in ("auto_pad", "ceil_mode")}
    pads = (*(w.before for w in windows), *(w.end for w in windows))
    return plain | {"kernel_shape": tuple(w.kernel for w in windows), "pads": pads}


def _is_plain(data: Any, windows: Sequence[Window], *more: str) -> bool:
    """Tell whether TVM supports the windows: one to three axes of floats, or of ``more`` types, all padding used."""
    fits = all((w.extent + w.before + w.end - w.reach) // w.stride + 1 == w.size for w in windows)
    return fits and len(windows) <= 3 and dtype_of(data).startswith(("float", "bfloat", *more))


def _max_pool(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    data = inputs[0]
    if not _is_static(data):
        return convert("MaxPool", list(inputs), attributes)
    windows = _windows(data, attributes)
    if output_count(attributes) > 1:
        return max_and_indices(builder, data, windows, column_major=bool(attributes.get("storage_order", 0)))
    if _is_plain(data, windows, "int8", "uint8"):
        return convert("MaxPool", [data], _explicit(attributes, windows))
    low = tirx.min_value(dtype_of(data))
    return builder.call_te(lambda x: reduce_windows(x, windows, te.max, low, "max_pool"), data)


def _average_pool(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    data = inputs[0]
    if not _is_static(data):
        return convert("AveragePool", list(inputs), attributes)
    windows = _windows(data, attributes)
    if all(w.kernel == w.extent and w.size == 1 and not w.before and not w.after for w in windows):
        return _global_average(builder, [data], {}, convert)
    padding = bool(attributes.get("count_include_pad", 0))
    clipped = padding and any(w.end > w.after for w in windows)
    dilated = any(w.dilation > 1 for w in windows)
    if _is_plain(data, windows) and not clipped and not dilated:
        return convert("AveragePool", [data], _explicit(attributes, windows))
    return windowed_mean(builder, data, windows, padding=padding)


def _global_average(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """Average lines and volumes as means; TVM's pooling of volumes computes where each window begins."""
    rank = inputs[0].ty.ndim
    if rank == 4:  # planes: quantization and layouts know the operator
        return convert("GlobalAveragePool", list(inputs), attributes)
    return builder.emit(relax.op.mean(inputs[0], list(range(2, rank)), keepdims=True))


def _lp_pool(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    data = inputs[0]
    if not _is_static(data):
        return convert("LpPool", list(inputs), attributes)
    dtype, p = wide_type(dtype_of(data)), float(attributes.get("p", 2))
    windows = _windows(data, attributes)

    def compute(x: Any) -> Any:
        def powered(*i: Any) -> Any:
            size = tirx.abs(x(*i).astype(dtype))
            return size if p == 1 else size * size if p == 2 else tirx.power(size, tirx.const(p, dtype))

        terms = te.compute(x.shape, powered, name="powers")
        total = reduce_windows(terms, windows, te.sum, tirx.const(0.0, dtype), "window_sum")

        def root(*i: Any) -> Any:
            found = total(*i) if p == 1 else tirx.power(total(*i), tirx.const(1.0 / p, dtype))
            return found.astype(x.dtype)

        return te.compute(total.shape, root, name="lp_pool")

    return builder.call_te(compute, data, primfunc_name_hint="lp_pool")


def _max_unpool(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """Scatter the values into zeros; indices refer to the output shape derived from the attributes."""
    shape = static_extents(inputs[0])
    kernel = attributes["kernel_shape"]
    rank = len(kernel)
    strides, pads = attributes.get("strides", [1] * rank), attributes.get("pads", [0] * 2 * rank)
    inferred = [(extent - 1) * strides[i] - pads[i] - pads[rank + i] + kernel[i] for i, extent in enumerate(shape[2:])]
    inferred = [*shape[:2], *inferred]
    zeros = builder.emit(relax.op.zeros([math.prod(inferred)], dtype_of(inputs[0])))
    flat = [builder.emit(relax.op.reshape(data, [math.prod(shape)])) for data in inputs[:2]]
    scattered = builder.emit(relax.op.scatter_elements(zeros, flat[1], flat[0], axis=0))
    result = relax.op.reshape(scattered, inferred)
    if optional(inputs, 2) is None:
        return result
    wanted = known(inputs[2], attributes, "the output shape of MaxUnpool").tolist()
    if any(want < have for want, have in zip(wanted, inferred, strict=True)):
        raise ValueError(f"MaxUnpool to {wanted}, which is smaller than {inferred}")
    widths = [width for want, have in zip(wanted, inferred, strict=True) for width in (0, want - have)]
    return relax.op.nn.pad(builder.emit(result), widths)


CONVERTERS: Mapping[str, Converter] = {
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "GlobalAveragePool": _global_average,
    "LpPool": _lp_pool,
    "MaxUnpool": _max_unpool,
}
