"""The Relax operator ``packager.recurrent``: an RNN, GRU or LSTM layer over all steps, of one or two directions.

The product of the inputs and the input weights, with the biases added, is an operand: one matmul of all steps. What is
left is sequential: per step a product with the recurrent weights, then the cell. The equations are those of ONNX's
operators RNN, GRU and LSTM (version 22), which torch's agree with.

A direction's step reads ``x`` [steps, batch, directions * gates * hidden] and the state, and writes a row of the
result, [steps + finals, batch, directions * hidden]: hidden states of all steps, then the final states that are asked
for.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import tvm
from tvm import relax
from tvm.ir import Op

from packager.graph.dataflow import shape_of
from packager.graph.own_operators import register

NAME = "relax.packager.recurrent"
# The gates of a cell in the order of ONNX's weights: input, output, forget, cell; update, reset, hidden.
GATES = {"rnn": "h", "gru": "zrh", "lstm": "iofc"}
# Operands after the product of the inputs and the recurrent weights, which are always there.
OPTIONAL = ("initial_h", "initial_c", "lengths", "peepholes", "hidden_bias")


@dataclass(frozen=True)
class Activation:
    """An activation under ONNX's name. ``alpha`` and ``beta`` are 0 where it has none."""

    name: str
    alpha: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True)
class Recurrent:
    """What a call computes.

    ``gates`` is a permutation of ``GATES[cell]``: their order in the weights. ``reverse`` and ``activations`` have an
    entry for each direction; the activations of an LSTM are those of its gates, of the cell input, and of the cell
    state, of a GRU those of its gates and of the hidden state. ``clip`` bounds what activations of gates are given.
    ``coupled`` makes the forget gate of an LSTM one minus its input gate. With ``reset_after`` the reset gate of a GRU
    multiplies the product with the recurrent weights, otherwise the state before it. ``finals`` are the final states
    after the hidden states of all steps in the result: of ``h`` and ``c``. ``operands`` are those of OPTIONAL that the
    call has, in order.
    """

    cell: str
    gates: str
    reverse: tuple[bool, ...]
    activations: tuple[tuple[Activation, ...], ...]
    clip: float | None = None
    coupled: bool = False
    reset_after: bool = False
    finals: str = ""
    operands: tuple[str, ...] = ()

    @property
    def directions(self) -> int:
        """The number of directions: 1 or 2."""
        return len(self.reverse)


@dataclass(frozen=True)
class RecurrentOperands:
    """The operands of a call.

    ``x`` is [steps, batch, directions * gates * hidden], ``weights`` [directions, gates * hidden, hidden],
    ``initial_h`` and ``initial_c`` are [directions, batch, hidden], zeros if they are missing. ``lengths`` [batch] of
    int32 are the steps of each row: later steps leave its state alone, and their hidden states are zeros. ``peepholes``
    is [directions, 3 * hidden], for the gates i, o and f of an LSTM. ``hidden_bias`` [directions, hidden] is added to
    the product that the reset gate multiplies (``reset_after``).
    """

    x: Any
    weights: Any
    initial_h: Any = None
    initial_c: Any = None
    lengths: Any = None
    peepholes: Any = None
    hidden_bias: Any = None


def recurrent(operands: RecurrentOperands, description: Recurrent) -> relax.Call:
    """Return the call; its ``operands`` follow from those that are not None."""
    present = tuple(name for name in OPTIONAL if getattr(operands, name) is not None)
    fields = asdict(description) | {"operands": present}
    attrs = tvm.ir.make_node("ir.DictAttrs", description=json.dumps(fields))
    return relax.Call(
        Op.get(NAME), [operands.x, operands.weights, *(getattr(operands, name) for name in present)], attrs
    )


def description_of(attrs: Any) -> Recurrent:
    """Return the description of a call."""
    fields = json.loads(str(attrs["description"]))
    activations = tuple(tuple(Activation(**one) for one in direction) for direction in fields.pop("activations"))
    return Recurrent(
        **fields
        | {"activations": activations, "reverse": tuple(fields["reverse"]), "operands": tuple(fields["operands"])}
    )


def operands_of_call(call: relax.Call) -> RecurrentOperands:
    """Return the operands of a call by name."""
    x, weights, *others = call.args
    present: Mapping[str, Any] = dict(zip(description_of(call.attrs).operands, others, strict=True))
    return RecurrentOperands(x, weights, **present)


def _infer(call: Any, _builder: Any) -> Any:
    description = description_of(call.attrs)
    x, weights = (shape_of(argument) for argument in call.args[:2])
    if x is None or weights is None or len(x) != 3 or len(weights) != 3:
        raise ValueError(f"{NAME}: x and weights must have three known extents")
    steps, batch, _ = x
    finals = len(description.finals)
    return relax.TensorType(
        [steps + finals if finals else steps, batch, description.directions * weights[2]], str(call.args[0].ty.dtype)
    )


register(NAME, "A recurrent layer", ("x", "weights"), _infer, variadic=True)
