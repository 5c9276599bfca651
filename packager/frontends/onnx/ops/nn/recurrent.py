"""Converters of recurrent networks, unrolled over time: one matmul of all inputs, then the steps.

ONNX operators RNN, LSTM and GRU (version 22): both directions, sequence lengths, peepholes, clipping, both layouts and
all activations. A symbolic number of steps is unrolled to its maximum; steps beyond it leave the state alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from tvm import relax, te, tirx

from packager.frontends.onnx.ops.nn import activations
from packager.frontends.onnx.ops.operands import Convert, Converter, dtype_of, extents, optional, text
from packager.frontends.onnx.ops.shape_arithmetic import as_tensor

MAX_STEPS = 2048
# Each run computes the maximum of a symbolic number.
MAX_SYMBOLIC_STEPS = 512
# Number of gates. In the weights they are ordered input, output, forget, cell (LSTM); update, reset, hidden (GRU).
GATES = {"RNN": 1, "LSTM": 4, "GRU": 3}
DEFAULTS = {"RNN": ["Tanh"], "LSTM": ["Sigmoid", "Tanh", "Tanh"], "GRU": ["Sigmoid", "Tanh"]}
ALPHA = {"Affine": 1.0, "LeakyRelu": 0.01, "ThresholdedRelu": 1.0, "ScaledTanh": 1.0, "HardSigmoid": 0.2, "Elu": 1.0}
BETA = {"Affine": 0.0, "ScaledTanh": 1.0, "HardSigmoid": 0.5}
# Activations that are ONNX operators.
ACTIVATION_OPERATORS = ("Sigmoid", "Tanh", "Relu", "LeakyRelu", "HardSigmoid", "Softsign", "Softplus")
Function = Callable[[Any], Any]


@dataclass(frozen=True)
class _Cell:
    """The context of the steps of one direction: block builder, extents and attributes."""

    builder: Any
    hidden: int
    dtype: str
    functions: tuple[Function, ...]
    clip: float | None
    attributes: Mapping[str, Any]

    def emit(self, call: Any) -> Any:
        return self.builder.emit(call)

    def add(self, *terms: Any) -> Any:
        """Return the sum of the terms that are not None."""
        there = [term for term in terms if term is not None]
        total = there[0]
        for term in there[1:]:
            total = self.emit(relax.op.add(total, term))
        return total

    def times(self, a: Any, b: Any) -> Any:
        return self.emit(relax.op.multiply(a, b))

    def number(self, value: float) -> Any:
        return relax.const(value, self.dtype)

    def apply(self, index: int, value: Any) -> Any:
        """Clip a value and apply an activation."""
        if self.clip is not None:
            value = self.emit(relax.op.clip(value, -self.clip, self.clip))
        return self.functions[index](value)

    def part(self, data: Any, index: int, count: int = 1) -> Any:
        """Slice ``count`` gates of ``hidden`` elements each along the last axis."""
        begin, end = index * self.hidden, (index + count) * self.hidden
        return self.emit(relax.op.strided_slice(data, [data.ty.ndim - 1], [begin], [end]))


def _activation(
    builder: Any, name: str, alpha: float | None, beta: float | None, dtype: str, convert: Convert
) -> Function:
    attributes: dict[str, Any] = {
        "alpha": ALPHA.get(name, 0.0) if alpha is None else alpha,
        "beta": BETA.get(name, 0.0) if beta is None else beta,
    }
    a, b = (relax.const(value, dtype) for value in attributes.values())
    if name == "Affine":
        return lambda x: builder.emit(relax.op.add(relax.op.multiply(x, a), b))
    if name == "ScaledTanh":
        return lambda x: builder.emit(relax.op.multiply(relax.op.tanh(relax.op.multiply(x, b)), a))
    if name in ("Elu", "ThresholdedRelu"):
        return lambda x: builder.emit(activations.CONVERTERS[name](builder, [x], attributes, convert))
    if name in ACTIVATION_OPERATORS:
        return lambda x: builder.emit(convert(name, [x], attributes))
    raise ValueError(f"there is no activation {name!r}")


def _functions(
    builder: Any, kind: str, direction: int, attributes: Mapping[str, Any], dtype: str, convert: Convert
) -> tuple[Function, ...]:
    defaults = DEFAULTS[kind]
    count = len(defaults)
    given = [name.decode() if isinstance(name, bytes) else name for name in attributes.get("activations", ())]
    exact = {name.lower(): name for name in (*ALPHA, *ACTIVATION_OPERATORS)}
    names = [exact.get(name.lower(), name) for name in given]
    names = names or defaults * (direction + 1)
    # The parameters are consumed in order by the functions that take any.
    numbers = {which: list(attributes.get(f"activation_{which}", ())) for which in ("alpha", "beta")}
    takers: dict[str, Mapping[str, float]] = {"alpha": ALPHA, "beta": BETA}
    made = []
    for name in names:
        own = {which: numbers[which].pop(0) if name in takers[which] and numbers[which] else None for which in takers}
        made.append(_activation(builder, name, own["alpha"], own["beta"], dtype, convert))
    return tuple(made[direction * count : (direction + 1) * count])


def _rnn_step(cell: _Cell, x: Any, state: Sequence[Any], r: Any, bias: Any, _peep: Any) -> list[Any]:
    product = cell.emit(relax.op.matmul(state[0], r))
    return [cell.apply(0, cell.add(x, product, bias))]


def _gru_step(cell: _Cell, x: Any, state: Sequence[Any], r: Any, bias: Any, _peep: Any) -> list[Any]:
    h = state[0]
    gates, r_gates = cell.part(x, 0, 2), cell.part(r, 0, 2)
    r_hidden = cell.part(r, 2)
    b_gates = None if bias is None else cell.part(bias, 0, 2)
    b_hidden = None if bias is None else cell.part(bias, 2)
    opened = cell.apply(0, cell.add(gates, cell.emit(relax.op.matmul(h, r_gates)), b_gates))
    z, reset = cell.part(opened, 0), cell.part(opened, 1)
    if cell.attributes.get("linear_before_reset", 0):
        inner = cell.times(reset, cell.add(cell.emit(relax.op.matmul(h, r_hidden)), b_hidden))
    else:
        inner = cell.add(cell.emit(relax.op.matmul(cell.times(reset, h), r_hidden)), b_hidden)
    new = cell.apply(1, cell.add(cell.part(x, 2), inner))
    keep = cell.times(z, h)
    return [cell.add(cell.times(cell.emit(relax.op.subtract(cell.number(1.0), z)), new), keep)]


def _lstm_step(cell: _Cell, x: Any, state: Sequence[Any], r: Any, bias: Any, peep: Any) -> list[Any]:
    h, c = state
    total = cell.add(x, cell.emit(relax.op.matmul(h, r)), bias)
    i, o, f, g = (cell.part(total, gate) for gate in range(4))
    if peep is not None:
        i = cell.add(i, cell.times(cell.part(peep, 0), c))
        f = cell.add(f, cell.times(cell.part(peep, 2), c))
    i = cell.apply(0, i)
    coupled = cell.attributes.get("input_forget", 0)
    f = cell.emit(relax.op.subtract(cell.number(1.0), i)) if coupled else cell.apply(0, f)
    new = cell.add(cell.times(f, c), cell.times(i, cell.apply(1, g)))
    if peep is not None:
        o = cell.add(o, cell.times(cell.part(peep, 1), new))
    # The state is clipped for the output only, as in onnxruntime.
    return [cell.times(cell.apply(0, o), cell.functions[2](new)), new]


STEPS = {"RNN": _rnn_step, "GRU": _gru_step, "LSTM": _lstm_step}


def _take(builder: Any, data: Any, index: int, axis: int) -> Any:
    """Take one element along an axis and drop the axis."""
    part = builder.emit(relax.op.strided_slice(data, [axis], [index], [index + 1]))
    return builder.emit(relax.op.squeeze(part, [axis]))


def _unroll(kind: str, builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    x, w, r = inputs[:3]
    bias, lengths, initial = (optional(inputs, index) for index in (3, 4, 5))
    cells = [initial, optional(inputs, 6)] if kind == "LSTM" else [initial]
    peepholes = optional(inputs, 7) if kind == "LSTM" else None
    batch_first = bool(attributes.get("layout", 0))
    emit, op = builder.emit, relax.op
    if batch_first:
        x = emit(op.permute_dims(x, [1, 0, 2]))
        cells = [None if cell is None else emit(op.permute_dims(cell, [1, 0, 2])) for cell in cells]
    steps, batch, _ = extents(x)
    directions, rows, _ = extents(w)
    hidden, dtype = rows // GATES[kind], dtype_of(x)
    asked = steps
    if not isinstance(steps, int):
        x, lengths, steps = _padded(builder, kind, x, lengths, attributes["tvm_custom"]["analyzer"])
    if not 0 < steps <= MAX_STEPS:
        raise ValueError(f"{kind} over {steps} steps: there can be up to {MAX_STEPS}")
    if text(attributes, "direction", "forward") not in ("forward", "reverse", "bidirectional"):
        raise ValueError(f"{kind} has no such direction")
    outputs: list[list[Any]] = []
    finals: list[list[Any]] = []
    for direction in range(directions):
        backward = direction == 1 or text(attributes, "direction", "forward") == "reverse"
        cell = _Cell(
            builder,
            hidden,
            dtype,
            _functions(builder, kind, direction, attributes, dtype, convert),
            attributes.get("clip"),
            attributes,
        )
        weight, recurrence = (emit(op.permute_dims(_take(builder, data, direction, 0))) for data in (w, r))
        inner = None if peepholes is None else _take(builder, peepholes, direction, 0)
        projected, later = emit(op.matmul(x, weight)), None
        if bias is not None:
            row = _take(builder, bias, direction, 0)
            own = emit(op.strided_slice(row, [0], [0], [rows]))
            projected = emit(op.add(projected, own))
            later = emit(op.strided_slice(row, [0], [rows], [2 * rows]))
        state = [
            emit(op.zeros([batch, hidden], dtype)) if start is None else _take(builder, start, direction, 0)
            for start in cells
        ]
        each = [projected] if steps == 1 else [*emit(op.split(projected, steps, axis=0))]
        made: list[Any] = [None] * steps
        for step in reversed(range(steps)) if backward else range(steps):
            now = emit(op.squeeze(each[step], [0]))
            new = STEPS[kind](cell, now, state, recurrence, later, inner)
            made[step] = new[0]
            if lengths is not None:
                inside = emit(op.expand_dims(emit(op.greater(lengths, relax.const(step, dtype_of(lengths)))), 1))
                made[step] = emit(op.where(inside, new[0], cell.number(0.0)))
                new = [emit(op.where(inside, a, b)) for a, b in zip(new, state, strict=True)]
            state = new
        outputs.append(made)
        finals.append(state)
    return _results(builder, outputs, finals, asked, batch_first=batch_first)


def _padded(builder: Any, kind: str, x: Any, lengths: Any, analyzer: Any) -> tuple[Any, Any, int]:
    """Return x with zeros up to the maximum number of steps, the lengths of its sequences, and that maximum."""
    steps, batch, _ = extents(x)
    most = int(analyzer.const_int_bound(steps).max_value)
    if most > MAX_SYMBOLIC_STEPS:
        raise ValueError(
            f"{kind} over {steps} steps, up to {most}: a symbolic number can be up to {MAX_SYMBOLIC_STEPS} (--dim)"
        )

    def extended(given: Any) -> Any:
        def element(t: Any, n: Any, i: Any) -> Any:
            return tirx.if_then_else(t < given.shape[0], given(t, n, i), tirx.const(0, given.dtype))

        return te.compute((most, *given.shape[1:]), element, name="padded_steps")

    x = builder.emit_te(extended, x, primfunc_name_hint="padded_steps")
    if lengths is None:
        length = as_tensor(builder, relax.ShapeExpr([steps]), "int32")
        lengths = builder.emit(relax.op.broadcast_to(length, [batch]))
    return x, lengths, most


def _results(builder: Any, outputs: list[list[Any]], finals: list[list[Any]], steps: Any, *, batch_first: bool) -> Any:
    """Return the outputs of ``steps``, [steps, directions, batch, hidden], and the final states by direction."""
    emit, op = builder.emit, relax.op
    stacked = [emit(op.stack(made, axis=0)) for made in outputs]
    whole = emit(op.stack(stacked, axis=1))
    if not isinstance(steps, int):
        whole = emit(op.strided_slice(whole, [0], [0], [steps], assume_inbound=True))
    states = [emit(op.stack(list(group), axis=0)) for group in zip(*finals, strict=True)]
    if batch_first:
        whole = emit(op.permute_dims(whole, [2, 0, 1, 3]))
        states = [emit(op.permute_dims(state, [1, 0, 2])) for state in states]
    return relax.Tuple([whole, *states])


CONVERTERS: Mapping[str, Converter] = {kind: partial(_unroll, kind) for kind in GATES}
