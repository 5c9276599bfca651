"""Rolls up loops: linear recurrences become scans, and stacks of what each step computes one operator of all steps.

Exporters unroll loops of Python, as models of recurrences have them over tokens: hundreds of launches, each of which
computes a slice. A recurrence ``h = decay * h + update``, of slices of tensors or of what is computed from such, is a
scan of these tensors (``packager.graph.recurrences.linear_scan``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import Dataflow, flow_of, operator_of, same, scalar_of, shape_of
from packager.graph.equal_elements import equal_elements
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.recurrences.linear_scan import linear_scan
from packager.graph.rewrite import Bindings, map_bindings, tidy
from packager.ir.model import ImportedModel
from packager.transforms.unrolled.steps import Steps
from packager.transforms.unrolled.substitutions import substitute_forward
from packager.transforms.unrolled.written_slices import concat_written

# The fewest steps of a loop: fewer are fused as they are.
FEWEST = 8


def roll_up(model: ImportedModel) -> tvm.IRModule:
    """Return the module of ``model`` without the loops of ``main`` that were unrolled."""
    flow = flow_of(model)
    for change in (substitute_forward, concat_written, _scan_recurrences, _roll_stacks):
        module = change(model.module, flow, FEWEST)
        if not module.same_as(model.module):
            model = replace(model, module=module)
            flow = flow_of(model)
    return model.module


@dataclass(frozen=True)
class _Recurrence:
    """``states[i] = decays[i] * states[i - 1] + updates[i]``, where ``before`` precedes the first state."""

    before: Any
    states: tuple[Any, ...]
    decays: tuple[Any, ...]
    updates: tuple[Any, ...]


def _scan_recurrences(module: tvm.IRModule, flow: Dataflow, fewest: int) -> tvm.IRModule:
    """Rewrite each recurrence of ``fewest`` steps or more as a scan, and each state as a slice of the result."""
    replaced: IdentityMap[list[Any]] = IdentityMap()
    for recurrence in _recurrences(flow, fewest):
        replaced.update(_scanned(flow, recurrence))
    if not len(replaced):
        return module
    return tidy(map_bindings(module, lambda binding: replaced.get(binding.var, [binding])))


def _scanned(flow: Dataflow, found: _Recurrence) -> IdentityMap[list[Any]]:
    """Return the bindings that replace those of the states; none if their operands are not rolled up."""
    first, count = found.states[0], len(found.states)
    made, states = Bindings(first, "_scan"), IdentityMap[list[Any]]()
    steps = Steps(flow, made.bind)
    decay, update = steps.operand(found.decays), steps.operand(found.updates)
    shape = shape_of(first)
    if decay is None or update is None or not shape:
        return states
    whole = [count, *shape]
    operands = [made.bind(relax.op.broadcast_to(_of_all(made, *each, len(shape)), whole)) for each in (decay, update)]
    begin = equal_elements(flow, found.before)
    if begin is None or scalar_of(begin) != 0:
        started = made.bind(relax.op.multiply(found.decays[0], found.before))
        begun = made.bind(relax.op.add(started, found.updates[0]))
        rest = made.bind(relax.op.strided_slice(operands[1], [0], [1], [count]))
        operands[1] = made.bind(relax.op.concat([made.bind(relax.op.expand_dims(begun, [0])), rest], axis=0))
    scan = made.bind(linear_scan(*operands))
    for index, state in enumerate(found.states):
        own = made if index == 0 else Bindings(state, "_step")
        part = own.bind(relax.op.strided_slice(scan, [0], [index], [index + 1]))
        states[state] = own.ended(relax.op.squeeze(part, [0]))
    return states


def _of_all(made: Bindings, operand: Any, rolled: bool, rank: int) -> Any:
    """Return an operand with an axis of steps and all others of a state."""
    missing = rank - operand.ty.ndim + rolled
    axes = list(range(1, missing + 1)) if rolled else list(range(missing + 1))
    return made.bind(relax.op.expand_dims(operand, axes)) if axes else operand


def _recurrences(flow: Dataflow, fewest: int) -> list[_Recurrence]:
    """Return the recurrences of enough steps."""
    links: IdentityMap[tuple[Any, Any, Any]] = IdentityMap()  # from a state to decay, the state before, update
    following: IdentityMap[list[Any]] = IdentityMap()
    candidates = IdentitySet(v for v in flow.variables if operator_of(flow.value(v)) == "add")
    for variable in candidates:
        found = [each for each in _terms(flow, variable) if each[1] in candidates]
        if len(found) == 1:
            links[variable] = found[0]
            following.setdefault(found[0][1], []).append(variable)
    chains = []
    for start in candidates:
        if start in links or len(following.get(start, [])) != 1:
            continue
        states = [start]
        while len(after := following.get(states[-1], [])) == 1:
            states.append(after[0])
        if len(states) >= fewest:
            chains.append(_chain(flow, states, links))
    return chains


def _chain(flow: Dataflow, states: Sequence[Any], links: IdentityMap[tuple[Any, Any, Any]]) -> _Recurrence:
    """Return the recurrence of states; the first is one of its steps if something precedes it."""
    terms = [links[state] for state in states[1:]]
    begun = [each for each in _terms(flow, states[0]) if _fits(flow, each, terms[0])]
    if len(begun) == 1:
        return _Recurrence(begun[0][1], tuple(states), *_columns([begun[0], *terms]))
    return _Recurrence(states[0], tuple(states[1:]), *_columns(terms))


def _columns(terms: Sequence[tuple[Any, Any, Any]]) -> tuple[tuple[Any, ...], tuple[Any, ...]]:
    return tuple(decay for decay, _, _ in terms), tuple(update for _, _, update in terms)


def _fits(flow: Dataflow, first: tuple[Any, Any, Any], second: tuple[Any, Any, Any]) -> bool:
    """Whether terms are computed as those of the step behind are."""
    pairs = ((first[0], second[0]), (first[2], second[2]))
    return all(operator_of(flow.value(a)) == operator_of(flow.value(b)) for a, b in pairs)


def _terms(flow: Dataflow, variable: Any) -> list[tuple[Any, Any, Any]]:
    """Return each decay, state before and update that a sum may be of."""
    first, second = flow.value(variable).args
    shape = shape_of(variable)
    found = []
    for product, update in ((first, second), (second, first)):
        call = flow.call(product, "multiply")
        if call is None or shape is None or not flow.is_read_once(product):
            continue
        found += [
            (decay, before, update)
            for decay, before in (call.args, reversed(call.args))
            if same(shape_of(before) or (), shape)
        ]
    return found


def _roll_stacks(module: tvm.IRModule, flow: Dataflow, fewest: int) -> tvm.IRModule:
    """Rewrite each stack of what ``fewest`` steps or more compute."""
    found = False

    def rewrite(binding: Any) -> list[Any]:
        nonlocal found
        call = binding.value
        if operator_of(call) != "concat" or not isinstance(call.args[0], relax.Tuple):
            return [binding]
        fields, shape = list(call.args[0].fields), shape_of(binding.var)
        if len(fields) < fewest or shape is None or not all(isinstance(field, relax.Var) for field in fields):
            return [binding]
        made = Bindings(binding.var, "_steps")
        rolled = Steps(flow, made.bind).roll(fields)
        if rolled is None:
            return [binding]
        found = True
        axis = int(call.attrs.axis or 0) % len(shape)
        order = [*range(1, axis + 1), 0, *range(axis + 1, len(shape) + 1)]
        return made.ended(relax.op.reshape(made.bind(relax.op.permute_dims(rolled, order)), list(shape)))

    rewritten = map_bindings(module, rewrite)
    return tidy(rewritten) if found else module
