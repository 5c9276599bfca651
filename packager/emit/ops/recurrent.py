"""Recurrent layers: packager's operator is given the product of the inputs, ONNX's operators compute it."""

from __future__ import annotations

from typing import Any

import numpy as np

from packager.emit.errors import CannotWriteError
from packager.emit.function_writer import FunctionWriter, Rules, dtype_of, extents, static_extents
from packager.graph.recurrences.recurrent import GATES, Recurrent, description_of, operands_of_call

_DIRECTIONS = {(False,): "forward", (True,): "reverse", (False, True): "bidirectional"}
_DEFAULTS = {"rnn": ("Tanh",), "gru": ("Sigmoid", "Tanh"), "lstm": ("Sigmoid", "Tanh", "Tanh")}
# Activations with parameters, which ONNX lists without those of the others.
_WITH_BETA = ("Affine", "HardSigmoid", "ScaledTanh")
_WITH_ALPHA = (*_WITH_BETA, "Elu", "LeakyRelu", "ThresholdedRelu")


def _attributes(description: Recurrent) -> dict[str, Any]:
    found: dict[str, Any] = {"clip": description.clip, "direction": _DIRECTIONS.get(description.reverse)}
    if found["direction"] is None:
        raise CannotWriteError(f"ONNX has no layer of the directions {description.reverse}")
    if description.coupled:
        found["input_forget"] = 1
    if description.reset_after:
        found["linear_before_reset"] = 1
    every = [activation for direction in description.activations for activation in direction]
    if [one.name for one in every] != [*_DEFAULTS[description.cell]] * description.directions:
        found["activations"] = [one.name for one in every]
        found["activation_alpha"] = [one.alpha for one in every if one.name in _WITH_ALPHA] or None
        found["activation_beta"] = [one.beta for one in every if one.name in _WITH_BETA] or None
    return found


def _split_product(writer: FunctionWriter, value: str) -> tuple[str, str, str | None]:
    """Return the sequence, the matrix [inputs, rows] and the bias [rows] whose product a value is.

    Of another value the matrix is missing.
    """
    bias = None
    product = writer.producer(value)
    if product is not None and product.op_type == "Add":
        inner = writer.producer(product.input[0])
        if inner is not None and inner.op_type == "MatMul":
            product, bias = inner, product.input[1]
    if product is not None and product.op_type == "MatMul":
        return product.input[0], product.input[1], bias
    return value, "", None


def _input_weights(writer: FunctionWriter, matrix: str, call: Any) -> str:
    """Return the weights [directions, gates * hidden, inputs] that are the matrix, or the identity for none."""
    directions, rows, _ = static_extents(operands_of_call(call).weights)
    if not matrix:
        return writer.constant(np.eye(directions * rows).reshape(directions, rows, -1), dtype_of(call))
    turned = writer.producer(matrix)
    flat = writer.producer(turned.input[0]) if turned is not None and turned.op_type == "Transpose" else None
    if flat is not None and flat.op_type == "Reshape":  # as the frontends make the matrix of the model's weights
        source = writer.known(flat.input[0])
        if source is not None and source.ndim == 3 and source.shape[:2] == (directions, rows):
            return str(flat.input[0])
    transposed = writer.node("Transpose", [matrix], perm=[1, 0])
    return str(writer.node("Reshape", [transposed, writer.integers([directions, rows, -1])]))


def _in_order(writer: FunctionWriter, value: str, description: Recurrent, hidden: int) -> str:
    """Return [directions, gates * hidden, ...] with the gates in the order of ONNX."""
    wanted = GATES[description.cell]
    if description.gates == wanted:
        return value
    places = [description.gates.index(gate) * hidden + row for gate in wanted for row in range(hidden)]
    return str(writer.node("Gather", [value, writer.integers(places)], axis=1))


def _input_bias(writer: FunctionWriter, bias: str | None, call: Any, rows: int, hidden: int) -> str:
    """Return the biases [directions, 2 gates hidden]; an empty name if there are none."""
    description, operands = description_of(call.attrs), operands_of_call(call)
    if bias is None and operands.hidden_bias is None:
        return ""
    directions, dtype = description.directions, dtype_of(call)
    zeros = writer.constant(np.zeros((directions, rows)), dtype)
    of_input = zeros
    if bias is not None:
        of_input = _in_order(writer, writer.reshape(bias, [directions, rows]), description, hidden)
    of_state = zeros
    if operands.hidden_bias is not None:  # the hidden gate is the last in ONNX
        rest = writer.constant(np.zeros((directions, rows - hidden)), dtype)
        of_state = str(writer.node("Concat", [rest, writer.value(operands.hidden_bias)], axis=1))
    return str(writer.node("Concat", [of_input, of_state], axis=1))


def _recurrent(writer: FunctionWriter, call: Any) -> str:
    description, operands = description_of(call.attrs), operands_of_call(call)
    directions, rows, hidden = static_extents(operands.weights)
    sequence, matrix, bias = _split_product(writer, writer.value(operands.x))
    inputs = _input_weights(writer, matrix, call)
    optional = (operands.lengths, operands.initial_h, operands.initial_c, operands.peepholes)
    lengths, *states = ("" if operand is None else writer.value(operand) for operand in optional)
    given = [
        sequence,
        _in_order(writer, inputs, description, hidden),
        _in_order(writer, writer.value(operands.weights), description, hidden),
        _input_bias(writer, bias, call, rows, hidden),
        lengths,
        *(states if description.cell == "lstm" else states[:1]),
    ]
    while not given[-1]:
        given.pop()
    results = 3 if description.cell == "lstm" else 2
    made = writer.node(description.cell.upper(), given, outputs=results, hidden_size=hidden, **_attributes(description))
    finals = [made["hc".index(name) + 1] for name in description.finals]
    wide = writer.integers([0, 0, directions * hidden])
    parts = [writer.node("Reshape", [writer.node("Transpose", [made[0]], perm=[0, 2, 1, 3]), wide])]
    for final in finals:
        turned = writer.node("Transpose", [final], perm=[1, 0, 2])
        batch = extents(call)[1]
        last = [1, batch if isinstance(batch, int) else -1, directions * hidden]
        parts.append(writer.node("Reshape", [turned, writer.integers(last)]))
    return str(writer.node("Concat", parts, axis=0)) if finals else str(parts[0])


RULES: Rules = {"packager.recurrent": _recurrent}
