"""Fourier transforms as matmuls with the DFT matrix, or in two steps with two smaller ones.

ONNX operators DFT (versions 17 and 20) and STFT (17). The matrix has length^2 elements, and is the faster way below a
length of a thousand; for a symbolic length of DFT each run computes it. Above that, a length of two factors is
transformed in two steps (Cooley and Tukey, "An algorithm for the machine calculation of complex Fourier series", 1965).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx

from packager.bundle.arrays import Array
from packager.frontends.onnx.ops.operands import (
    Convert,
    Converter,
    constant,
    dtype_of,
    extents,
    known,
    opset,
    optional,
    tensor_constant,
)
from packager.frontends.onnx.ops.shapes.arithmetic import known_integers

# The greatest length of one matrix, and of two steps.
MAX_LENGTH = 4096
MAX_SPLIT = 16384
# From this length on two steps are faster, if neither factor is small.
SPLIT_FROM = 1024
LEAST_FACTOR = 8


@dataclass(frozen=True)
class _Split:
    """A transform of length ``first * second`` in two steps: input second * a + b, output k + first * l.

    For each b, the sums over a are transforms of length ``first``; for each k the sums over b, with the twiddle factors
    in the matrix, give all l below ``rows``.
    """

    first: int
    second: int
    outputs: int
    inverse: bool

    @property
    def rows(self) -> int:
        """The number of l that are needed for the first ``outputs``."""
        return -(-self.outputs // self.first)

    def matrices(self, parts: int) -> tuple[Array, Array]:
        """Return the matrices [first * parts, first * 2] and, for each k, [second * 2, rows * 2]."""
        length = self.first * self.second
        a, b, k = np.arange(self.first), np.arange(self.second), np.arange(self.first)
        frequency = k[:, None] + self.first * np.arange(self.rows)
        sums = self._complex(np.outer(a, k) * self.second)[:, :parts]
        twiddled = self._complex(b[None, :, None] * frequency[:, None, :]) / (length if self.inverse else 1)
        return sums.reshape(self.first * parts, -1), twiddled.reshape(self.first, self.second * 2, -1)

    def _complex(self, turns: Array) -> Array:
        """Return powers of the root of unity as matrices of complex products: [..., in, parts, out, parts]."""
        length = self.first * self.second
        angle = 2 * np.pi / length * (turns % length) * (1 if self.inverse else -1)
        real, imaginary = np.cos(angle), np.sin(angle)
        table = np.stack([np.stack([real, imaginary], -1), np.stack([-imaginary, real], -1)], -3)
        return np.asarray(table)

    def transform(self, builder: Any, data: Any) -> Any:
        """Transform [..., second, first, parts] to [..., outputs, 2]."""
        emit, op = builder.emit, relax.op
        *outer, _, _, parts = extents(data)
        count, dtype = math.prod(outer), dtype_of(data)
        sums, twiddled = (tensor_constant(matrix.astype(dtype)) for matrix in self.matrices(parts))
        rows = emit(op.reshape(data, [count, self.second, self.first * parts]))
        summed = emit(op.reshape(emit(op.matmul(rows, sums)), [count, self.second, self.first, 2]))
        moved = emit(op.reshape(emit(op.permute_dims(summed, [2, 0, 1, 3])), [self.first, count, self.second * 2]))
        product = emit(op.reshape(emit(op.matmul(moved, twiddled)), [self.first, count, self.rows, 2]))
        ordered = emit(op.permute_dims(product, [1, 2, 0, 3]))
        whole = emit(op.reshape(ordered, [*outer, self.rows * self.first, 2]))
        if self.rows * self.first == self.outputs:
            return whole
        return emit(op.strided_slice(whole, [len(outer)], [0], [self.outputs], assume_inbound=True))


def _split(given: int, length: int, outputs: int, *, inverse: bool) -> _Split | None:
    """Return how to transform in two steps, None if one is faster. Raises ValueError for lengths that are too great."""
    factors = (f for f in range(math.isqrt(length), LEAST_FACTOR - 1, -1) if length % f == 0)
    first = next(factors, 0) if given == length >= SPLIT_FROM else 0
    most = MAX_SPLIT if first else MAX_LENGTH
    if max(given, length) > most:
        raise ValueError(f"a Fourier transform of length {length} exceeds {most}")
    return _Split(first, length // first, outputs, inverse) if first else None


def _matrix(given: int, parts: int, length: int, *, inverse: bool, onesided: bool) -> Array:
    """Return the DFT matrix for ``given`` inputs of ``parts`` parts (real, imaginary): [given * parts, outputs * 2]."""
    half = inverse and onesided
    used = min(given, length // 2 + 1 if half else length)
    outputs = length // 2 + 1 if onesided and not inverse else length
    turns = np.outer(np.arange(used), np.arange(outputs)) % length
    angle = 2 * np.pi / length * turns * (1 if inverse else -1)
    real, imaginary = np.cos(angle), np.sin(angle)
    if inverse:
        weights = np.full((used, 1), 1.0 / length)
        if half:  # the other half of the spectrum is the conjugate of this one
            doubled = np.ones(used)
            doubled[1 : (length + 1) // 2] = 2.0
            weights = weights * doubled[:, None]
        real, imaginary = real * weights, imaginary * weights
    # (a + ib)(cos + i sin): rows are a and b, columns the real and imaginary parts.
    table = np.zeros((given, parts, outputs, 1 if half else 2))
    table[:used, 0, :, 0] = real
    if not half:
        table[:used, 0, :, 1] = imaginary
    if parts == 2:
        table[:used, 1, :, 0] = -imaginary
        if not half:
            table[:used, 1, :, 1] = real
    return table.reshape(given * parts, -1)


def _check_length(analyzer: Any, given: Any, length: Any) -> None:
    """Raise ValueError for a length of less than 1, or whose matrix would exceed ``MAX_LENGTH``, at some size."""
    for extent in (given, length):
        bounds = analyzer.const_int_bound(extent) if not isinstance(extent, int) else None
        least, most = (extent, extent) if bounds is None else (bounds.min_value, bounds.max_value)
        if least < 1 or most > MAX_LENGTH:
            raise ValueError(f"a Fourier transform of length {extent} may not be in 1 to {MAX_LENGTH}: narrow the dim")


def _symbolic_matrix(given: Any, length: Any, parts: int, inverse: bool, onesided: bool) -> Any:
    """Return ``_matrix`` for lengths that a run knows, in float64: each angle is one of the roots of unity."""
    half = inverse and onesided
    outputs = length // 2 + 1 if onesided and not inverse else length
    used = tirx.min(given, length // 2 + 1 if half else length)
    scale = tirx.Cast("float64", length) if inverse else tirx.const(1.0, "float64")
    sign = 1.0 if inverse else -1.0

    def root(turn: Any, part: Any) -> Any:
        angle = tirx.Cast("float64", turn) * (2 * math.pi) / tirx.Cast("float64", length)
        return tirx.Select(part == 0, tirx.cos(angle), sign * tirx.sin(angle)) / scale

    roots = te.compute((length, 2), root, name="roots")

    def element(row: Any, column: Any) -> Any:
        """(a + ib)(cos + i sin): the part of the input that a row is of, and of the result that a column is of."""
        place, part = row // parts, row % parts
        frequency, kind = (column, tirx.const(0, "int64")) if half else (column // 2, column % 2)
        value = roots(place * frequency % length, (part + kind) % 2)
        value = tirx.Select(tirx.all(part == 1, kind == 0), 0.0 - value, value)
        if half:  # the other half of the spectrum is the conjugate of this one
            value = tirx.Select(tirx.all(place > 0, place < (length + 1) // 2), 2.0 * value, value)
        return tirx.if_then_else(place < used, value, tirx.const(0.0, "float64"))

    return te.compute((given * parts, outputs if half else outputs * 2), element, name="matrix")


def _transform(builder: Any, data: Any, matrix: Any, parts: int) -> Any:
    """Transform [..., n, parts] along its second-to-last axis."""
    emit, op = builder.emit, relax.op
    *outer, given, inner = extents(data)
    rows = emit(op.reshape(data, [*outer, given * inner]))
    product = emit(op.matmul(rows, matrix))
    return emit(op.reshape(product, [*outer, extents(matrix)[1] // parts, parts]))


def _dft(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    data, rank = inputs[0], inputs[0].ty.ndim
    inverse, onesided = bool(attributes.get("inverse", 0)), bool(attributes.get("onesided", 0))
    axis = attributes.get("axis", 1) if opset(attributes) < 20 else -2
    if optional(inputs, 2) is not None:
        axis = int(known(inputs[2], attributes, "the axis of DFT").item())
    axis %= rank
    shape = extents(data)
    given, parts = shape[axis], shape[-1]
    if parts not in (1, 2):
        raise ValueError("a signal has one part, or two: real and imaginary")
    half = inverse and onesided
    length = 2 * (given - 1) if half else given
    if optional(inputs, 1) is not None:
        length = known_integers(inputs[1], attributes, "the length of DFT").item()
    order = [*(i for i in range(rank - 1) if i != axis), axis, rank - 1]
    moved = builder.emit(relax.op.permute_dims(data, order))
    if not isinstance(given, int) or not isinstance(length, int):
        _check_length(attributes["tvm_custom"]["analyzer"], given, length)
        kind = (parts, inverse, onesided)
        table = builder.emit_te(_symbolic_matrix, given, length, *kind, primfunc_name_hint="dft_matrix")
        result = _transform(builder, moved, builder.emit(relax.op.astype(table, dtype_of(data))), 1 if half else 2)
        return relax.op.permute_dims(result, [order.index(i) for i in range(rank)])
    split = _split(given, length, length // 2 + 1 if onesided else length, inverse=inverse) if not half else None
    if split is None:
        if max(given, length) > MAX_LENGTH:
            raise ValueError(f"a Fourier transform of length {length} exceeds {MAX_LENGTH}")
        matrix = tensor_constant(
            _matrix(given, parts, length, inverse=inverse, onesided=onesided).astype(dtype_of(data))
        )
        result = _transform(builder, moved, matrix, 1 if half else 2)
    else:
        outer = extents(moved)[:-2]
        pieces = builder.emit(relax.op.reshape(moved, [*outer, split.first, split.second, parts]))
        last = len(outer)
        axes = [*range(last), last + 1, last, last + 2]
        result = split.transform(builder, builder.emit(relax.op.permute_dims(pieces, axes)))
    return relax.op.permute_dims(result, [order.index(i) for i in range(rank)])


def _stft(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    signal, window = inputs[0], optional(inputs, 2)
    emit, op = builder.emit, relax.op
    step = int(known(inputs[1], attributes, "the step of STFT").item())
    if signal.ty.ndim == 2:
        signal = emit(op.expand_dims(signal, -1))
    _, samples, parts = extents(signal)
    if parts not in (1, 2):
        raise ValueError("a signal has one part, or two: real and imaginary")
    length = samples if window is None else extents(window)[0]
    if optional(inputs, 3) is not None:
        length = int(known(inputs[3], attributes, "the frame length of STFT").item())
    least = samples
    if not isinstance(samples, int):
        least = int(attributes["tvm_custom"]["analyzer"].const_int_bound(samples).min_value)
    if not isinstance(length, int) or length < 1 or step < 1 or least < length:
        raise ValueError(f"STFT of {samples} samples, of at least {least}, in frames of {length} every {step}")

    onesided = bool(attributes.get("onesided", 1))
    split = _split(length, length, length // 2 + 1 if onesided else length, inverse=False)
    if split is not None:
        framed = builder.emit_te(_frames, signal, step, split.second, split.first, primfunc_name_hint="frames")
        if window is not None:
            pieces = emit(op.reshape(window, [1, 1, split.first, split.second, 1]))
            framed = emit(op.multiply(framed, emit(op.permute_dims(pieces, [0, 1, 3, 2, 4]))))
        return split.transform(builder, framed)
    framed = builder.emit_te(_frames, signal, step, 1, length, primfunc_name_hint="frames")
    framed = emit(op.reshape(framed, [*extents(framed)[:2], length, parts]))
    matrix = tensor_constant(_matrix(length, parts, length, inverse=False, onesided=onesided).astype(dtype_of(signal)))
    if window is not None and constant(window, attributes) is not None:  # scaled once, at build time
        column = emit(op.broadcast_to(emit(op.reshape(window, [length, 1])), [length, parts]))
        matrix = emit(op.multiply(matrix, emit(op.reshape(column, [length * parts, 1]))))
    elif window is not None:
        framed = emit(op.multiply(framed, emit(op.reshape(window, [1, 1, length, 1]))))
    return _transform(builder, framed, matrix, 2)


def _frames(signal: Any, step: int, inner: int, outer: int) -> Any:
    """Return the frames of a signal [N, samples, parts] as [N, frames, inner, outer, parts]: sample inner * o + i."""
    count = (signal.shape[1] - inner * outer) // step + 1
    return te.compute(
        (signal.shape[0], count, inner, outer, signal.shape[2]),
        lambda n, f, i, o, p: signal(n, f * step + o * inner + i, p),
        name="frames",
    )


CONVERTERS: Mapping[str, Converter] = {"DFT": _dft, "STFT": _stft}
