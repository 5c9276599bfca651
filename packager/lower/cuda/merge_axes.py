"""Gives an elementwise function the axes that all its operands share, where reshapes hide them.

A reshape between two layouts leaves quotients and remainders in the indices, ``x[0, c // 4, c % 4 * 4096 + p]``, in
which no rule recognizes a transpose. Every axis is split wherever an operand's address is not linear in it, and what
all operands have side by side is merged again, as PyTorch's TensorIterator does (``aten/src/ATen/TensorIterator.cpp``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import s_tir, sym, te, tirx
from tvm.ir import TensorLoad
from tvm.s_tir import ScheduleError
from tvm_ffi import structural_map

from packager.graph.identity import IdentitySet, position, same_objects
from packager.graph.rewrite import nodes_of
from packager.lower.blocks import blocks, extents, loads, variables


@dataclass(frozen=True)
class _Axis:
    """A part of a block's axis: ``value // lower % extent`` of its variable, and each operand's stride along it."""

    variable: Any
    lower: int
    extent: int
    strides: tuple[int, ...]


def merge_axes(sch: s_tir.Schedule) -> tirx.PrimFunc:
    """Return an elementwise function of one block over the axes that its operands share.

    Its parameters have the same elements, reshaped. Raises ScheduleError if it has several blocks or reads through no
    reshape, or if an operand is not read as a whole.
    """
    (found, *several) = blocks(sch)
    block = sch.get(found)
    if several:
        raise ScheduleError("several blocks")
    axes = [var.var for var in block.iter_vars]
    sizes = extents(sch, sch.get_loops(found))
    reads = loads(block.body.value)
    if not any(nodes_of(index, tirx.FloorDiv, tirx.FloorMod) for load in reads for index in load.indices):
        raise ScheduleError("read through no reshape")
    parameters = sch.mod["main"].params
    if len(sizes) != len(axes) or not all(isinstance(size, int) for size in sizes):
        raise ScheduleError("loops and block variables do not correspond")
    if not same_objects(block.body.indices, axes) or not block.writes[0].source.same_as(parameters[-1]):
        raise ScheduleError("the result is not written as a whole")
    operands = [(load.source, load.indices) for load in reads if load.indices]
    operands.append((block.writes[0].source, block.body.indices))
    merged = _merged(_split(axes, sizes, operands))
    shapes = [_shape(merged, number, source) for number, (source, _) in enumerate(operands)]
    return _rebuilt(sch.mod["main"], block.body, axes, merged, operands, shapes)


def _split(axes: list[Any], sizes: list[int], operands: Sequence[tuple[Any, Any]]) -> list[_Axis]:
    """Split the axes wherever an operand's address is not linear in them."""
    analyzer, ranges = sym.Analyzer(), {}
    for axis, size in zip(axes, sizes, strict=True):
        ranges[axis] = tvm.ir.Range(0, size)
        analyzer.bind(axis, ranges[axis])
    terms = [_terms(analyzer, source, indices, ranges) for source, indices in operands]
    found = []
    for axis, size in zip(axes, sizes, strict=True):
        own = [[term for term in each if term[0].same_as(axis)] for each in terms]
        ends = {1, size} | {end for each in own for _, lower, extent, _ in each for end in (lower, lower * extent)}
        bounds = sorted(end for end in ends if end <= size)
        if any(high % low for low, high in itertools.pairwise(bounds)):
            raise ScheduleError("operands split an axis in different places")
        for low, high in reversed(list(itertools.pairwise(bounds))):
            strides = tuple(
                sum(scale * (low // lower) for _, lower, extent, scale in each if lower <= low < lower * extent)
                for each in own
            )
            found.append(_Axis(axis, low, high // low, strides))
    return found


def _terms(analyzer: Any, source: Any, indices: Any, ranges: dict[Any, Any]) -> list[tuple[Any, int, int, int]]:
    """Return the terms of an operand's address: ``scale * (axis // lower % extent)``, as axis, lower, extent, scale."""
    static = all(isinstance(extent, tirx.IntImm) for extent in source.shape)
    if not static or any(loads(index) for index in indices) or not variables(*indices) <= IdentitySet(ranges):
        raise ScheduleError("an address depends on data or on symbolic dims")
    flat: Any = tirx.IntImm("int64", 0)
    for index, extent in zip(indices, source.shape, strict=True):
        flat = flat * extent + index
    total = sym.normalize_to_iter_sum(analyzer.simplify(flat), ranges)
    if not isinstance(total.base, tirx.IntImm) or int(total.base):
        raise ScheduleError("an operand is not read from its start")
    found = []
    for term in total.args:
        numbers = (term.lower_factor, term.extent, term.scale)
        if term.source.source not in IdentitySet(ranges) or not all(isinstance(n, tirx.IntImm) for n in numbers):
            raise ScheduleError("an address is no sum of parts of axes")
        found.append((term.source.source, *map(int, numbers)))
    return found


def _merged(axes: Sequence[_Axis]) -> list[list[_Axis]]:
    """Group what lies side by side in all operands, or in none."""
    groups: list[list[_Axis]] = []
    for axis in axes:
        outer = groups[-1][-1] if groups else None
        if outer and all(a == b * axis.extent for a, b in zip(outer.strides, axis.strides, strict=True)):
            groups[-1].append(axis)
        else:
            groups.append([axis])
    return groups


def _extent(group: Sequence[_Axis]) -> int:
    return math.prod(axis.extent for axis in group)


def _shape(groups: Sequence[Sequence[_Axis]], number: int, source: Any) -> list[int]:
    """Return the groups that an operand has as axes, outermost first. Raises ScheduleError if it is not all of it."""
    own = [index for index, group in enumerate(groups) if group[-1].strides[number]]
    own.sort(key=lambda index: -groups[index][-1].strides[number])
    stride = 1
    for index in reversed(own):
        if groups[index][-1].strides[number] != stride:
            raise ScheduleError("an operand is not read as a whole")
        stride *= _extent(groups[index])
    if stride != math.prod(int(extent) for extent in source.shape):
        raise ScheduleError("an operand is not read as a whole")
    return own


def _rebuilt(
    primfunc: tirx.PrimFunc,
    store: Any,
    axes: list[Any],
    groups: list[list[_Axis]],
    operands: list[tuple[Any, Any]],
    shapes: list[list[int]],
) -> tirx.PrimFunc:
    sizes = [tirx.IntImm("int64", _extent(group)) for group in groups]
    *sources, _ = (source for source, _ in operands)
    made: list[Any] = []
    for parameter in primfunc.params[:-1]:
        own = [shape for source, shape in zip(sources, shapes, strict=False) if source.same_as(parameter)]
        if any(shape != own[0] for shape in own):
            raise ScheduleError("an operand is read in two ways")
        extent = [sizes[index] for index in own[0]] if own else list(parameter.shape)
        made.append(te.placeholder(extent, parameter.dtype, name=parameter.name))

    def compute(*index: Any) -> Any:
        def load(node: Any) -> Any:
            if not node.indices:
                return made[position(primfunc.params, node.source)]()
            number = next(n for n, (_, indices) in enumerate(operands) if same_objects(indices, node.indices))
            return made[position(primfunc.params, node.source)](*(index[group] for group in shapes[number]))

        value = structural_map(store.value, (TensorLoad, load))
        if variables(value) & IdentitySet(axes):
            raise ScheduleError("an axis is a value")
        return value

    result = te.compute(sizes, compute, name=primfunc.params[-1].name)
    function = te.create_prim_func([*made, result])
    return function.with_attrs(dict(primfunc.attrs)) if primfunc.attrs else function
