"""Makes one convolution of parallel ones whose results are added, and of scaled copies of their input.

Convolution is linear in its weights: branches of 3x3, of 1x1 and a batch norm of the input, as MobileOne
(arXiv:2206.04040) and RepVGG (arXiv:2101.03697) are trained with, are one convolution of the sum of their weights, each
padded with zeros to the extents of all. Those sums are constants as other folded weights are.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.relax.expr_functor import PyExprMutator, mutator

from packager.graph.dataflow import Dataflow, computed_from_constants, operator_of, same, shape_of, static_shape_of
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.rewrite import rebuild_call, with_main
from packager.transforms.layout.layouts import CONVOLUTIONS


def merge_branches(module: tvm.IRModule, num_inputs: int) -> tvm.IRModule:
    """Rewrite float32 sums of ``main``, channels first, that have several such terms of one tensor."""
    while (rewriter := _Merger(module, module["main"], num_inputs)).sums:
        module = relax.transform.Normalize()(with_main(module, rewriter.visit_expr(module["main"])))
    return module


@dataclass(frozen=True)
class _Term:
    """A term of a sum, and the constants that it is multiplied by, one for each channel or one in all.

    ``convolution`` is the call that computes it, if that has constant weights and nothing else reads its result.
    """

    value: Any
    scales: tuple[Any, ...]
    convolution: Any = None


@dataclass(frozen=True)
class _Geometry:
    """Where the taps of a convolution are, on each spatial axis: ``first`` from the place of the output, so many
    ``steps`` apart; ``beyond`` is what the output has more than the input, at stride 1."""

    taps: tuple[int, ...]
    first: tuple[int, ...]
    steps: tuple[int, ...]
    beyond: tuple[int, ...]

    @staticmethod
    def of(call: Any) -> _Geometry:
        """Return that of a call."""
        taps = tuple(int(extent) for extent in call.args[1].ty.shape.values)[2:]
        padding, steps = [int(pad) for pad in call.attrs.padding], tuple(int(step) for step in call.attrs.dilation)
        before, after = padding[: len(taps)], padding[len(taps) :]
        beyond = tuple(
            low + high - (count - 1) * step for low, high, count, step in zip(before, after, taps, steps, strict=True)
        )
        return _Geometry(taps, tuple(-low for low in before), steps, beyond)

    @staticmethod
    def of_copy(rank: int) -> _Geometry:
        """Return that of a single tap at the place of the output."""
        return _Geometry((1,) * rank, (0,) * rank, (1,) * rank, (0,) * rank)

    def joined(self, other: _Geometry) -> _Geometry | None:
        """Return the least that has the taps of both; None if they are on no common grid."""
        if self.beyond != other.beyond:
            return None
        taps, first, steps = [], [], []
        for count, low, step, count_2, low_2, step_2 in zip(
            self.taps, self.first, self.steps, other.taps, other.first, other.steps, strict=True
        ):
            apart = step_2 if count == 1 else step
            if (1 not in (count, count_2) and step != step_2) or (low - low_2) % apart:
                return None
            start, end = min(low, low_2), max(low + (count - 1) * step, low_2 + (count_2 - 1) * step_2)
            taps.append((end - start) // apart + 1)
            first.append(start)
            steps.append(apart)
        return _Geometry(tuple(taps), tuple(first), tuple(steps), self.beyond)

    def inside(self, whole: _Geometry) -> list[int]:
        """Return how many taps ``whole`` has before and after, for each axis of the weights, as ``nn.pad`` takes it."""
        widths = [0, 0, 0, 0]
        for count, low, total, start, step in zip(
            self.taps, self.first, whole.taps, whole.first, whole.steps, strict=True
        ):
            before = (low - start) // step
            widths += [before, total - count - before]
        return widths

    @property
    def padding(self) -> list[int]:
        """The padding of the data."""
        ends = zip(self.first, self.taps, self.steps, self.beyond, strict=True)
        return [-low for low in self.first] + [beyond + low + (n - 1) * step for low, n, step, beyond in ends]


@dataclass(frozen=True)
class _Sum:
    """A sum whose ``convolutions`` and ``copies`` of their input become one convolution, like the first."""

    convolutions: tuple[_Term, ...]
    copies: tuple[_Term, ...]
    constants: tuple[_Term, ...]
    others: tuple[_Term, ...]
    geometry: _Geometry


@mutator
class _Merger(PyExprMutator):  # type: ignore[misc]
    """``sums`` maps the last addition of a sum to what it becomes."""

    def __init__(self, module: tvm.IRModule, main: relax.Function, num_inputs: int) -> None:
        super().__init__(module)
        self.constants = computed_from_constants(main, num_inputs)
        self.flow = Dataflow(main)
        self.sums: IdentityMap[_Sum] = IdentityMap()
        inner = IdentitySet()
        for variable in reversed(self.flow.variables):
            value = self.flow.value(variable)
            if operator_of(value) != "add" or not _is_float(value) or variable in inner:
                continue
            found: list[_Term] = []
            for operand in value.args:
                found += self._terms(operand, (), value, inner)
            merged = self._merged(found)
            if merged is not None:
                self.sums[value] = merged

    def visit_call_(self, call: relax.Call) -> relax.Expr:
        found = self.sums.get(call)
        return self.visit_expr_post_order(call) if found is None else self._rewritten(found)

    def _is_constant(self, operand: Any) -> bool:
        return operand in self.constants or _number(operand) is not None

    def _terms(self, operand: Any, scales: tuple[Any, ...], whole: Any, inner: IdentitySet) -> Iterator[_Term]:
        """Yield the terms of an operand, through additions and scales that nothing else reads."""
        value: Any = self.flow.value(operand) if isinstance(operand, relax.Var) else None
        name = operator_of(value)
        alone = value is not None and len(self.flow.readers(operand)) == 1 and not self.flow.is_result(operand)
        if not alone or self._is_constant(operand) or not same(shape_of(value), shape_of(whole)):
            yield _Term(operand, scales)
        elif name == "add" and not value.args[0].same_as(value.args[1]):
            inner.add(operand)
            for part in value.args:
                yield from self._terms(part, scales, whole, inner)
        elif name == "multiply" and any(self._is_scale(part, whole) for part in value.args):
            data, scale = value.args if self._is_scale(value.args[1], whole) else reversed(value.args)
            yield from self._terms(data, (*scales, scale), whole, inner)
        else:
            yield _Term(operand, scales, value if self._is_mergeable(value) else None)

    def _is_scale(self, operand: Any, whole: Any) -> bool:
        """Whether it is a constant of one element, or of one for each channel."""
        extents, shape = static_shape_of(operand), shape_of(whole) or ()
        if extents is None or len(shape) < 3 or not self._is_constant(operand) or not _is_float(operand):
            return False
        padded = (1,) * (len(shape) - len(extents)) + extents
        return len(padded) == len(shape) and padded[1] in (1, shape[1]) and math.prod(padded) == padded[1]

    def _is_mergeable(self, call: Any) -> bool:
        """Whether it is a convolution, channels first, with constant weights."""
        if operator_of(call) not in CONVOLUTIONS or not _is_float(call) or not self._is_constant(call.args[1]):
            return False
        layouts = [str(getattr(call.attrs, f"{what}_layout")) for what in ("data", "kernel", "out")]
        first = layouts[0] == layouts[2] and layouts[0][:2] == "NC" and layouts[1][:2] == "OI"
        return first and static_shape_of(call.args[1]) is not None

    def _merged(self, terms: Sequence[_Term]) -> _Sum | None:
        """Return the sum with the first group of terms that can be one convolution, or None."""
        convolutions = [term for term in terms if term.convolution is not None]
        for first in convolutions:
            call, group = first.convolution, [first]
            geometry = _Geometry.of(call)
            for term in convolutions:
                if term is first or not _is_alike(call, term.convolution):
                    continue
                joined = geometry.joined(_Geometry.of(term.convolution))
                if joined is not None:
                    geometry, group = joined, [*group, term]
            copies = [term for term in terms if term.value.same_as(call.args[0])]
            with_copies = geometry.joined(_Geometry.of_copy(len(geometry.taps))) if copies and _copies(call) else None
            if with_copies is None or (len(group) == 1 and not any(term.scales for term in copies)):
                copies = []
            else:
                geometry = with_copies
            before = sum(math.prod(_Geometry.of(term.convolution).taps) for term in group)
            if len(group) + len(copies) < 2 or math.prod(geometry.taps) > before:
                continue
            rest = [term for term in terms if not any(term is taken for taken in (*group, *copies))]
            constants = [term for term in rest if self._is_constant(term.value)]
            others = [term for term in rest if not self._is_constant(term.value)]
            return _Sum(tuple(group), tuple(copies), tuple(constants), tuple(others), geometry)
        return None

    def _rewritten(self, found: _Sum) -> relax.Expr:
        emit, geometry, call = self.builder_.emit, found.geometry, found.convolutions[0].convolution
        outputs, inputs, *taps = (int(extent) for extent in call.args[1].ty.shape.values)
        weights = []
        for term in found.convolutions:
            scaled = self._scaled(self.visit_expr(term.convolution.args[1]), term.scales, 0)
            widths = _Geometry.of(term.convolution).inside(geometry)
            weights.append(emit(relax.op.nn.pad(scaled, widths)) if any(widths) else scaled)
        for term in found.copies:
            identity = np.zeros((outputs, inputs, *(1 for _ in taps)), np.float32)
            identity[np.arange(outputs), np.arange(outputs) % inputs] = 1
            widths = _Geometry.of_copy(len(taps)).inside(geometry)
            padded = np.pad(identity, [*zip(widths[::2], widths[1::2], strict=True)])
            weights.append(self._scaled(relax.const(padded), term.scales, 0))
        data, options = self.visit_expr(call.args[0]), {"padding": geometry.padding, "dilation": [*geometry.steps]}
        result = emit(rebuild_call(call, data, self._total(weights), **options))
        shifts = [self._scaled(self.visit_expr(term.value), term.scales, 1) for term in found.constants]
        if shifts:
            result = emit(relax.op.add(result, self._total(shifts)))
        for term in found.others:
            result = emit(relax.op.add(result, self._scaled(self.visit_expr(term.value), term.scales, 1)))
        return result

    def _total(self, values: Sequence[Any]) -> Any:
        return reduce(lambda a, b: self.builder_.emit(relax.op.add(a, b)), values)

    def _scaled(self, value: Any, scales: Sequence[Any], axis: int) -> Any:
        """Return a tensor times its scales, whose elements are along an axis."""
        for scale in scales:
            extents = [1] * max(value.ty.ndim, axis + 1)
            extents[axis] = math.prod(static_shape_of(scale) or (1,))
            column = self.builder_.emit(relax.op.reshape(self.visit_expr(scale), extents))
            value = self.builder_.emit(relax.op.multiply(value, column))
        return value


def _is_alike(a: Any, b: Any) -> bool:
    """Whether two convolutions of one tensor differ in nothing but taps and where they are."""
    if a.op.name != b.op.name or not a.args[0].same_as(b.args[0]) or not same(shape_of(a), shape_of(b)):
        return False
    if int(a.attrs.groups) != int(b.attrs.groups) or [*a.attrs.strides] != [*b.attrs.strides]:
        return False
    return str(a.attrs.out_dtype) == str(b.attrs.out_dtype)


def _copies(call: Any) -> bool:
    """Whether a convolution can copy its input: channel by channel, place by place."""
    return same(shape_of(call), shape_of(call.args[0])) and all(int(stride) == 1 for stride in call.attrs.strides)


def _is_float(value: Any) -> bool:
    return isinstance(value.ty, relax.TensorType) and str(value.ty.dtype) == "float32"


def _number(operand: Any) -> Any | None:
    """Return the value of an inline constant, or None."""
    value: Any = getattr(operand, "value", None)
    return value.numpy() if hasattr(value, "numpy") else None
