"""Makes one kernel of a row reduction and of what makes its rows, which others read, too: sums that norms follow.

FuseOps makes functions of one result. A residual sum behind a gate or another normalization, which the next
normalization reads and the next sum as well, was a kernel of its own. Here it is a second result of the kernel of the
normalization, which holds its rows in registers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import tvm
from tvm import relax, tirx
from tvm.s_tir import ScheduleError
from tvm.tirx.buffer import is_buffer_var

from packager.graph.control_flow import is_control_flow
from packager.graph.dataflow import Dataflow, bindings_of, operator_of, same, shape_of, variables_of
from packager.graph.identity import IdentitySet
from packager.graph.rewrite import with_bindings, with_main
from packager.ir.model import CallSource
from packager.lower.blocks import blocks, is_aligned, is_reduction, is_spatial, loads, schedule_of
from packager.lower.cuda.fusion.joined_calls import join_calls, joined_name, joined_source, lowers, operands_of
from packager.lower.cuda.rows.reduction import schedule_row_reduction
from packager.lower.cuda.widen_float16 import widen

# The most tensors of whole rows that a kernel holds, and the longest rows.
MAX_OPERANDS, MAX_LENGTH = 5, 8192
# How many calls may stand between both: rows that are read much later would take memory until then.
REACH = 16
_Sourced: TypeAlias = tuple[Any, CallSource]


def share_rows(module: tvm.IRModule, sources: Sequence[CallSource]) -> tuple[tvm.IRModule, list[CallSource]]:
    """Merge such pairs of calls in ``main``; ``sources`` are those of its bindings, of which a merged call has both."""
    bindings = list(zip(bindings_of(module["main"]), sources, strict=True))
    if any(is_control_flow(binding.value) for binding, _ in bindings):
        return module, list(sources)
    merger = _Merger(module)
    place = 0
    while place < len(bindings):
        bindings = merger.merged(bindings, place)
        place += 1
    main = with_bindings(module["main"], [binding for binding, _ in bindings])
    return with_main(merger.builder.get(), main), [source for _, source in bindings]


@dataclass(frozen=True)
class _Pair:
    """A call that makes rows and one that reduces them: what both read, each once, and the function of both.

    ``results`` are those of the function: without the rows if nothing else reads them.
    """

    operands: tuple[Any, ...]
    function: Any
    results: tuple[Any, ...]


@dataclass(frozen=True)
class _Form:
    """What a PrimFunc does: whether it has reductions, and whether all that it reads lies in the order of its rows."""

    reduces: bool = False
    in_order: bool = False


class _Merger:
    """Merges calls of a module's PrimFuncs, and adds functions to the module in ``builder``."""

    def __init__(self, module: tvm.IRModule) -> None:
        self.flow = Dataflow(module["main"])
        self.builder = relax.BlockBuilder(module)
        self._functions: dict[Any, Any] = {}
        self._forms: dict[str, _Form] = {}

    def merged(self, bindings: list[_Sourced], place: int) -> list[_Sourced]:
        """Return the bindings with the call at ``place`` and the first that reduces its rows as one, if there is any.

        What stands between both goes in front, as far as it does not depend on the rows.
        """
        made, source = bindings[place]
        readers = IdentitySet(each for each in self.flow.readers(made.var) if self._reduces(each, made))
        if not readers or not self._makes_rows(made):
            return bindings
        depends = IdentitySet([made.var])
        before: list[_Sourced] = []
        after: list[_Sourced] = []
        for end, (binding, own) in enumerate(bindings[place + 1 : place + 1 + REACH], place + 2):
            read = IdentitySet(variables_of(binding.value)) & depends
            if binding.var in readers and len(read) == 1 and made.var in read:
                pair = self._pair(made, binding)
                if pair is not None:
                    both = joined_source(source, own)
                    call, *parts = self._bindings(pair)
                    after = [*((part, CallSource((), ())) for part in parts), *after]
                    return [*bindings[:place], *before, (call, both), *after, *bindings[end:]]
            (after if read else before).append((binding, own))
            depends |= IdentitySet([binding.var]) if read else IdentitySet()
        return bindings

    def _bindings(self, pair: _Pair) -> list[Any]:
        """Return the binding of the call, and those of its results."""
        types = [variable.ty for variable in pair.results]
        call = relax.call_tir(pair.function, relax.Tuple(pair.operands), types if len(types) > 1 else types[0])
        call = self.builder.normalize(call)
        if len(types) == 1:
            return [relax.VarBinding(pair.results[0], call)]
        both = type(pair.results[0])("_and_".join(variable.name for variable in pair.results), call.ty)
        fields = [relax.VarBinding(each, relax.TupleGetItem(both, n)) for n, each in enumerate(pair.results)]
        return [relax.VarBinding(both, call), *fields]

    def _makes_rows(self, binding: Any) -> bool:
        """Whether a call computes rows, element by element or by reductions of rows, of what lies in their order."""
        return is_rows(shape_of(binding.var)) and self._form(binding.value).in_order

    def _reduces(self, variable: Any, made: Any) -> bool:
        """Whether a call has reductions and makes rows of the shape of those that are made."""
        return self._form(self.flow.value(variable)).reduces and same(shape_of(variable), shape_of(made.var))

    def _form(self, call: Any) -> _Form:
        """Return what the PrimFunc of a call does; nothing if it takes more than tensors or has several results."""
        if operator_of(call) != "call_tir" or len(call.args) != 2 or isinstance(call.ty, relax.TupleType):
            return _Form()
        name = str(call.args[0].name_hint)
        if name not in self._forms:
            self._forms[name] = _form_of(self.builder.get()[call.args[0]])
        return self._forms[name]

    def _pair(self, made: Any, reduced: Any) -> _Pair | None:
        """Return what becomes of two calls; None if no kernel holds all of their rows."""
        operands, key = operands_of(made, reduced)
        rows = [each for each in operands if same(shape_of(each), shape_of(made.var))]
        apart = len(self.flow.readers(made.var)) > 1 or self.flow.is_result(made.var)
        if len(rows) > MAX_OPERANDS:
            return None
        key = (*key, apart)
        if key not in self._functions:
            self._functions[key] = self._joined(made, reduced, operands, apart=apart)
        results = (made.var, reduced.var) if apart else (reduced.var,)
        return None if self._functions[key] is None else _Pair(operands, self._functions[key], results)

    def _joined(self, made: Any, reduced: Any, operands: Sequence[Any], *, apart: bool) -> Any:
        """Return the function of both calls, in the module; None if it has no schedule of rows in registers."""
        results = (made.var, reduced.var) if apart else (reduced.var,)
        function = join_calls(self.builder.get(), (made, reduced), operands, results)
        if not lowers(function, lambda each: schedule_row_reduction(widen(each))):
            return None
        return self.builder.add_func(function, joined_name(made, reduced))


def _form_of(function: tirx.PrimFunc) -> _Form:
    if not all(is_buffer_var(parameter) for parameter in function.params):
        return _Form()
    sch = schedule_of(function)
    try:
        found = blocks(sch)
    except ScheduleError:  # one of threads and barriers, as those of sorting
        return _Form()
    reduces = any(is_reduction(sch, block) for block in found)
    return _Form(reduces, all(_reads_in_order(sch, block) for block in found))


def is_rows(shape: Any) -> bool:
    """Whether a tensor of a shape has rows that a kernel holds."""
    return shape is not None and len(shape) > 1 and isinstance(shape[-1], int) and shape[-1] <= MAX_LENGTH


def _reads_in_order(sch: Any, block: Any) -> bool:
    """Whether neighbors along the last axis of a block are neighbors in what it reads, or the same element."""
    if not is_spatial(sch, block) and not is_reduction(sch, block):
        return False
    return bool(sch.get(block).iter_vars) and all(
        is_aligned(sch, block, load, 1) for load in loads(sch.get(block).body)
    )
