"""Recurrent layers: from a call of ``packager.recurrent`` to a problem and its kernel."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from packager.backends.cutlass.core.drafts import GroupDraft, Ranking, rank
from packager.backends.cutlass.core.options import CutlassOptions
from packager.backends.cutlass.recurrent.kernels import RecurrentKernel, kernel_for
from packager.graph.dataflow import Dataflow, shape_of
from packager.graph.identity import IdentityMap
from packager.graph.recurrences.recurrent import Recurrent, RecurrentOperands, description_of, operands_of_call
from packager.ir.primitives import Packing, Parameter

# The gates of a cell in the order of the kernel, and the activations that it computes.
ORDER = {"lstm": "ifco", "gru": "zrh"}
ACTIVATIONS = {"lstm": ("Sigmoid", "Tanh", "Tanh"), "gru": ("Sigmoid", "Tanh")}


@dataclass(frozen=True)
class RecurrentProblem:
    """A layer of ``hidden`` units, and its kernel."""

    layer: Recurrent
    operands: RecurrentOperands
    hidden: int
    kernel: RecurrentKernel


def read_recurrent(flow: Dataflow, variable: Any) -> RecurrentProblem | None:
    """Return the problem of a call, or None if no kernel supports it."""
    call = flow.value(variable)
    layer, operands = description_of(call.attrs), operands_of_call(call)
    hidden = (shape_of(operands.weights) or ())[-1]
    usual = all(
        tuple(one.name for one in activations) == ACTIVATIONS.get(layer.cell) for activations in layer.activations
    )
    if not usual or layer.clip is not None or layer.coupled or (layer.cell == "gru") != layer.reset_after:
        return None
    if operands.lengths is not None or operands.peepholes is not None or not isinstance(hidden, int):
        return None
    types = {str(operand.ty.dtype) for operand in (variable, *call.args)}
    # Kernels read these before earlier ones are complete.
    constants = [operand for operand in (operands.weights, operands.hidden_bias) if operand is not None]
    if len(types) != 1 or not all(map(flow.is_constant, constants)):
        return None
    kernel = kernel_for(types.pop(), layer.cell, hidden)
    return None if kernel is None else RecurrentProblem(layer, operands, hidden, kernel)


def rank_recurrent(problem: RecurrentProblem, options: CutlassOptions) -> Ranking:
    """Rank the one kernel; empty if a GPU of the bundle has none: clusters are Hopper's."""
    layer, kernel = problem.layer, problem.kernel
    text = f"recurrent {kernel.dtype} {layer.cell} {problem.hidden} directions {layer.directions}"
    clusters = kernel.blocks > 1
    return rank(text, options.arch, [kernel] if clusters else [], [] if clusters else [kernel])


def find_recurrent(flow: Dataflow, variable: Any, options: CutlassOptions) -> Iterator[RecurrentProblem]:
    """Yield the problem of a call if each GPU of the bundle has a kernel."""
    problem = read_recurrent(flow, variable)
    if problem is not None and rank_recurrent(problem, options):
        yield problem


def add_recurrent(
    problem: RecurrentProblem, arguments: IdentityMap[int], group: GroupDraft, options: CutlassOptions
) -> None:
    """Add the function of a layer to its partition's group."""
    layer, operands, kernel = problem.layer, problem.operands, problem.kernel
    order = tuple(layer.gates.index(gate) for gate in ORDER[layer.cell])
    draft = group.add("recurrent", rank_recurrent(problem, options))
    draft.pointer("x", Parameter("argument", arguments[operands.x]))
    layout = f"{kernel.name}_{''.join(map(str, order))}"
    draft.pointer("w", group.packed(Packing(arguments[operands.weights], layout, partial(kernel.pack, order=order))))
    others = {"bias": operands.hidden_bias, "h": operands.initial_h, "c": operands.initial_c}
    for name, operand in others.items():
        if operand is not None:
            draft.pointer(name, Parameter("argument", arguments[operand]))
    draft.pointer("y", Parameter("argument", len(arguments), written=True))
    steps, batch, _ = shape_of(operands.x) or ()
    draft.set(steps=steps, batch=batch, hidden=problem.hidden, directions=layer.directions)
    draft.set(**{f"place[{index}]": place for index, place in enumerate(order)})
    draft.set(reverse=sum(1 << number for number, backwards in enumerate(layer.reverse) if backwards))
    draft.set(final_h=layer.finals.find("h"), final_c=layer.finals.find("c"))
