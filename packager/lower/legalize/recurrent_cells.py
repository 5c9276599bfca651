"""The equations of recurrent cells, of one direction or of two, as Relax expressions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, te

from packager.graph.recurrences.recurrent import Recurrent
from packager.lower.legalize.activations import ACTIVATIONS

_OP = relax.op


@dataclass(frozen=True)
class Directions:
    """The directions of one loop, and the constants of its steps; others than ``weights`` may be None.

    ``weights`` is [gates * hidden, hidden]. Two directions have an axis of their own before these.
    """

    numbers: tuple[int, ...]
    weights: Any
    peepholes: Any
    hidden_bias: Any


class Cells:
    """Emits a step of a layer. ``skinny``: so small a batch that the recurrent product has a schedule of its own."""

    def __init__(self, builder: Any, description: Recurrent, hidden: Any, dtype: str, skinny: bool) -> None:
        self.builder, self.description, self.hidden, self.dtype = builder, description, hidden, dtype
        self.skinny = skinny

    def step(self, own: Directions, x: Any, states: Sequence[Any]) -> list[Any]:
        """Return the next states, h first; ``x`` is the product of a step's input, with the biases."""
        return {"rnn": self._rnn, "gru": self._gru, "lstm": self._lstm}[self.description.cell](own, x, states)

    def emit(self, expr: Any) -> Any:
        """Bind an expression."""
        return self.builder.emit(expr)

    def _joined(self, parts: Sequence[Any], axis: int = -1) -> Any:
        return parts[0] if len(parts) == 1 else self.emit(_OP.concat(list(parts), axis=axis))

    def _at(self, data: Any, axis: int, index: int) -> Any:
        """Return the part with an index of an axis."""
        part = self.emit(_OP.strided_slice(data, [axis], [index], [index + 1]))
        return self.emit(_OP.squeeze(part, [axis]))

    def _slice(self, data: Any, first: int, count: int = 1) -> Any:
        """Return ``count`` parts of ``hidden`` elements of the last axis."""
        axis, hidden = data.ty.ndim - 1, self.hidden
        return self.emit(_OP.strided_slice(data, [axis], [first * hidden], [(first + count) * hidden]))

    def _gate(self, data: Any, gate: str) -> Any:
        return self._slice(data, self.description.gates.index(gate))

    def _rows_of(self, weights: Any, gate: str) -> Any:
        """Return the weights of a gate."""
        axis, first = weights.ty.ndim - 2, self.description.gates.index(gate) * self.hidden
        return self.emit(_OP.strided_slice(weights, [axis], [first], [first + self.hidden]))

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
        """Return the product of a state, [directions, batch, hidden], and weights, [directions, gates, hidden]."""
        if not self.skinny:
            order = [0, 2, 1] if state.ty.ndim > 2 else [1, 0]
            return self.emit(_OP.matmul(state, self.emit(_OP.permute_dims(weights, order))))

        def compute(h: te.Tensor, w: te.Tensor) -> te.Tensor:
            k = te.reduce_axis((0, h.shape[-1]), "k")
            shape = [*h.shape[:-1], w.shape[-2]]
            return te.compute(
                shape, lambda *i: te.sum(h[*i[:-1], k] * w[*i[:-2], i[-1], k], axis=k), name="recurrent_product"
            )

        return self.emit(self.builder.call_te(compute, state, weights, primfunc_name_hint="recurrent_product"))

    def _apply(self, own: Directions, index: int, value: Any, *, clipped: bool = True) -> Any:
        if clipped and self.description.clip is not None:
            value = self.emit(_OP.clip(value, -self.description.clip, self.description.clip))
        activation = self.description.activations[own.numbers[0]][index]
        return self.emit(ACTIVATIONS[activation.name](value, activation, self._number))

    def _rnn(self, own: Directions, x: Any, states: Sequence[Any]) -> list[Any]:
        return [self._apply(own, 0, self._add(x, self._product(states[0], own.weights)))]

    def _gru(self, own: Directions, x: Any, states: Sequence[Any]) -> list[Any]:
        (h,) = states
        if self.description.reset_after:
            product = self._product(h, own.weights)
            z, r = (self._apply(own, 0, self._add(self._gate(x, g), self._gate(product, g))) for g in "zr")
            inner = self._times(r, self._add(self._gate(product, "h"), own.hidden_bias))
        else:
            product = self._product(h, self._joined([self._rows_of(own.weights, g) for g in "zr"], axis=-2))
            parts = {g: self._slice(product, place) for place, g in enumerate("zr")}
            z, r = (self._apply(own, 0, self._add(self._gate(x, g), parts[g])) for g in "zr")
            inner = self._product(self._times(r, h), self._rows_of(own.weights, "h"))
        new = self._apply(own, 1, self._add(self._gate(x, "h"), inner))
        opened = self.emit(_OP.subtract(self._number(1.0), z))
        return [self._add(self._times(opened, new), self._times(z, h))]

    def _lstm(self, own: Directions, x: Any, states: Sequence[Any]) -> list[Any]:
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
