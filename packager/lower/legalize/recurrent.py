"""Lower recurrent layers to loops of the run: a step is compiled once, and repeated for as many steps as there are.

For any device. The ``ccompiler`` backend has a loop nest of its own, which is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from packager.graph.control_flow import LOOP_BEGIN, LOOP_END, LOOP_RESULT, LOOP_STATE, control_flow
from packager.graph.dataflow import bindings_of, extents_of, operator_of
from packager.graph.recurrent import (
    NAME,
    Activation,
    Recurrent,
    RecurrentOperands,
    description_of,
    operands_of_call,
)
from packager.graph.rewrite import rebuild_main, with_main

_OP = relax.op
SCALAR = relax.TensorType([], "int64")


def expand_recurrent(module: tvm.IRModule) -> tvm.IRModule:
    """Replace each ``packager.recurrent`` of ``main`` by a loop for each direction."""
    main, name = module["main"], NAME.removeprefix("relax.")
    if not any(operator_of(binding.value) == name for binding in bindings_of(main)):
        return module
    builder = relax.BlockBuilder()

    def bind(binding: Any) -> None:
        value = binding.value
        if operator_of(value) == name:
            layer = _Layer(builder, description_of(value.attrs), operands_of_call(value))
            value = builder.normalize(layer.expand())
        builder.emit_normalized(relax.VarBinding(binding.var, value))

    return with_main(module, rebuild_main(builder, main, bind, lambda result: result))


@dataclass(frozen=True)
class _Direction:
    """The constants of a direction's steps. ``weights`` is [hidden, gates * hidden]; others may be None."""

    number: int
    weights: Any
    peepholes: Any
    hidden_bias: Any


class _Layer:
    def __init__(self, builder: Any, description: Recurrent, operands: RecurrentOperands) -> None:
        self.builder, self.description, self.operands = builder, description, operands
        self.steps, self.batch, _ = extents_of(operands.x) or ()
        self.hidden = (extents_of(operands.weights) or ())[-1]
        self.dtype = str(operands.x.ty.dtype)

    def emit(self, expr: Any) -> Any:
        return self.builder.emit(expr)

    def expand(self) -> Any:
        """Return the result of the layer."""
        outputs, finals = [], []
        for number in range(self.description.directions):
            sequence, states = self._direction(number)
            outputs.append(sequence)
            finals.append(states)
        rows = [self._joined(outputs)]
        for name in self.description.finals:
            state = self._joined([states["hc".index(name)] for states in finals])
            rows.append(self.emit(_OP.expand_dims(state, 0)))
        return rows[0] if len(rows) == 1 else _OP.concat(rows, axis=0)

    def _joined(self, parts: Sequence[Any]) -> Any:
        return parts[0] if len(parts) == 1 else self.emit(_OP.concat(list(parts), axis=-1))

    def _direction(self, number: int) -> tuple[Any, list[Any]]:
        """Return the hidden states of a direction, [steps, batch, hidden], and its final states."""
        operands, reverse = self.operands, self.description.reverse[number]
        gates = len(self.description.gates)
        x = operands.x
        if self.description.directions > 1:
            x = self._slice(x, number * gates, gates)
        if reverse:
            x = self.emit(_OP.flip(x, 0))
        own = _Direction(
            number,
            self.emit(_OP.permute_dims(self._of(operands.weights, number))),
            self._of(operands.peepholes, number),
            self._of(operands.hidden_bias, number),
        )
        initial = [operands.initial_h, operands.initial_c][: 2 if self.description.cell == "lstm" else 1]
        starts = [
            self.emit(_OP.zeros(relax.ShapeExpr([self.batch, self.hidden]), self.dtype))
            if start is None
            else self._of(start, number)
            for start in initial
        ]
        trip = self._steps()
        step, *_ = self._fields(control_flow(LOOP_BEGIN, [trip, self._whole(1), *starts], [SCALAR]))
        states = [
            self.emit(control_flow(LOOP_STATE, [step, tvm.tirx.IntImm("int64", place)], [start.ty]))
            for place, start in enumerate(starts)
        ]
        row = self.emit(_OP.take(x, step, axis=0))
        nexts = {"rnn": self._rnn, "gru": self._gru, "lstm": self._lstm}[self.description.cell](own, row, states)
        output = nexts[0]
        if operands.lengths is not None:
            output, nexts = self._within(step, trip if reverse else None, states, nexts)
        room = relax.TensorType([self.steps, self.batch, self.hidden], self.dtype)
        end = control_flow(LOOP_END, [step, self._whole(1), *nexts, output], [SCALAR, room])
        count, sequence = self._fields(end)
        finals = [self.emit(control_flow(LOOP_RESULT, [count, state], [state.ty])) for state in states]
        sequence = self.emit(control_flow(LOOP_RESULT, [count, sequence], [room]))
        return self.emit(_OP.flip(sequence, 0)) if reverse else sequence, finals

    def _within(self, step: Any, trip: Any, states: Sequence[Any], nexts: Sequence[Any]) -> tuple[Any, list[Any]]:
        """Return the output and the states after a step: zeros, and the states before, for rows that are shorter."""
        if trip is not None:  # from the last step on
            last = self.emit(_OP.subtract(trip, self._whole(1)))
            step = self.emit(_OP.subtract(last, step))
        lengths = self.emit(_OP.astype(self.operands.lengths, "int64"))
        inside = self.emit(_OP.expand_dims(self.emit(_OP.greater(lengths, step)), 1))
        output = self.emit(_OP.where(inside, nexts[0], self._number(0.0)))
        return output, [self.emit(_OP.where(inside, new, old)) for new, old in zip(nexts, states, strict=True)]

    def _steps(self) -> Any:
        """Return the number of steps as a scalar."""
        if isinstance(self.steps, tvm.tirx.IntImm):
            return self._whole(int(self.steps))
        return self.emit(_OP.reshape(self.emit(_OP.arange(self.steps, self.steps + 1, 1, "int64")), []))

    def _fields(self, call: Any) -> list[Any]:
        result = self.emit(call)
        if not isinstance(result.ty, relax.TupleType):
            return [result]
        return [self.emit(relax.TupleGetItem(result, index)) for index in range(len(result.ty.fields))]

    def _of(self, data: Any, number: int) -> Any:
        """Return a direction's part of an operand, without the first axis."""
        if data is None:
            return None
        if self.description.directions > 1:
            data = self.emit(_OP.strided_slice(data, [0], [number], [number + 1]))
        return self.emit(_OP.squeeze(data, [0]))

    def _slice(self, data: Any, first: int, count: int = 1) -> Any:
        """Return ``count`` parts of ``hidden`` elements of the last axis."""
        axis, hidden = data.ty.ndim - 1, self.hidden
        return self.emit(_OP.strided_slice(data, [axis], [first * hidden], [(first + count) * hidden]))

    def _gate(self, data: Any, gate: str) -> Any:
        return self._slice(data, self.description.gates.index(gate))

    def _whole(self, value: int) -> Any:
        return relax.const(value, "int64")

    def _number(self, value: float) -> Any:
        return relax.const(value, self.dtype)

    def _add(self, *terms: Any) -> Any:
        """Return the sum of the terms that are not None."""
        first, *others = [term for term in terms if term is not None]
        for term in others:
            first = self.emit(_OP.add(first, term))
        return first

    def _times(self, a: Any, b: Any) -> Any:
        return self.emit(_OP.multiply(a, b))

    def _product(self, state: Any, weights: Any) -> Any:
        return self.emit(_OP.matmul(state, weights))

    def _apply(self, own: _Direction, index: int, value: Any, *, clipped: bool = True) -> Any:
        if clipped and self.description.clip is not None:
            value = self.emit(_OP.clip(value, -self.description.clip, self.description.clip))
        activation = self.description.activations[own.number][index]
        return self.emit(ACTIVATIONS[activation.name](value, activation, self._number))

    def _rnn(self, own: _Direction, x: Any, states: Sequence[Any]) -> list[Any]:
        return [self._apply(own, 0, self._add(x, self._product(states[0], own.weights)))]

    def _gru(self, own: _Direction, x: Any, states: Sequence[Any]) -> list[Any]:
        (h,) = states
        if self.description.reset_after:
            product = self._product(h, own.weights)
            z, r = (self._apply(own, 0, self._add(self._gate(x, g), self._gate(product, g))) for g in "zr")
            inner = self._times(r, self._add(self._gate(product, "h"), own.hidden_bias))
        else:
            parts = {g: self._product(h, self._gate(own.weights, g)) for g in "zr"}
            z, r = (self._apply(own, 0, self._add(self._gate(x, g), parts[g])) for g in "zr")
            inner = self._product(self._times(r, h), self._gate(own.weights, "h"))
        new = self._apply(own, 1, self._add(self._gate(x, "h"), inner))
        opened = self.emit(_OP.subtract(self._number(1.0), z))
        return [self._add(self._times(opened, new), self._times(z, h))]

    def _lstm(self, own: _Direction, x: Any, states: Sequence[Any]) -> list[Any]:
        h, c = states
        total = self._add(x, self._product(h, own.weights))
        i, o, f, g = (self._gate(total, gate) for gate in "iofc")
        if own.peepholes is not None:
            i = self._add(i, self._times(self._slice(own.peepholes, 0), c))
            f = self._add(f, self._times(self._slice(own.peepholes, 2), c))
        i = self._apply(own, 0, i)
        f = self.emit(_OP.subtract(self._number(1.0), i)) if self.description.coupled else self._apply(own, 0, f)
        new = self._add(self._times(f, c), self._times(i, self._apply(own, 1, g)))
        if own.peepholes is not None:
            o = self._add(o, self._times(self._slice(own.peepholes, 1), new))
        # The state is not clipped, as in onnxruntime.
        return [self._times(self._apply(own, 0, o), self._apply(own, 2, new, clipped=False)), new]


_Emit = Callable[[Any, Activation, Callable[[float], Any]], Any]


def _elu(x: Any, a: Activation, number: Callable[[float], Any]) -> Any:
    below = _OP.subtract(_OP.exp(_OP.minimum(x, number(0.0))), number(1.0))
    return _OP.add(_OP.multiply(below, number(a.alpha)), _OP.maximum(x, number(0.0)))


def _softplus(x: Any, _a: Activation, number: Callable[[float], Any]) -> Any:
    """log(1 + exp(-|x|)) + max(x, 0): nothing overflows."""
    low = _OP.log(_OP.add(_OP.exp(_OP.negative(_OP.abs(x))), number(1.0)))
    return _OP.add(low, _OP.maximum(x, number(0.0)))


ACTIVATIONS: dict[str, _Emit] = {
    "Sigmoid": lambda x, _a, _n: _OP.sigmoid(x),
    "Tanh": lambda x, _a, _n: _OP.tanh(x),
    "Relu": lambda x, _a, _n: _OP.nn.relu(x),
    "Affine": lambda x, a, n: _OP.add(_OP.multiply(x, n(a.alpha)), n(a.beta)),
    "LeakyRelu": lambda x, a, n: _OP.where(_OP.less(x, n(0.0)), _OP.multiply(x, n(a.alpha)), x),
    "ThresholdedRelu": lambda x, a, n: _OP.where(_OP.greater(x, n(a.alpha)), x, n(0.0)),
    "ScaledTanh": lambda x, a, n: _OP.multiply(_OP.tanh(_OP.multiply(x, n(a.beta))), n(a.alpha)),
    "HardSigmoid": lambda x, a, n: _OP.clip(_OP.add(_OP.multiply(x, n(a.alpha)), n(a.beta)), 0.0, 1.0),
    "Elu": _elu,
    "Softsign": lambda x, _a, n: _OP.divide(x, _OP.add(_OP.abs(x), n(1.0))),
    "Softplus": _softplus,
}
