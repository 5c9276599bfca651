"""Repeats heads of keys and values behind the transpose to heads, which Meta's Llama has behind the repetition.

Attention of groups of queries (Ainslie et al. 2023, "GQA") reads a head that follows its transpose as often as it is
repeated, without a copy.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import Dataflow, axes_of, same, shape_of
from packager.graph.rewrite import Bindings, map_bindings, tidy

# The orders of [batch, rows, heads, dim] that attention reads, rows or dims last.
HEADS, TURNED = (0, 2, 1, 3), (0, 2, 3, 1)


def repeat_behind_transposes(module: tvm.IRModule) -> tvm.IRModule:
    """Rewrite the transposes to heads in ``main`` of heads that are repeated: transpose first."""
    flow = Dataflow(module["main"])
    found = False

    def rewrite(binding: Any) -> list[Any]:
        nonlocal found
        axes = axes_of(binding.value)
        heads = _repeated(flow, binding.value.args[0]) if axes in (HEADS, TURNED) else None
        if heads is None:
            return [binding]
        found = True
        batch, rows, count, times, dim = shape_of(heads.args[0]) or ()
        made = Bindings(binding.var, "_heads")
        once = made.bind(relax.op.reshape(flow.value(heads.args[0]).args[0], [batch, rows, count, dim]))
        once = made.bind(relax.op.permute_dims(once, HEADS))
        once = made.bind(relax.op.reshape(once, [batch, count, 1, rows, dim]))
        several = made.bind(relax.op.broadcast_to(once, [batch, count, times, rows, dim]))
        several = relax.op.reshape(several, [batch, count * times, rows, dim])
        return made.ended(several if axes == HEADS else relax.op.permute_dims(made.bind(several), (0, 1, 3, 2)))

    rewritten = map_bindings(module, rewrite)
    return tidy(rewritten) if found else module


def _repeated(flow: Dataflow, variable: Any) -> Any:
    """Return the reshape to [batch, rows, heads * times, dim] of heads [batch, rows, heads, times, dim], or None."""
    reshape = flow.call(variable, "reshape")
    repeat = None if reshape is None else flow.call(reshape.args[0], "broadcast_to")
    if repeat is None:
        return None
    whole, own, result = shape_of(reshape.args[0]), shape_of(repeat.args[0]), shape_of(variable)
    if not whole or not own or not result or len(whole) != 5 or len(own) != 5 or len(result) != 4:
        return None
    once = (*whole[:3], 1, whole[4])
    fits = same(own, once) and same(result, (*whole[:2], whole[2] * whole[3], whole[4]))
    return reshape if fits else None
