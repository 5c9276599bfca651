"""Keeps what a reduction is broadcast into out of its kernel, where each element would compute the reduction again.

TVM counts an operator as elementwise as soon as it reads one operand element by element, and fuses it with the mean,
product or convolution that makes another operand, however small that is. Kernels here end with the last value of the
reduction's own shape. What has the rows that are reduced stays: such a kernel reads a row once.
"""

from __future__ import annotations

from typing import Any

import tvm

from packager.graph.dataflow import extents_of, same, variables_of
from packager.graph.identity import IdentitySet
from packager.ir.pattern_kinds import BROADCAST, ELEMENTWISE, INJECTIVE, OPAQUE, OUT_ELEMENTWISE_FUSABLE
from packager.lower.cuda.fusion.patterns import Patterns, elements_of


@tvm.transform.module_pass(opt_level=0, name="KeepBroadcastsApart")  # type: ignore[untyped-decorator]
def keep_broadcasts_apart(module: tvm.IRModule, _context: Any) -> tvm.IRModule:
    """Keep FuseOps from fusing reductions of ``main`` with functions of more elements; PrimFuncs have patterns."""
    return _Splitter(module).split()


class _Splitter:
    """Changes the patterns of functions that would be fused with a reduction."""

    def __init__(self, module: tvm.IRModule) -> None:
        self.patterns = Patterns(module)
        self.flow = self.patterns.flow

    def split(self) -> tvm.IRModule:
        for variable in self.flow.variables:
            if self.patterns[variable] == OUT_ELEMENTWISE_FUSABLE and extents_of(variable) is not None:
                self._follow(variable, variable, extents_of(variable), _rows_of(self.flow.value(variable)))
        return self.patterns.applied()

    def _follow(self, reduction: Any, variable: Any, shape: Any, rows: Any) -> None:
        """Mark what would be fused with a reduction and has another shape, but that of its ``rows``."""
        for reader in self.flow.readers(variable):
            found = extents_of(reader)
            if self.patterns[reader] != ELEMENTWISE or found is None:
                continue
            if same(found, shape):
                self._follow(reduction, reader, shape, rows)
            elif rows is not None and same(found, rows):
                self._follow(reduction, reader, found, None)
            elif not _broadcasts(shape, found):
                if elements_of(reader) > elements_of(variable):  # what is padded behind is at its own place for TVM
                    self.patterns[reader] = INJECTIVE
            elif any(
                self._ends_a_kernel(each) for each in self._others(reader, variable) if same(extents_of(each), found)
            ):
                self.patterns[reduction] = OPAQUE  # that kernel goes on with this function
            else:
                self.patterns[reader] = BROADCAST

    def _others(self, reader: Any, variable: Any) -> list[Any]:
        return [each for each in variables_of(self.flow.value(reader)) if not each.same_as(variable)]

    def _ends_a_kernel(self, variable: Any) -> bool:
        """Whether a reduction of this shape is fused with the one function that reads ``variable``."""
        shape, seen = extents_of(variable), IdentitySet()
        while variable not in seen and len(self.flow.readers(variable)) == 1 and not self.flow.is_result(variable):
            seen.add(variable)
            pattern = self.patterns[variable]
            if pattern == OUT_ELEMENTWISE_FUSABLE:
                return True
            operands = variables_of(self.flow.value(variable)) if pattern == ELEMENTWISE else []
            variable = next((each for each in operands if same(extents_of(each), shape)), variable)
        return False


def _broadcasts(shape: tuple[Any, ...], result: tuple[Any, ...]) -> bool:
    """Whether a tensor broadcasts to a result; else it may be read in part, as by a slice."""
    pairs = list(zip(reversed(shape), reversed(result), strict=False))
    return len(shape) <= len(result) and all(_is_one(extent) or same(extent, other) for extent, other in pairs)


def _is_one(extent: Any) -> bool:
    return same(extent, tvm.tirx.IntImm("int64", 1))


def _rows_of(call: Any) -> Any:
    """Return the shape of the rows that a call reduces; None if it reduces products, or not along the last axes."""
    operands = variables_of(call)
    shape, rows = extents_of(call), extents_of(operands[0]) if len(operands) == 1 else None
    if shape is None or rows is None or len(rows) != len(shape):
        return None
    kept = next((axis for axis, (a, b) in enumerate(zip(shape, rows, strict=True)) if not same(a, b)), len(rows))
    return rows if all(map(_is_one, shape[kept:])) else None
