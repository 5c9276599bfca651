"""Converters of recurrent layers: ONNX operators RNN, LSTM and GRU (version 22) with all attributes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from tvm import relax

from packager.frontends.onnx.ops.operands import Convert, Converter, extents, optional, text
from packager.frontends.recurrent import emit_layer, split_biases
from packager.graph.recurrences.recurrent import GATES, Activation, Recurrent, RecurrentOperands

DEFAULTS = {"rnn": ["Tanh"], "lstm": ["Sigmoid", "Tanh", "Tanh"], "gru": ["Sigmoid", "Tanh"]}
ALPHA = {"Affine": 1.0, "LeakyRelu": 0.01, "ThresholdedRelu": 1.0, "ScaledTanh": 1.0, "HardSigmoid": 0.2, "Elu": 1.0}
BETA = {"Affine": 0.0, "ScaledTanh": 1.0, "HardSigmoid": 0.5}
ACTIVATIONS = ("Sigmoid", "Tanh", "Relu", "Softsign", "Softplus", *ALPHA)
# Whether directions are reverse.
DIRECTIONS = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def _activations(cell: str, directions: int, attributes: Mapping[str, Any]) -> tuple[tuple[Activation, ...], ...]:
    """Return the activations of each direction. Raises ValueError."""
    defaults = DEFAULTS[cell]
    given = [name.decode() if isinstance(name, bytes) else name for name in attributes.get("activations", ())]
    exact = {name.lower(): name for name in ACTIVATIONS}
    unknown = [name for name in given if name.lower() not in exact]
    if unknown:
        raise ValueError(f"there is no activation {unknown[0]!r}")
    names = [exact[name.lower()] for name in given] or defaults * directions
    if len(names) != len(defaults) * directions:
        raise ValueError(f"{len(names)} activations, where {len(defaults)} are needed for each direction")
    # The parameters are consumed in order by the functions that take any.
    alphas, betas = (list(attributes.get(f"activation_{which}", ())) for which in ("alpha", "beta"))
    made = []
    for name in names:
        alpha = alphas.pop(0) if name in ALPHA and alphas else ALPHA.get(name, 0.0)
        beta = betas.pop(0) if name in BETA and betas else BETA.get(name, 0.0)
        made.append(Activation(name, alpha, beta))
    return tuple(tuple(made[start : start + len(defaults)]) for start in range(0, len(made), len(defaults)))


def _convert(cell: str, builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _: Convert) -> Any:
    emit, op = builder.emit, relax.op
    x, w, r = inputs[:3]
    bias, lengths, *initial = (optional(inputs, index) for index in (3, 4, 5, 6))
    peepholes = optional(inputs, 7) if cell == "lstm" else None
    batch_first = bool(attributes.get("layout", 0))
    if batch_first:
        x = emit(op.permute_dims(x, [1, 0, 2]))
        initial = [None if state is None else emit(op.permute_dims(state, [1, 0, 2])) for state in initial]
    direction = text(attributes, "direction", "forward")
    if direction not in DIRECTIONS:
        raise ValueError(f"there is no direction {direction!r}")
    reverse = DIRECTIONS[direction]
    directions, rows, hidden = extents(r)
    if not all(isinstance(extent, int) for extent in (directions, rows, hidden)):
        raise ValueError("the recurrent weights have symbolic extents")
    if directions != len(reverse) or rows != len(GATES[cell]) * hidden:
        raise ValueError(f"recurrent weights of shape {extents(r)} for {len(reverse)} directions")
    clip = attributes.get("clip")
    states, read = ("hc" if cell == "lstm" else "h"), attributes["tvm_custom"]["read"]
    description = Recurrent(
        cell=cell,
        gates=GATES[cell],
        reverse=reverse,
        activations=_activations(cell, directions, attributes),
        clip=None if clip is None else float(clip),
        coupled=bool(attributes.get("input_forget", 0)) and cell == "lstm",
        reset_after=bool(attributes.get("linear_before_reset", 0)) and cell == "gru",
        finals="".join(name for name, is_read in zip(states, read[1:], strict=False) if is_read),
    )
    hidden_bias = None
    if bias is not None:
        of_input, of_state = (emit(op.strided_slice(bias, [1], [begin], [begin + rows])) for begin in (0, rows))
        bias, hidden_bias = split_biases(emit, of_input, of_state, description)
    operands = RecurrentOperands(
        x=x,
        weights=r,
        initial_h=initial[0],
        initial_c=initial[1] if cell == "lstm" else None,
        lengths=lengths,
        peepholes=peepholes,
        hidden_bias=hidden_bias,
    )
    y, finals = emit_layer(emit, operands, w, bias, description)
    steps, batch, _ = extents(x)
    y = emit(op.reshape(y, [steps, batch, directions, hidden]))
    y = emit(op.permute_dims(y, [1, 0, 2, 3] if batch_first else [0, 2, 1, 3]))
    if batch_first:
        finals = {name: emit(op.permute_dims(state, [1, 0, 2])) for name, state in finals.items()}
    return relax.Tuple([y, *(finals.get(name, y) for name in states)])


CONVERTERS: Mapping[str, Converter] = {name: partial(_convert, name.lower()) for name in ("RNN", "LSTM", "GRU")}
