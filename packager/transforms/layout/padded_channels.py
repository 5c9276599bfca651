"""Gives convolutions whose channels are no vectors channels of zeros: kernels then load and store 16 bytes at a time.

Channels 14, 18 or 36, as those of Res2Net, HRNet and GhostNet: a kernel for vectors of two reads four times as often,
and none that loads by TMA takes them. What follows channel by channel is computed with the channels that are added,
whose values nothing reads: filters have zeros for them, and what mixes channels gets the others alone.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax

from packager.bundle.dtypes import HALVES
from packager.graph.dataflow import (
    Dataflow,
    bindings_of,
    computed_from_constants,
    known_product,
    operator_of,
    scalar_of,
    shape_of,
    static_shape_of,
)
from packager.graph.identity import IdentityMap
from packager.graph.rewrite import map_operands, rebuild_call, rebuild_main, with_main

VECTOR = 8  # elements of 16 bytes in half precision
# Fewer channels are those of an image (``padded_rows``); more work than this many times as much is not worth it, nor
# are images of fewer pixels.
LEAST = 9
WORTH = 2.0
PIXELS = 1024
# Operators of one element whose results are finite for all numbers that are small, and those of two.
UNARY = frozenset((
    "abs", "astype", "clip", "erf", "negative", "nn.gelu", "nn.leakyrelu", "nn.relu", "nn.silu", "sigmoid", "tanh",
))  # fmt: skip
BINARY = frozenset(("add", "divide", "maximum", "minimum", "multiply", "subtract"))
POOLINGS = frozenset(("nn.avg_pool2d", "nn.max_pool2d"))


def pad_channels(module: tvm.IRModule, num_inputs: int) -> tvm.IRModule:
    """Pad the channels of 2-D convolutions of ``main`` with channels last; its results stay as they are."""
    if not any(operator_of(binding.value) == "nn.conv2d" for binding in bindings_of(module["main"])):
        return module
    return _Padder(module, num_inputs).pad()


class _Padder:
    """``wide`` are values with channels added, which are finite, ``plain`` those without, made on demand."""

    def __init__(self, module: tvm.IRModule, num_inputs: int) -> None:
        self.module, self.main = module, module["main"]
        self.builder = relax.BlockBuilder()
        self.flow = Dataflow(self.main)
        self.constants = computed_from_constants(self.main, num_inputs)
        self.plain: IdentityMap[Any] = IdentityMap((parameter, parameter) for parameter in self.main.params)
        self.wide: IdentityMap[Any] = IdentityMap()

    def pad(self) -> tvm.IRModule:
        return with_main(self.module, rebuild_main(self.builder, self.main, self._bind, self._as_it_was))

    def _bind(self, binding: Any) -> None:
        value, variable = binding.value, binding.var
        made = self._padded(value, variable) if isinstance(value, relax.Call) else None
        if made is None:
            self.plain[variable] = self.builder.emit(self._as_it_was(value), variable.name)
            return
        values = self.wide if _channels(variable) % VECTOR else self.plain
        values[variable] = self.builder.emit(made, variable.name)

    def _as_it_was(self, expr: Any) -> Any:
        if not isinstance(expr, relax.Var):
            return map_operands(expr, self._as_it_was)
        if expr not in self.plain and expr in self.wide:
            part = relax.op.strided_slice(self.wide[expr], [3], [0], [_channels(expr)])
            self.plain[expr] = self.builder.emit(part)
        return self.plain.get(expr, expr)

    def _padded(self, call: relax.Call, variable: Any) -> Any | None:
        """Return a call that computes with channels added; None to leave it."""
        name = operator_of(call)
        if name == "nn.conv2d":
            return self._convolution(call)
        if not any(operand in self.wide for operand in call.args) or _channels(call) % VECTOR == 0:
            return None
        if name in UNARY:
            return relax.Call(call.op, [self.wide[call.args[0]], *call.args[1:]], call.attrs)
        if name in POOLINGS and call.attrs.layout == call.attrs.out_layout == "NHWC":
            return relax.Call(call.op, [self.wide[call.args[0]]], call.attrs)
        return self._of_two(call, variable) if name in BINARY else None

    def _of_two(self, call: relax.Call, variable: Any) -> Any | None:
        if operator_of(call) == "divide" and not scalar_of(call.args[1]):
            return None  # by zeros
        others = [operand for operand in call.args if operand not in self.wide and _channels(operand) > 1]
        if not all(operand in self.constants for operand in others) and not self._is_convolved(variable):
            return None
        operands = [self._operand(operand, _channels(call)) for operand in call.args]
        return relax.Call(call.op, operands, call.attrs) if all(operand is not None for operand in operands) else None

    def _is_convolved(self, variable: Any) -> bool:
        """Whether a convolution that is padded reads a value, or what is computed of it channel by channel."""
        readers = [(reader, self.flow.value(reader)) for reader in self.flow.readers(variable)]
        return any(
            self._taken(call) is not None
            if operator_of(call) == "nn.conv2d"
            else operator_of(call) in UNARY | BINARY and self._is_convolved(reader)
            for reader, call in readers
        )

    def _operand(self, operand: Any, channels: int) -> Any | None:
        """Return an operand of as many channels as the result has with those that are added, or of one."""
        if operand in self.wide:
            return self.wide[operand]
        shape = shape_of(operand)
        if shape is None or len(shape) > 4:
            return None
        if not shape or shape[-1] == 1:
            return self._as_it_was(operand)
        return self._with_zeros(operand, channels) if shape[-1] == channels else None

    def _with_zeros(self, operand: Any, channels: int) -> Any:
        rank = len(shape_of(operand) or ())
        added = -channels % VECTOR
        return self.builder.emit(relax.op.nn.pad(self._as_it_was(operand), [0, 0] * (rank - 1) + [0, added]))

    def _convolution(self, call: relax.Call) -> Any | None:
        data, weight = call.args
        filters, channels = self._taken(call) or (0, 0)
        if not filters:
            return None
        added = -filters % VECTOR, -channels % VECTOR
        if data in self.wide:
            data = self.wide[data]
        else:
            data = self._with_zeros(data, channels) if added[1] else self._as_it_was(data)
        is_depthwise = int(call.attrs.groups) > 1
        widths = [0, added[0], 0, 0, 0, 0, 0, 0 if is_depthwise else added[1]]
        weight = self.builder.emit(relax.op.nn.pad(self._as_it_was(weight), widths))
        return rebuild_call(call, data, weight, groups=filters + added[0] if is_depthwise else 1)

    def _taken(self, call: relax.Call) -> tuple[int, int] | None:
        """Return filters and channels of a convolution that is to be padded."""
        data, weight = call.args
        attrs, extents, image = call.attrs, static_shape_of(weight), shape_of(call)
        layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
        if layouts != ("NHWC", "OHWI", "NHWC") or weight not in self.constants or not extents or not image:
            return None
        filters, groups, channels = extents[0], int(attrs.groups), extents[3] * int(attrs.groups)
        if str(data.ty.dtype) not in HALVES or groups not in {1, filters} or groups not in {1, channels}:
            return None
        if channels < LEAST or (filters % VECTOR == 0 and channels % VECTOR == 0):
            return None
        pixels = known_product(image[:3])
        work = math.prod((extent + -extent % VECTOR) / extent for extent in (filters, channels))
        return (filters, channels) if work <= WORTH and pixels >= PIXELS else None


def _channels(value: Any) -> Any:
    shape = shape_of(value)
    return shape[-1] if shape and len(shape) == 4 and isinstance(shape[-1], int) else 0
