"""Raises normalizations to one operator, ``packager.normalize``, from the forms in which exporters write them.

- ``nn.group_norm``, ``nn.instance_norm`` and ``nn.rms_norm`` of frontends, scale and shift written out.
- (x - mean) / sqrt(variance + epsilon), with a division, a reciprocal or ``rsqrt``, the variance as such or as a mean
  of squares; without the mean, which is RMS normalization. Keras writes ``x * k + (beta - mean * k)``, where ``k`` is
  ``gamma * rsqrt(variance + epsilon)``.

float16 and bfloat16 become float32 before a normalization. Its scale and its shift are computed in float32 too,
through the reshapes of groups, and the result is rounded once. ``regroup_norms.py`` handles these reshapes.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from packager.bundle.dtypes import HALVES
from packager.graph.dataflow import (
    Dataflow,
    computed_from_constants,
    extents_of,
    operator_of,
    same,
    scalar_of,
    shape_of,
)
from packager.graph.identity import IdentityMap
from packager.graph.normalize import OPERATOR, Normalization, attributes_of_call, normalize
from packager.graph.rewrite import Bindings, map_bindings
from packager.transforms.simplify.match_norms import Written, find_written

WHOLE = ("nn.group_norm", "nn.instance_norm", "nn.rms_norm")
ROOTS = ("add", "divide", "multiply")
# Operators with a constant that are computed in float32 after a normalization of half precision.
FOLLOWERS = ("add", "divide", "multiply", "subtract")


def raise_norms(module: tvm.IRModule, num_inputs: int, *, of_vectors: bool = False) -> tvm.IRModule:
    """Raise normalizations of ``main``, all or those ``of_vectors`` (see Normalization); what only they read is left as
    dead code.

    Those of the parameters after ``num_inputs``, as in weight standardization, are folded as they are.
    """
    raiser = _Raiser(module["main"], num_inputs, of_vectors)
    return relax.transform.Normalize()(map_bindings(module, raiser.raised))


def read_halves(module: tvm.IRModule) -> tvm.IRModule:
    """Let normalizations of ``main`` read half precision where it was cast to float32 before them.

    Resizing reads and writes it where it is cast before and after: its sums are those of its weights' type.
    """
    flow = Dataflow(module["main"])

    def changed(binding: Any) -> list[Any]:
        value = binding.value
        resized = flow.call(value.args[0], "packager.resize") if operator_of(value) == "astype" else None
        if resized is not None and (cast := flow.call(resized.args[0], "astype")) is not None:
            data = cast.args[0]
            if _is_half(binding.var) and str(data.ty.dtype) == str(binding.var.ty.dtype):
                return [relax.VarBinding(binding.var, relax.Call(resized.op, [data, resized.args[1]], resized.attrs))]
        if operator_of(value) != OPERATOR:
            return [binding]
        view = flow.call(value.args[0], "reshape")
        cast = flow.call(value.args[0] if view is None else view.args[0], "astype")
        if cast is None or not _is_half(cast.args[0]):
            return [binding]
        made, data = Bindings(binding.var), cast.args[0]
        data = data if view is None else made.bind(relax.op.reshape(data, view.args[1]))
        return made.ended(normalize(data, attributes_of_call(value.attrs)))

    return relax.transform.Normalize()(map_bindings(module, changed))


class _Raiser:
    """``wide`` maps variables of half precision to those that they are the rounded values of."""

    def __init__(self, main: relax.Function, num_inputs: int, of_vectors: bool) -> None:
        self.of_vectors = of_vectors
        self.flow, self.constant = Dataflow(main), computed_from_constants(main, num_inputs)
        self.wide: IdentityMap[Any] = IdentityMap()

    def raised(self, binding: Any) -> list[Any]:
        """Return the bindings that replace one."""
        variable, value = binding.var, binding.value
        name, shape = operator_of(value), shape_of(variable)
        if variable in self.constant or not shape or str(variable.ty.dtype) not in ("float32", *HALVES):
            return [binding]
        found = None
        if name in WHOLE:
            found = _whole(value, len(shape))
        elif name in ROOTS:
            found = find_written(self.flow, variable)
        wanted = found is not None and (not self.of_vectors or found.attributes.of_vectors(len(shape)))
        if found is not None and wanted and same(shape_of(found.data), shape):
            return self._normalized(variable, found)
        return self._followed(binding, name)

    def _normalized(self, variable: Any, found: Written) -> list[Any]:
        """Return the bindings of a normalization, its scale and its shift; the last is of ``variable``."""
        made = _Bindings(variable)
        data = self._widened(made, found.data)
        result = normalize(data, found.attributes)
        for operator, operand in ((relax.op.multiply, found.scale), (relax.op.add, found.shift)):
            if operand is not None:
                wide = relax.op.astype(operand, "float32") if _is_half(variable) else operand
                result = operator(made.bind(result, extents_of(variable)), wide)
        return self._bound(made, result)

    def _widened(self, made: _Bindings, data: Any) -> Any:
        """Return ``data`` in float32: before a reshape, which may form groups, that is what it reshapes."""
        if not _is_half(data):
            return data
        reshape = self.flow.call(data, "reshape")
        if reshape is None:
            return made.bind(relax.op.astype(data, "float32"), extents_of(data))
        inner = made.bind(relax.op.astype(reshape.args[0], "float32"), extents_of(reshape.args[0]))
        return made.bind(relax.op.reshape(inner, extents_of(data)), extents_of(data))

    def _followed(self, binding: Any, name: str) -> list[Any]:
        """Compute a reshape, or an operator with a constant, after a normalization of half precision in float32."""
        variable, value = binding.var, binding.value
        if name == "reshape" and value.args[0] in self.wide:
            return self._bound(_Bindings(variable), relax.op.reshape(self.wide[value.args[0]], extents_of(variable)))
        if name not in FOLLOWERS or not any(operand in self.wide for operand in value.args):
            return [binding]
        if not all(o in self.wide or o in self.constant or scalar_of(o) is not None for o in value.args):
            return [binding]
        operands = [self.wide[o] if o in self.wide else relax.op.astype(o, "float32") for o in value.args]
        return self._bound(_Bindings(variable), getattr(relax.op, name)(*operands))

    def _bound(self, made: _Bindings, result: Any) -> list[Any]:
        """Bind a result to the variable, rounded if that is of half precision."""
        variable = made.variable
        if _is_half(variable):
            self.wide[variable] = made.bind(result, extents_of(variable))
            result = relax.op.astype(self.wide[variable], variable.ty.dtype)
        return [*made.bindings, relax.VarBinding(variable, result)]


class _Bindings:
    """New bindings of float32 before that of ``variable``, named after it."""

    def __init__(self, variable: Any) -> None:
        self.variable = variable
        self.bindings: list[Any] = []

    def bind(self, value: Any, extents: Any) -> Any:
        """Bind a value of this shape to a new variable and return that."""
        name = f"{self.variable.name}_normal"
        inner = type(self.variable)(name, relax.TensorType(extents, "float32"))
        self.bindings.append(relax.VarBinding(inner, value))
        return inner


def _is_half(variable: Any) -> bool:
    return str(variable.ty.dtype) in HALVES


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
