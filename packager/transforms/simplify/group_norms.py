"""Writes group normalization as normalizations of rows, with a scale and a shift of channels.

``nn.group_norm`` of [N, C, ...] becomes what PyTorch's ONNX exporter writes: [N, G, C / G * ...], a normalization along
the last axis, and a reshape back. Scales of one and shifts of zero, which it adds for each group, are dropped.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from packager.graph.attention.heads import scaled_by
from packager.graph.dataflow import Dataflow, extents_of, operator_of, same, scalar_of, shape_of
from packager.graph.identity import IdentityMap
from packager.graph.normalize import OPERATOR, Normalization, attributes_of_call, normalize
from packager.graph.rewrite import Bindings, map_bindings
from packager.ir.model import ImportedModel

NEUTRAL = {"multiply": 1.0, "add": 0.0}
VIEWS = ("reshape", "expand_dims")


def group_norms_as_rows(model: ImportedModel) -> tvm.IRModule:
    """Return the module of ``model`` with such normalizations."""
    main, num_inputs = model.module["main"], len(model.signature.inputs)
    parameters = main.params[num_inputs:]
    arrays = IdentityMap(zip(parameters, model.weights.values(), strict=True))
    flow = Dataflow(main, parameters, arrays.get)

    def changed(binding: Any) -> list[Any]:
        value = binding.value
        name = operator_of(value)
        if name == "nn.group_norm":
            made = Bindings(binding.var, "_norm")
            result = _rows(value, made.bind)
            return [binding] if result is None else made.ended(result)
        if name in NEUTRAL and (kept := _without(flow, binding.var, NEUTRAL[name])) is not None:
            return [relax.VarBinding(binding.var, kept)]
        return [binding]

    return relax.transform.Normalize()(map_bindings(model.module, changed))


def images_as_rows(module: tvm.IRModule) -> tvm.IRModule:
    """Rewrite normalizations of ``main`` over whole images NCHW as ones over NHWC: no element's place counts.

    GPUs convolve channels last, so that the transposes that are written here meet their opposites.
    """
    flow = Dataflow(module["main"])
    ends: IdentityMap[Any] = IdentityMap()  # from the reshapes before and behind such a normalization to its image
    for variable in flow.variables:
        image = _image_of(flow, variable)
        behind = None if image is None else _reshaped_back(flow, variable, image)
        if image is not None and behind is not None:
            ends[flow.value(variable).args[0]] = ends[behind] = image

    def changed(binding: Any) -> list[Any]:
        if binding.var not in ends:
            return [binding]
        made, source, image = Bindings(binding.var), binding.value.args[0], ends[binding.var]
        if source.same_as(image):
            last = made.bind(relax.op.permute_dims(image, [0, 2, 3, 1]))
            return made.ended(relax.op.reshape(last, extents_of(binding.var)))
        batch, channels, *pixels = extents_of(image) or ()
        last = made.bind(relax.op.reshape(source, [batch, *pixels, channels]))
        return made.ended(relax.op.permute_dims(last, [0, 3, 1, 2]))

    return relax.transform.Normalize()(map_bindings(module, changed)) if len(ends) else module


def _image_of(flow: Dataflow, variable: Any) -> Any | None:
    """Return the tensor [N, C, H, W] that a variable normalizes as rows, or None."""
    call = flow.call(variable, OPERATOR)
    rows = None if call is None else flow.call(call.args[0], "reshape")
    if rows is None or not attributes_of_call(call.attrs).of_rows(variable.ty.ndim):
        return None
    shape, whole = extents_of(variable) or (), extents_of(rows.args[0]) or ()
    of_images = len(whole) == 4 and same(shape[0], whole[0]) and all(same(extent, 1) for extent in shape[1:-1])
    return rows.args[0] if of_images and flow.is_read_once(call.args[0]) else None


def _reshaped_back(flow: Dataflow, variable: Any, image: Any) -> Any | None:
    """Return the reshape to the image's shape that reads a normalization, behind operators with numbers, or None."""
    while flow.is_read_once(variable):
        (reader,) = flow.readers(variable)
        call = flow.value(reader)
        if operator_of(call) == "reshape":
            return reader if same(extents_of(reader), extents_of(image)) else None
        if operator_of(call) != "astype" and scaled_by(call) is None and _number_added(call) is None:
            return None
        variable = reader
    return None


def _number_added(call: Any) -> float | None:
    numbers = [scalar_of(operand) for operand in call.args] if operator_of(call) in ("add", "subtract") else []
    return next((number for number in numbers if number is not None), None)


def _rows(call: Any, bind: Any) -> Any | None:
    """Return the value of a group normalization whose channels are its second axis, None for others."""
    data, gamma, beta = call.args
    attrs, shape = call.attrs, extents_of(data)
    static = shape_of(data)
    if shape is None or static is None or len(shape) < 3 or int(attrs.channel_axis) % len(shape) != 1:
        return None
    if sorted(int(axis) % len(shape) for axis in attrs.axes) != list(range(2, len(shape))):
        return None
    groups, length = int(attrs.num_groups), static[1] // int(attrs.num_groups)
    for extent in static[2:]:
        length = length * extent
    rows = bind(relax.op.reshape(data, [shape[0], groups, length]))
    result = bind(normalize(rows, Normalization((2,), float(attrs.epsilon))))
    if str(data.ty.dtype) != "float32":
        result = bind(relax.op.astype(result, data.ty.dtype))
    result = relax.op.reshape(result, list(shape))
    per_channel = [shape[1], *[1] * (len(shape) - 2)]
    if attrs.scale:
        result = relax.op.multiply(bind(result), bind(relax.op.reshape(gamma, per_channel)))
    if attrs.center:
        result = relax.op.add(bind(result), bind(relax.op.reshape(beta, per_channel)))
    return result


def _without(flow: Dataflow, variable: Any, neutral: float) -> Any | None:
    """Return the operand of a scale or shift of a normalization that a constant leaves as it is; None for others."""
    for data, operand in (flow.value(variable).args, reversed(flow.value(variable).args)):
        constant = operand
        while (view := flow.call(constant, *VIEWS)) is not None:
            constant = view.args[0]
        array = flow.array(constant)
        fits = array is not None and bool((array == neutral).all()) and same(shape_of(data), shape_of(variable))
        if fits and _is_normalized(flow, data):
            return data
    return None


def _is_normalized(flow: Dataflow, variable: Any) -> bool:
    while (call := flow.call(variable, *NEUTRAL, "reshape")) is not None:
        variable = call.args[0]
    return flow.call(variable, OPERATOR, "nn.instance_norm") is not None
