"""Makes one kernel of a reduction, what makes its operand, and what is computed of its result.

FuseOps fuses a function with what makes its operands or with what follows it, not with both: sums and maxima with the
former, means and products with the latter. Each of the others would be a launch, and a tensor more.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, TypeAlias

import tvm
from tvm import relax, tirx
from tvm.s_tir import ScheduleError
from tvm.tirx import stmt as st
from tvm.tirx.buffer import is_buffer_var

from packager.graph.control_flow import is_control_flow
from packager.graph.dataflow import Dataflow, bindings_of, extents_of, is_one, operator_of, same, shape_of
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.rewrite import nodes_of, with_bindings, with_main
from packager.ir.model import CallSource
from packager.lower.blocks import blocks, inline, is_aligned, is_reduction, is_spatial, loads, schedule_of
from packager.lower.cuda.fusion.joined_calls import join_calls, joined_name, joined_source, lowers, operands_of
from packager.lower.cuda.fusion.patterns import elements_of
from packager.lower.cuda.fusion.shared_rows import is_rows
from packager.lower.cuda.group_norms.schedule import schedule_group_rows
from packager.lower.cuda.kernels import TRIAL_GPU
from packager.lower.cuda.rows.reduction import schedule_row_reduction
from packager.lower.cuda.schedule import rule_of, schedule_cuda

# Functions of more operands may exceed what a kernel takes.
MAX_OPERANDS = 16
# The rules of schedules that hold rows, and groups of channels.
ROWS, GROUPS = schedule_row_reduction.__name__, schedule_group_rows.__name__
_Sourced: TypeAlias = tuple[Any, CallSource]


def join_reductions(module: tvm.IRModule, sources: Sequence[CallSource]) -> tuple[tvm.IRModule, list[CallSource]]:
    """Merge such pairs of calls in ``main``; ``sources`` are those of its bindings, of which a merged call has both."""
    if any(is_control_flow(binding.value) for binding in bindings_of(module["main"])):
        return module, list(sources)
    found = list(sources)
    for fits in (_Joiner.is_finished, _Joiner.shares_rows, _Joiner.is_fed):
        module, found = _Joiner(module).joined(found, fits)
    return module, found


class _Joiner:
    """Merges calls of a module's PrimFuncs, and adds functions to the module in ``builder``."""

    def __init__(self, module: tvm.IRModule) -> None:
        self.module, self.flow = module, Dataflow(module["main"])
        self.builder = relax.BlockBuilder(module)
        self._functions: dict[Any, Any] = {}
        self._schedules: dict[str, Any] = {}
        self._rules: dict[str, str] = {}

    def joined(
        self, sources: Sequence[CallSource], fits: Callable[[_Joiner, Any, Any], bool]
    ) -> tuple[tvm.IRModule, list[CallSource]]:
        """Return the module with pairs merged that fit, each where its second call was, and their sources."""
        left: IdentityMap[_Sourced] = IdentityMap()
        for binding, source in zip(bindings_of(self.module["main"]), sources, strict=True):
            left[binding.var] = (binding, source)
            for operand in self._operands(binding):
                first = left.get(operand)
                if first is None or not self._may(first[0], binding, fits):
                    continue
                merged = self._merged(first[0], binding)
                if merged is not None:
                    left[binding.var] = (merged, joined_source(first[1], source))
                    del left[operand]
                    break
        kept = list(left.values())
        main = with_bindings(self.module["main"], [binding for binding, _ in kept])
        return with_main(self.builder.get(), main), [source for _, source in kept]

    def _may(self, first: Any, second: Any, fits: Callable[[_Joiner, Any, Any], bool]) -> bool:
        made = first.value.same_as(self.flow.value(first.var))  # one that has been merged is not merged again
        return made and self.flow.is_read_once(first.var) and bool(self._operands(first)) and fits(self, first, second)

    def is_finished(self, first: Any, second: Any) -> bool:
        """Whether the first call ends with a reduction, and the second computes each element of one of its result."""
        reduction, last = self._schedule(first), self._schedule(second)
        if reduction is None or last is None or not same(_long(first.var), _long(second.var)):
            return False
        (*_, end), (block, *others) = blocks(reduction), blocks(last)
        if others or not _is_elementwise(last, block) or not _ends(reduction, end, first.var):
            return False
        return all(_is_own(last, block, load) for load in self._loads(second, first.var, block))

    def shares_rows(self, first: Any, second: Any) -> bool:
        """Whether the first call reduces rows that the second reads, too: to reduce them again, or to make others."""
        reduction, last = self._schedule(first), self._schedule(second)
        if reduction is None or last is None or not any(is_reduction(reduction, each) for each in blocks(reduction)):
            return False
        reduces = any(is_reduction(last, each) for each in blocks(last))
        own = IdentitySet(self._operands(first))
        both = [shape_of(operand) for operand in self._operands(second) if operand in own]
        return any(is_rows(shape) and (reduces or same(shape, shape_of(second.var))) for shape in both)

    def is_fed(self, first: Any, second: Any) -> bool:
        """Whether the first call is elementwise, and the second reduces its elements.

        It reads each once, or as rows or groups of channels, which registers hold.
        """
        maker, reduction = self._schedule(first), self._schedule(second)
        if maker is None or reduction is None:
            return False
        (block, *others) = blocks(maker)
        if others or not _is_elementwise(maker, block):
            return False
        if not all(is_aligned(maker, block, load, 1) for load in loads(maker.get(block).body)):
            return False
        if self._rule(second) == GROUPS:
            return same(shape_of(first.var), shape_of(second.var))
        read = [(each, load) for each in blocks(reduction) for load in self._loads(second, first.var, each)]
        if not any(is_reduction(reduction, each) for each, _ in read):
            return False
        once = len(read) == 1 or (is_rows(shape_of(first.var)) and self._rule(second) == ROWS)
        return once and all(_is_own(reduction, *each) for each in read)

    def _loads(self, call: Any, operand: Any, block: Any) -> list[Any]:
        """Return the loads of an operand of a call in one of the blocks of its schedule."""
        sch = self._schedule(call)
        (parameter,) = (
            parameter
            for parameter, field in zip(sch.mod["main"].params, call.value.args[1].fields, strict=False)
            if field.same_as(operand)
        )
        return [load for load in loads(sch.get(block).body) if load.source.same_as(parameter)]

    def _operands(self, binding: Any) -> list[Any]:
        """Return the variables that a call of a PrimFunc reads, each once; none if it takes more than tensors."""
        call = binding.value
        if operator_of(call) != "call_tir" or len(call.args) != 2 or isinstance(call.ty, relax.TupleType):
            return []
        fields = list(call.args[1].fields)
        return fields if len(IdentitySet(fields)) == len(fields) and self._schedule(binding) is not None else []

    def _schedule(self, binding: Any) -> Any:
        """Return a schedule of the function that is called, what can be inlined inlined; None if there is none."""
        name = str(binding.value.args[0].name_hint)
        if name not in self._schedules:
            function, made = self.builder.get()[binding.value.args[0]], None
            if all(is_buffer_var(parameter) for parameter in function.params):
                with suppress(ScheduleError):  # one of threads and barriers, as those of sorting
                    made = schedule_of(function)
                    inline(made, lambda _sch, _block: True)
                    blocks(made)
            self._schedules[name] = made
        return self._schedules[name]

    def _rule(self, call: Any) -> str:
        """Return the name of the rule that schedules a call's function."""
        name = str(call.value.args[0].name_hint)
        if name not in self._rules:
            self._rules[name] = rule_of(self.builder.get()[call.value.args[0]], TRIAL_GPU)
        return self._rules[name]

    def _merged(self, first: Any, second: Any) -> Any:
        """Return the binding of both calls; None if no rule schedules both as one."""
        operands, key = operands_of(first, second)
        if len(operands) > MAX_OPERANDS:
            return None
        if key not in self._functions:
            self._functions[key] = self._function(first, second, operands)
        if self._functions[key] is None:
            return None
        call = relax.call_tir(self._functions[key], relax.Tuple(operands), second.var.ty)
        return relax.VarBinding(second.var, self.builder.normalize(call))

    def _function(self, first: Any, second: Any, operands: Sequence[Any]) -> Any:
        """Return the function of both calls, in the module; None unless a rule schedules it as it does a reduction."""
        function = join_calls(self.module, (first, second), operands, [second.var])
        if rule_of(function, TRIAL_GPU) not in {self._rule(each) for each in (first, second)} - {"", "_spatial"}:
            return None
        if not lowers(function, lambda each: schedule_cuda(each, TRIAL_GPU)):
            return None
        return self.builder.add_func(function, joined_name(first, second))


def _is_elementwise(sch: Any, block: Any) -> bool:
    return is_spatial(sch, block) and not nodes_of(sch.get(block).body, st.For)


def _ends(sch: Any, block: Any, result: Any) -> bool:
    """Whether a function ends with a reduction, or a scatter; or with what is computed of each result of one."""
    if is_reduction(sch, block) or (is_spatial(sch, block) and nodes_of(sch.get(block).body, st.For)):
        return True
    kept = [
        [var.dom.extent for var in sch.get(each).iter_vars if var.iter_type == tirx.IterVar.DataPar]
        for each in blocks(sch)
        if is_reduction(sch, each)
    ]
    elements = elements_of(result)
    return any(
        all(isinstance(extent, tirx.IntImm) for extent in found) and math.prod(map(int, found)) == elements
        for found in kept
    )


def _is_own(sch: Any, block: Any, load: Any) -> bool:
    """Whether each instance of a block loads an element of its own, that of its indices."""
    variables = [var.var for var in sch.get(block).iter_vars if not is_one(var.dom.extent)]
    indices = [index for index in load.indices if not isinstance(index, tirx.IntImm)]
    long = [index for index in indices if any(index.same_as(each) for each in variables)]
    ones = [var.var for var in sch.get(block).iter_vars if is_one(var.dom.extent)]
    rest = [index for index in indices if not any(index.same_as(each) for each in (*variables, *ones))]
    return not rest and len(long) == len(variables) == len(IdentitySet(long))


def _long(variable: Any) -> tuple[Any, ...] | None:
    """Return the extents of a tensor but those of one element."""
    extents = extents_of(variable)
    return None if extents is None else tuple(extent for extent in extents if not is_one(extent))
