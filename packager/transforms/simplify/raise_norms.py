"""Raises normalizations to one operator, ``packager.normalize``, from the forms in which exporters write them.

- ``nn.group_norm``, ``nn.instance_norm`` and ``nn.rms_norm`` of frontends, scale and shift written out.
- (x - mean) / sqrt(variance + epsilon), with a division, a reciprocal or ``rsqrt``, the variance as such or as a mean
  of squares; without the mean, which is RMS normalization. Keras writes ``x * k + (beta - mean * k)``, where ``k`` is
  ``gamma * rsqrt(variance + epsilon)``.

float32 only: elsewhere intermediate roundings are part of the result. ``regroup_norms.py`` handles the reshapes of
group normalization.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import Dataflow, computed_from_constants, operator_of, shape_of
from packager.graph.normalize import Normalization, normalize
from packager.graph.rewrite import map_bindings
from packager.transforms.simplify.match_norms import Written, find_written

WHOLE = ("nn.group_norm", "nn.instance_norm", "nn.rms_norm")
ROOTS = ("add", "divide", "multiply")


def raise_norms(module: tvm.IRModule, num_inputs: int) -> tvm.IRModule:
    """Raise normalizations of ``main``; what only they read is left as dead code.

    Those of the parameters after ``num_inputs``, as in weight standardization, are folded as they are.
    """
    main = module["main"]
    flow, constant = Dataflow(main), computed_from_constants(main, num_inputs)
    changed = map_bindings(module, lambda binding: [binding] if binding.var in constant else _raised(flow, binding))
    return relax.transform.Normalize()(changed)


def _raised(flow: Dataflow, binding: Any) -> list[Any]:
    """Return the bindings that replace one."""
    variable, value = binding.var, binding.value
    name, shape = operator_of(value), shape_of(variable)
    if name not in (*WHOLE, *ROOTS) or not shape or str(variable.ty.dtype) != "float32":
        return [binding]
    found = _whole(value, len(shape)) if name in WHOLE else find_written(flow, variable)
    if found is None or str(shape_of(found.data)) != str(shape):
        return [binding]
    return _bindings(variable, found)


def _bindings(variable: Any, found: Written) -> list[Any]:
    """Return the bindings of a normalization, its scale and its shift; the last is of ``variable``."""
    values: list[Any] = [normalize(found.data, found.attributes)]
    steps = [(relax.op.multiply, found.scale), (relax.op.add, found.shift)]
    made: list[Any] = []
    for operator, operand in steps:
        if operand is None:
            continue
        inner = type(variable)(f"{variable.name}_normal", variable.ty)
        made.append(relax.VarBinding(inner, values.pop()))
        values.append(operator(inner, operand))
    return [*made, relax.VarBinding(variable, values.pop())]


def _whole(call: Any, rank: int) -> Written | None:
    """Read a call of one of ``WHOLE``."""
    attrs, name = call.attrs, operator_of(call)
    axes = tuple(sorted(int(axis) % rank for axis in attrs.axes))
    epsilon = float(attrs.epsilon)
    if name == "nn.rms_norm":
        if axes != tuple(range(rank - len(axes), rank)):
            return None
        return Written(call.args[0], Normalization(axes, epsilon, centered=False), call.args[1])
    channel = int(attrs.channel_axis) % rank
    if name == "nn.instance_norm":
        attributes = Normalization(axes, epsilon)
    else:
        attributes = Normalization(axes, epsilon, channel, int(attrs.num_groups))
    scale, shift = (
        _along(operand, channel, rank) if wanted else None
        for operand, wanted in zip(call.args[1:], (attrs.scale, attrs.center), strict=True)
    )
    return Written(call.args[0], attributes, scale, shift)


def _along(operand: Any, channel: int, rank: int) -> Any:
    """Return a vector along the axis ``channel`` of a tensor of this rank, to be broadcast."""
    (extent,) = shape_of(operand) or (-1,)
    return relax.op.reshape(operand, [extent, *[1] * (rank - 1 - channel)])
