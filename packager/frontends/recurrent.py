"""Emits a layer of a recurrent network: the product of all inputs, ``packager.recurrent``, and the results' parts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tvm import relax

from packager.graph.dataflow import extents_of, shape_of
from packager.graph.recurrences.recurrent import Recurrent, RecurrentOperands, recurrent


def emit_layer(
    emit: Callable[[Any], Any], operands: RecurrentOperands, inputs: Any, bias: Any, description: Recurrent
) -> tuple[Any, Mapping[str, Any]]:
    """Emit a layer; return its hidden states, and the final states that the description asks for by name.

    ``operands.x`` is the sequence [steps, batch, inputs], ``inputs`` the input weights [directions, rows, inputs] and
    ``bias`` [directions, rows] or None. The hidden states are [steps, batch, directions * hidden], final states
    [directions, batch, hidden].
    """
    op = relax.op
    directions, rows, width = shape_of(inputs) or ()
    matrix = emit(op.permute_dims(emit(op.reshape(inputs, [directions * rows, width]))))
    x = emit(op.matmul(operands.x, matrix))
    if bias is not None:
        x = emit(op.add(x, emit(op.reshape(bias, [directions * rows]))))
    steps, batch, _ = extents_of(operands.x) or ()
    hidden = (shape_of(operands.weights) or ())[-1]
    # Without lengths the final hidden state is that of a step.
    is_step = operands.lengths is None and isinstance((shape_of(operands.x) or (None,))[0], int)
    computed = replace(description, finals=description.finals.replace("h", "") if is_step else description.finals)
    whole = emit(recurrent(replace(operands, x=x), computed))

    def part(begin: Any, end: Any) -> Any:
        return emit(op.strided_slice(whole, [0], [begin], [end], assume_inbound=True))

    def state(row: Any) -> Any:
        split = emit(op.reshape(row, [batch, directions, hidden]))
        return emit(op.permute_dims(split, [1, 0, 2]))

    finals = {name: state(part(steps + n, steps + n + 1)) for n, name in enumerate(computed.finals)}
    if is_step and "h" in description.finals:
        ends = [part(0, 1) if reverse else part(steps - 1, steps) for reverse in description.reverse]
        if directions > 1:
            ends = [
                emit(op.strided_slice(end, [2], [index * hidden], [(index + 1) * hidden]))
                for index, end in enumerate(ends)
            ]
            finals["h"] = state(emit(op.concat(ends, axis=2)))
        else:
            finals["h"] = state(ends[0])
    return (part(0, steps) if computed.finals else whole), finals


def split_biases(emit: Callable[[Any], Any], of_input: Any, of_state: Any, description: Recurrent) -> tuple[Any, Any]:
    """Return the bias of the input product, and that of the product which the reset gate of a GRU multiplies, or None.

    The biases are [directions, rows]; the hidden gate is the last.
    """
    op = relax.op
    if not description.reset_after:
        return emit(op.add(of_input, of_state)), None
    rows = (shape_of(of_state) or ())[1]
    last = rows - rows // len(description.gates)

    def part(bias: Any, begin: int, end: int) -> Any:
        return emit(op.strided_slice(bias, [1], [begin], [end]))

    gates = emit(op.add(part(of_input, 0, last), part(of_state, 0, last)))
    return emit(op.concat([gates, part(of_input, last, rows)], axis=1)), part(of_state, last, rows)
