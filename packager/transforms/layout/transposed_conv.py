"""Lowers transposed convolutions to convolutions of stride 1, so that no inserted zeros are multiplied.

``output_phases`` plans which convolutions compute the output, phase by phase; here they are emitted, with their share
of the weights, and their results are interleaved. ``overlapping_windows`` is another way, for few channels. Operators
that follow channel by channel (bias, batch norm, activation) are computed before the interleaving, where they fuse with
the convolutions.

An infinite input makes NaN of some outputs that do not read it where weights are padded with zeros, as with Winograd.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx

from packager.graph.dataflow import (
    Dataflow,
    bindings_of,
    computed_from_constants,
    extents_of,
    operator_of,
    same,
    static_shape_of,
)
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.rewrite import map_operands, rebuild_main, with_main
from packager.transforms.layout.channel_chain import chain_after
from packager.transforms.layout.output_phases import Axis, AxisPlan, Channels, Part, plan_axes
from packager.transforms.layout.windows.overlapping_windows import CONVOLUTIONS, add_windows, overlaps

LAYOUTS = {"nn.conv1d_transpose": "NCW", "nn.conv2d_transpose": "NCHW", "nn.conv3d_transpose": "NCDHW"}


def lower_transposed_convolutions(
    module: tvm.IRModule, num_inputs: int, *, most_parts: int | None = None
) -> tvm.IRModule:
    """Lower the transposed convolutions of ``main`` with weights that depend on no input.

    Each becomes at most ``most_parts`` convolutions; those that would need more are left. By default it is the number
    that is estimated to be the fastest on CPUs.
    """
    main = module["main"]
    if not any(operator_of(binding.value) in LAYOUTS for binding in bindings_of(main)):
        return module
    return _Lowering(module, num_inputs, most_parts).lower()


@dataclass(frozen=True)
class _Problem:
    """A transposed convolution: planned axes, calls that are computed with it, and what the last one is bound to.

    Without plans it is computed by windows that overlap.
    """

    call: relax.Call
    plans: tuple[AxisPlan, ...]
    channels: Channels
    chain: tuple[relax.Call, ...]
    result: Any


class _Lowering:
    """``problems`` are by the variable whose binding they replace: the last of a chain, where operands are known."""

    def __init__(self, module: tvm.IRModule, num_inputs: int, most_parts: int | None) -> None:
        self.module = module
        self.most_parts = most_parts
        self.main = module["main"]
        self.builder = relax.BlockBuilder()
        self.flow = Dataflow(self.main)
        self.constants = computed_from_constants(self.main, num_inputs)
        self.values: IdentityMap[Any] = IdentityMap((p, p) for p in self.main.params)
        found = [problem for v in self.flow.variables if (problem := self._problem(v)) is not None]
        self.problems = IdentityMap((problem.result, problem) for problem in found)

    def lower(self) -> tvm.IRModule:
        covered = IdentitySet(call for problem in self.problems.values() for call in (problem.call, *problem.chain))

        def bind(binding: Any) -> None:
            problem = self.problems.get(binding.var)
            if problem is not None:
                self.values[binding.var] = self._lowered(problem, binding.var.name)
            elif binding.value not in covered:
                self.values[binding.var] = self.builder.emit(self._rewritten(binding.value), binding.var.name)

        return with_main(self.module, rebuild_main(self.builder, self.main, bind, self._rewritten))

    def _rewritten(self, expr: Any) -> Any:
        return self.values.get(expr, expr) if isinstance(expr, relax.Var) else map_operands(expr, self._rewritten)

    def _problem(self, variable: Any) -> _Problem | None:
        """Return the transposed convolution that a variable is bound to, unless it is left as it is."""
        call = self.flow.call(variable, *LAYOUTS)
        if call is None or call.args[1] not in self.constants:
            return None
        attrs, layout = call.attrs, LAYOUTS[operator_of(call)]
        data, kernel, result = extents_of(call.args[0]), static_shape_of(call.args[1]), extents_of(call)
        layouts = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout)
        if layouts != (layout, f"IO{layout[2:]}", layout) or not data or not kernel or not result:
            return None
        axes = _axes(call, data, kernel, result)
        groups = int(attrs.groups)
        channels = Channels(groups, kernel[0] // groups, kernel[1])
        plans = plan_axes(axes, channels, self.most_parts) if axes else None
        if axes and not self.most_parts and str(call.ty.dtype) == "float32" and overlaps(axes, plans, channels):
            return _Problem(call, (), channels, (), variable)
        if plans is None:
            return None
        chain, last = chain_after(self.flow, self.constants, variable, groups * kernel[1])
        return _Problem(call, plans, channels, chain, last)

    def _lowered(self, problem: _Problem, name: str) -> Any:
        """Emit a transposed convolution; return the variable of its result."""
        data, weight = map(self._rewritten, problem.call.args)
        if not problem.plans:
            return add_windows(self._emit, problem.call, data, weight, name)
        result = _extents(problem.call)
        parts = list(itertools.product(*(plan.parts for plan in problem.plans)))
        image = _extents(data)[2:]
        extents = [extent + plan.windows for extent, plan in zip(image, problem.plans, strict=True)]
        values = [self._part(problem, part, data, weight, extents, name) for part in parts]
        ends = result[2:]
        together = [len(plan.parts) == 1 for plan in problem.plans]
        extents = [extent * plan.phases for extent, plan in zip(extents, problem.plans, strict=True)]
        values = [self._cropped(value, problem.plans, ends, together) for value in values]
        extents = [end if joint else extent for extent, end, joint in zip(extents, ends, together, strict=True)]
        for axis in reversed(range(len(extents))):
            count = len(problem.plans[axis].parts)
            if count > 1:
                pieces = [values[i : i + count] for i in range(0, len(values), count)]
                values = [self._interleaved(piece, axis, extents) for piece in pieces]
                extents[axis] = extents[axis] * count
        (whole,) = values
        whole = self._cropped(whole, problem.plans, ends, [not joint for joint in together])
        return self._emit(relax.op.reshape(whole, result), name)

    def _part(
        self, problem: _Problem, parts: Sequence[Part], data: Any, weight: Any, extents: Sequence[Any], name: str
    ) -> Any:
        """Emit the convolution of some phases, what follows it, and the interleaving of these phases."""
        channels, call = problem.channels, problem.call
        phases = [len(part.taps) for part in parts]
        batch = _extents(data)[0]
        data = self._cut(data, parts)
        weight = self._share(weight, parts, channels)
        attributes = {"groups": channels.groups, "out_dtype": str(call.ty.dtype)}
        padding = [max(part.padding[side], 0) for side in (0, 1) for part in parts]
        dilation = [part.dilation for part in parts]
        *outer, last = parts
        if len(parts) == 3 and all(part.window == 1 and not any(part.padding) for part in outer):
            # Planes do not meet: they are lines of one image.
            _, inputs, *image = _extents(data)
            data = self._emit(relax.op.reshape(data, [batch, inputs, image[0] * image[1], image[2]]))
            weight = self._emit(relax.op.squeeze(weight, [2]))
            padding, dilation = [0, padding[2], 0, padding[5]], [1, last.dilation]
        convolve = CONVOLUTIONS[len(dilation)]
        value = self._emit(convolve(data, weight, padding=padding, dilation=dilation, **attributes), name)
        for link in problem.chain:
            operands = [self._spread(operand, phases, channels, value) for operand in link.args]
            value = self._emit(relax.Call(link.op, operands, link.attrs, link.ty_args))
        if len(dilation) < len(parts):
            value = self._emit(relax.op.reshape(value, [batch, _extents(value)[1], *extents]))
        return self._spaced(value, channels.groups, phases, extents)

    def _cut(self, data: Any, parts: Sequence[Part]) -> Any:
        """Emit the part of the input that is read, where padding is negative."""
        cuts = [(max(-part.padding[0], 0), max(-part.padding[1], 0)) for part in parts]
        axes = [axis for axis, cut in enumerate(cuts) if any(cut)]
        if not axes:
            return data
        image = _extents(data)[2:]
        ends = [image[axis] - cuts[axis][1] for axis in axes]
        return self._emit(
            relax.op.strided_slice(
                data, [axis + 2 for axis in axes], [cuts[axis][0] for axis in axes], ends, None, True
            )
        )

    def _share(self, weight: Any, parts: Sequence[Part], channels: Channels) -> Any:
        """Emit the weights of some phases, OIHW; the output channels of a group are ordered by phase."""
        rank = len(parts)
        for axis, part in enumerate(parts, 2):
            extent = int(_extents(weight)[axis])
            flat = [tap for row in part.taps for tap in row]
            if flat == list(range(extent)):
                continue
            if None in flat:
                widths = [0] * (2 * rank + 4)
                widths[2 * axis + 1] = 1
                weight = self._emit(relax.op.nn.pad(weight, widths))
            indices = np.array([extent if tap is None else tap for tap in flat], "int64")
            weight = self._emit(relax.op.take(weight, relax.const(indices), axis=axis))
        groups, inputs, outputs = channels.groups, channels.inputs, channels.outputs
        split = [extent for part in parts for extent in (len(part.taps), part.window)]
        weight = self._emit(relax.op.reshape(weight, [groups, inputs, outputs, *split]))
        phases, windows = range(3, 3 + 2 * rank, 2), range(4, 4 + 2 * rank, 2)
        weight = self._emit(relax.op.permute_dims(weight, [0, *phases, 2, 1, *windows]))
        filters = groups * outputs * math.prod(len(part.taps) for part in parts)
        return self._emit(relax.op.reshape(weight, [filters, inputs, *(part.window for part in parts)]))

    def _spread(self, operand: Any, phases: Sequence[int], channels: Channels, value: Any) -> Any:
        """Emit an operand of the chain for the channels of a part; the chained operand is ``value``."""
        if not isinstance(operand, relax.Var) or not isinstance(operand.ty, relax.TensorType):
            return operand
        if operand not in self.constants:
            return value
        groups, outputs, count = channels.groups, channels.outputs, math.prod(phases)
        vector = self._rewritten(operand)
        elements = math.prod(static_shape_of(operand) or ())
        if elements > 1 and count > 1:
            vector = self._emit(relax.op.reshape(vector, [groups, 1, outputs]))
            vector = self._emit(relax.op.broadcast_to(vector, [groups, count, outputs]))
            elements *= count
        return self._emit(relax.op.reshape(vector, [1, elements, *[1] * (value.ty.ndim - 2)]))

    def _spaced(self, value: Any, groups: int, phases: Sequence[int], extents: Sequence[Any]) -> Any:
        """Emit depth to space: [N, groups x phases x C, extents] -> [N, groups x C, extents x phases]."""
        if math.prod(phases) == 1:
            return value
        batch, filters = _extents(value)[:2]
        rank, outputs = len(phases), int(filters) // groups // math.prod(phases)
        parts = self._emit(relax.op.reshape(value, [batch, groups, *phases, outputs, *extents]))
        pairs = [axis for i in range(rank) for axis in (3 + rank + i, 2 + i)]
        moved = self._emit(relax.op.permute_dims(parts, [0, 1, 2 + rank, *pairs]))
        spaced = [extent * phase for extent, phase in zip(extents, phases, strict=True)]
        return self._emit(relax.op.reshape(moved, [batch, groups * outputs, *spaced]))

    def _interleaved(self, pieces: Sequence[Any], axis: int, extents: Sequence[Any]) -> Any:
        """Emit the interleaving of tensors along a spatial axis, whose extents are ``extents``."""
        count, last = len(pieces), len(extents) - 1
        if axis == last:
            whole = self._emit(relax.op.concat(pieces, 1))
            return self._spaced(whole, 1, [1] * last + [count], extents)
        whole = self._emit(relax.op.concat(pieces, axis + 3))
        spaced = [extent * count if i == axis else extent for i, extent in enumerate(extents)]
        return self._emit(relax.op.reshape(whole, [*_extents(pieces[0])[:2], *spaced]))

    def _cropped(self, value: Any, plans: Sequence[AxisPlan], ends: Sequence[Any], chosen: Sequence[bool]) -> Any:
        """Emit the slice that crops the ``chosen`` axes to their results."""
        axes = [axis for axis, plan in enumerate(plans) if chosen[axis] and plan.is_cropped]
        if not axes:
            return value
        begins = [plans[axis].crop for axis in axes]
        sizes = [plans[axis].crop + ends[axis] for axis in axes]
        return self._emit(relax.op.strided_slice(value, [axis + 2 for axis in axes], begins, sizes, None, True))

    def _emit(self, value: Any, name: str = "") -> Any:
        return self.builder.emit(value, name)


def _axes(call: relax.Call, data: Sequence[Any], kernel: Sequence[int], result: Sequence[Any]) -> list[Axis]:
    """Return the spatial axes; empty unless all extents are as the attributes say."""
    attrs, rank = call.attrs, len(kernel) - 2
    padding = [int(value) for value in attrs.padding]
    axes = []
    for i, (extent, size) in enumerate(zip(data[2:], kernel[2:], strict=True)):
        stride, dilation = int(attrs.strides[i]), int(attrs.dilation[i])
        reach = (size - 1) * dilation + 1 + int(attrs.output_padding[i])
        surplus = reach - padding[i] - padding[rank + i] - stride
        known = int(extent) if isinstance(extent, tirx.IntImm) else None
        is_empty = known is not None and stride * known + surplus < 1
        if is_empty or not same(result[i + 2], extent * stride + surplus):
            return []
        axes.append(Axis(size, stride, dilation, padding[i], surplus, known))
    return axes


def _extents(tensor: Any) -> tuple[Any, ...]:
    """Return the extents of a tensor, which are known."""
    return extents_of(tensor) or ()
