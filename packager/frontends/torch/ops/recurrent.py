"""Converters of torch's recurrent layers (``aten.lstm``, ``gru``, ``rnn_tanh``, ``rnn_relu``)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import relax

from packager.frontends.recurrent import emit_layer, split_biases
from packager.graph.recurrences.recurrent import Activation, Recurrent, RecurrentOperands

_R = relax.op
SIGMOID, TANH, RELU = Activation("Sigmoid"), Activation("Tanh"), Activation("Relu")


@dataclass(frozen=True)
class _Cell:
    """A cell with the order of its gates in torch's weights (input, forget, cell, output; reset, update, new)."""

    name: str
    gates: str
    activations: tuple[Activation, ...]

    @property
    def states(self) -> str:
        """The names of its states."""
        return "hc" if self.name == "lstm" else "h"


def _layers(cell: _Cell, importer: Any, node: Any) -> Any:
    """Convert a stack of layers: ``(input, states, weights, biases?, layers, dropout, train, two directions?, batch
    first?)``. The result is the last layer's sequence and the final states of all layers."""
    data, initial, weights, has_biases, layers, dropout, train, bidirectional, batch_first = node.args
    if dropout and train:
        raise ValueError("dropout between layers is for training")
    emit, tensor = importer.emit, importer.tensor
    read = {int(user.args[1]) for user in node.users}
    reverse = (False, True) if bidirectional else (False,)
    directions = len(reverse)
    description = Recurrent(
        cell=cell.name,
        gates=cell.gates,
        reverse=reverse,
        activations=(cell.activations,) * directions,
        reset_after=cell.name == "gru",
        finals="".join(name for index, name in enumerate(cell.states, 1) if index in read),
    )
    starts = [tensor(state) for state in (initial if cell.name == "lstm" else [initial])]
    x = tensor(data)
    if batch_first:
        x = emit(_R.permute_dims(x, [1, 0, 2]))
    count = len(weights) // (layers * directions)
    finals: dict[str, list[Any]] = {name: [] for name in description.finals}
    for layer in range(layers):
        first = layer * directions
        own = [weights[(first + d) * count : (first + d + 1) * count] for d in range(directions)]
        w, r, *biases = (_stacked(emit, [tensor(weight) for weight in group]) for group in zip(*own, strict=True))
        bias = hidden_bias = None
        if has_biases:
            bias, hidden_bias = split_biases(emit, biases[0], biases[1], description)
        h, *c = (_part(emit, state, first, directions, layers) for state in starts)
        operands = RecurrentOperands(x, r, initial_h=h, initial_c=c[0] if c else None, hidden_bias=hidden_bias)
        x, states = emit_layer(emit, operands, w, bias, description)
        for name, state in states.items():
            finals[name].append(state)
    if batch_first:
        x = emit(_R.permute_dims(x, [1, 0, 2]))
    results = [emit(_R.concat(found, axis=0)) if len(found) > 1 else found[0] for found in finals.values()]
    named = dict(zip(finals, results, strict=True))
    return relax.Tuple([x, *(named.get(name, x) for name in cell.states)])


def _stacked(emit: Callable[[Any], Any], parts: Sequence[Any]) -> Any:
    """Return the weights of all directions, with the direction as first axis."""
    wide = [emit(_R.expand_dims(part, 0)) for part in parts]
    return wide[0] if len(wide) == 1 else emit(_R.concat(wide, axis=0))


def _part(emit: Callable[[Any], Any], state: Any, first: int, directions: int, layers: int) -> Any:
    """Return the initial state of a layer."""
    return state if layers == 1 else emit(_R.strided_slice(state, [0], [first], [first + directions]))


RECURRENT: Mapping[str, Callable[[Any, Any], Any]] = {
    "lstm.input": partial(_layers, _Cell("lstm", "ifco", (SIGMOID, TANH, TANH))),
    "gru.input": partial(_layers, _Cell("gru", "rzh", (SIGMOID, TANH))),
    "rnn_tanh.input": partial(_layers, _Cell("rnn", "h", (TANH,))),
    "rnn_relu.input": partial(_layers, _Cell("rnn", "h", (RELU,))),
}
