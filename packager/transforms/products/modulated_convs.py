"""Writes modulated convolutions, as in StyleGAN2 (arXiv:1912.04958), as convolutions with constant filters.

There filters are scaled by a style along their input channels, and normalized for each output channel: filters of each
image, and a group for each. It is the same to scale the image's channels by the style, and those of the result by
``1 / sqrt(sum_i style_i^2 * sum_k filters_oik^2 + epsilon)``. Constant filters are normalized, so that half precision
has the range for what is computed between.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import Dataflow, computed_from_constants, scalar_of, static_shape_of
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.resize import Resizing, attributes_of_call
from packager.graph.rewrite import as_type, map_bindings, rebuild_call

VIEWS = ("reshape", "expand_dims", "squeeze")
# Added to the squares of filters, which may be zeros.
TINY = 1e-30
WIDE = "float32"  # what is squared, of half precision, too

_Bind = Callable[[Any], Any]


@dataclass(frozen=True)
class _Modulated:
    """``filters`` [filters, channels, window] times ``style`` [images, channels], normalized if ``epsilon`` is given.

    ``data`` has the channels as its second axis. ``resized`` is the call that resizes it before, which is as well
    resized after it was scaled, where scaling is part of what was computed before.
    """

    call: Any
    data: Any
    resized: Any
    filters: Any
    style: Any
    images: int
    epsilon: float | None


def unmodulate_convs(module: tvm.IRModule, num_inputs: int) -> tvm.IRModule:
    """Rewrite modulated convolutions in ``main``, of one style, or of one for each image. Leaves dead code."""
    main = module["main"]
    flow, constant = Dataflow(main), computed_from_constants(main, num_inputs)
    builder = relax.BlockBuilder()
    found: IdentityMap[_Modulated] = IdentityMap()
    for variable in flow.variables:
        if flow.call(variable, "nn.conv2d") is not None and (match := _find(flow, constant, variable)) is not None:
            found[match[0]] = match[1]

    def changed(binding: Any) -> list[Any]:
        modulated = found.get(binding.var)
        if modulated is None:
            return [binding]
        made: list[Any] = []

        def bind(value: Any) -> Any:
            value = builder.normalize(value)
            variable = type(binding.var)(f"{binding.var.name}_modulated", value.ty)
            made.append(relax.VarBinding(variable, value))
            return variable

        result = _written(modulated, bind)
        return [*made, relax.VarBinding(binding.var, result)]

    if not len(found):
        return module
    return relax.transform.Normalize()(map_bindings(module, changed))


def _written(modulated: _Modulated, bind: _Bind) -> Any:
    op, images = relax.op, modulated.images
    filters, channels, height, width = (static_shape_of(modulated.filters) or ())[-4:]
    weights = bind(op.reshape(modulated.filters, [filters, channels, height, width]))
    style = bind(op.reshape(modulated.style, [images, channels]))
    data = bind(op.multiply(modulated.data, bind(op.reshape(style, [images, channels, 1, 1]))))
    if modulated.resized is not None:
        data = bind(relax.Call(modulated.resized.op, [data, modulated.resized.args[1]], modulated.resized.attrs))
    if modulated.epsilon is None:
        return rebuild_call(modulated.call, data, weights, groups=1)
    dtype = str(weights.ty.dtype)
    wide, factors = as_type(bind, weights, WIDE), as_type(bind, style, WIDE)
    squares = bind(op.sum(bind(op.multiply(wide, wide)), [2, 3]))
    total = bind(op.add(bind(op.sum(squares, [1], keepdims=True)), relax.const(TINY, WIDE)))
    root = bind(op.reshape(bind(op.sqrt(total)), [filters, 1, 1, 1]))
    normal = as_type(bind, bind(op.divide(wide, root)), dtype)
    result = bind(rebuild_call(modulated.call, data, normal, groups=1))
    # Of one image without an axis for it: sums of rows have no axes of one element between.
    shares = bind(op.divide(squares, total))
    if images > 1:
        shares = bind(op.reshape(shares, [1, filters, channels]))
        factors = bind(op.reshape(factors, [images, 1, channels]))
    squared = bind(op.multiply(factors, factors))
    small = bind(op.divide(relax.const(modulated.epsilon, WIDE), bind(op.reshape(total, [filters]))))
    norm = bind(op.add(bind(op.sum(bind(op.multiply(squared, shares)), [-1])), small))
    scale = as_type(bind, bind(op.divide(relax.const(1.0, WIDE), bind(op.sqrt(norm)))), dtype)
    return op.multiply(result, bind(op.reshape(scale, [images, filters, 1, 1])))


def _find(flow: Dataflow, constant: IdentitySet, variable: Any) -> tuple[Any, _Modulated] | None:
    """Return the variable that a modulated convolution is to be bound to, and the convolution; None for others."""
    call = flow.value(variable)
    groups, image = int(call.attrs.groups), static_shape_of(call.args[0])
    if image is None or str(call.attrs.data_layout) != "NCHW" or str(call.attrs.kernel_layout) != "OIHW":
        return None
    data, weights, target = call.args[0], call.args[1], variable
    if groups > 1:  # a group for each image
        joined, stacked, readers = flow.call(data, "reshape"), flow.call(weights, "reshape"), flow.readers(variable)
        if joined is None or stacked is None or len(readers) != 1 or flow.is_result(variable):
            return None
        (target,) = readers
        data, weights = joined.args[0], stacked.args[0]
        before, inner, after = static_shape_of(data), static_shape_of(weights), static_shape_of(target)
        if flow.call(target, "reshape") is None or before is None or inner is None or after is None:
            return None
        count, channels = before[0], inner[2] if len(inner) == 5 else 0
        if image != (1, count * channels, *before[2:]) or before[1] != channels or groups != count:
            return None
        if len(inner) != 5 or inner[0] != count or after[:2] != (count, inner[1]):
            return None
    scaled = _normalized(flow, weights)
    modulated, epsilon = (weights, None) if scaled is None else scaled
    parts = _style(flow, constant, modulated)
    if parts is None:
        return None
    filters, style, images = parts
    if images not in (1, groups) or (groups > 1) != (int(weights.ty.ndim) == 5):
        return None
    resized = flow.call(data, "packager.resize")
    if resized is not None and not _commutes(flow, data, attributes_of_call(resized.attrs)):
        resized = None
    data = data if resized is None else resized.args[0]
    return target, _Modulated(call, data, resized, filters, style, images, epsilon)


def _commutes(flow: Dataflow, variable: Any, resizing: Resizing) -> bool:
    """Whether what only a convolution reads is a sum along other axes than that of channels, without other values."""
    alone = flow.is_read_once(variable)
    return alone and 1 not in resizing.axes and not any(resizing.cropped)


def _normalized(flow: Dataflow, variable: Any) -> tuple[Any, float] | None:
    """Return what is divided by the root of its sum of squares, and what is added to that; None for others."""
    product = flow.call(variable, "multiply")
    for weights, scale in () if product is None else (product.args, reversed(product.args)):
        inverse = flow.call(_seen(flow, scale), "divide")
        root = None if inverse is None or scalar_of(inverse.args[0]) != 1 else flow.call(inverse.args[1], "sqrt")
        inside = flow.call(_seen(flow, scale), "rsqrt") if root is None else root
        whole = None if inside is None else _seen(flow, inside.args[0])
        total = flow.call(whole, "add")  # torch's newer ONNX exporter leaves out an epsilon of 1e-8
        epsilon = 0.0 if total is None else scalar_of(total.args[1])
        summed = flow.call(whole if total is None else _seen(flow, total.args[0]), "sum")
        squares = None if summed is None else flow.call(summed.args[0], "multiply")
        rank, extents = int(weights.ty.ndim), static_shape_of(scale)
        if summed is None or squares is None or epsilon is None:
            continue
        if not all(each.same_as(weights) for each in squares.args):
            continue
        if extents is None or extents[-4:] != ((static_shape_of(weights) or ())[-4], 1, 1, 1):
            continue
        if sorted(int(axis) % rank for axis in summed.attrs.axis) == list(range(rank - 3, rank)):
            return weights, epsilon
    return None


def _seen(flow: Dataflow, variable: Any) -> Any:
    """Return what a variable is a view of."""
    while (view := flow.call(variable, *VIEWS)) is not None:
        variable = view.args[0]
    return variable


def _style(flow: Dataflow, constant: IdentitySet, variable: Any) -> tuple[Any, Any, int] | None:
    """Return filters [filters, channels, window], the style that scales their channels, and for how many images."""
    product, shape = flow.call(variable, "multiply"), static_shape_of(variable)
    if product is None or shape is None:
        return None
    for filters, style in (product.args, reversed(product.args)):
        own, factors = static_shape_of(filters), static_shape_of(style)
        if own is None or factors is None or filters not in constant or style in constant:
            continue
        factors = (*[1] * (len(shape) - len(factors)), *factors)
        images = factors[0] if len(shape) == 5 else 1
        if factors[-4:] == (1, shape[-3], 1, 1) and own[-4:] == shape[-4:] and set(own[:-4]) <= {1}:
            return filters, style, images
    return None
