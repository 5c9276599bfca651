"""Data movement on quantized tensors: operates on the integers; scale and zero point are unchanged."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from tvm import relax

from packager.graph.dataflow import axes_of, operator_of
from packager.transforms.quantize.arithmetic import Emitter
from packager.transforms.quantize.values import Concatenation, Quantized, Value, compact, union

MAXIMA = ("nn.max_pool1d", "nn.max_pool2d", "nn.max_pool3d")


def move(emitter: Emitter, variable: Any, call: relax.Call) -> Value | None:
    """Permute or reshape the integers."""
    value = emitter.value(call.args[0])
    if not isinstance(value, Quantized) or not isinstance(value.zero, np.ndarray):
        return None
    if not value.is_uniform and value.array is None:
        return None
    moved = emitter.emit(relax.Call(call.op, [value.value, *call.args[1:]], call.attrs, call.ty_args), variable.name)
    if value.array is None:
        return replace(value, value=moved)
    arrays = [value.array, value.scale, value.zero]
    results = [_moved(array, value.array.shape, call) for array in arrays]
    return replace(value, value=moved, array=results[0], scale=compact(results[1]), zero=compact(results[2]))


def _moved(array: Any, shape: tuple[int, ...], call: relax.Call) -> Any:
    whole = array if array.shape == shape else np.broadcast_to(array, shape)
    axes = axes_of(call)
    if axes is not None:
        return whole.transpose(axes)
    if array.size == 1 and array.shape != shape:
        return array.reshape(())
    return whole.reshape([int(extent) for extent in call.ty.shape.values])


def select(emitter: Emitter, variable: Any, call: relax.Call) -> Value | None:
    """Select elements of, or max-pool, per-tensor quantized integers."""
    value = emitter.value(call.args[0])
    if not isinstance(value, Quantized) or not value.is_uniform or value.dtype != "float32":
        return None
    if operator_of(call) in MAXIMA and (value.scale.item() <= 0 or value.stored not in ("int8", "uint8")):
        return None
    others = [emitter.computed(argument) for argument in call.args[1:]]
    made = emitter.emit(relax.Call(call.op, [value.value, *others], call.attrs, call.ty_args), variable.name)
    return replace(value, value=made, array=None)


def pad(emitter: Emitter, variable: Any, call: relax.Call) -> Value | None:
    """Zero-pad: integers are padded with the zero point."""
    value, attrs = emitter.value(call.args[0]), call.attrs
    plain = str(attrs.pad_mode) == "constant" and float(attrs.pad_value) == 0.0
    if not plain or not isinstance(value, Quantized) or not value.is_uniform or value.array is not None:
        return None
    width = [int(extent) for extent in attrs.pad_width]
    padded = relax.op.nn.pad(value.value, width, pad_value=float(value.zero.item()))
    return replace(value, value=emitter.emit(padded, variable.name))


def concat(emitter: Emitter, variable: Any, call: relax.Call) -> Value | None:
    """Concatenate integers if scales and zero points are equal, else return the parts."""
    fields = call.args[0].fields if isinstance(call.args[0], relax.Tuple) else ()
    parts = [emitter.value(field) for field in fields]
    uniform = [p for p in parts if isinstance(p, Quantized) and p.is_uniform and p.array is None]
    if not parts or len(uniform) != len(parts) or any(part.dtype != "float32" for part in uniform):
        return None
    first, axis = uniform[0], int(call.attrs.axis)
    if all(part.same_numbers(first.scale, first.zero, first.stored) for part in uniform):
        joined = emitter.emit(relax.op.concat([part.value for part in uniform], axis), variable.name)
        return replace(first, value=joined, sources=union(*(part.sources for part in uniform)))
    return Concatenation(tuple(uniform), axis)
