"""Fourier transforms: ONNX operators DFT (versions 17 and 20) and STFT (17).

For a symbolic length of DFT each run computes the matrix.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax, te, tirx

from packager.frontends.fourier import MAX_LENGTH, dft_matrix, fourier, split_length, transform
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


def _check_length(analyzer: Any, given: Any, length: Any) -> None:
    """Raise ValueError for a length of less than 1, or whose matrix would exceed ``MAX_LENGTH``, at some size."""
    for extent in (given, length):
        bounds = analyzer.const_int_bound(extent) if not isinstance(extent, int) else None
        least, most = (extent, extent) if bounds is None else (bounds.min_value, bounds.max_value)
        if least < 1 or most > MAX_LENGTH:
            raise ValueError(f"a Fourier transform of length {extent} may not be in 1 to {MAX_LENGTH}: narrow the dim")


def _symbolic_matrix(given: Any, length: Any, parts: int, inverse: bool, onesided: bool) -> Any:
    """Return ``dft_matrix`` for lengths that a run knows, in float64: each angle is one of the roots of unity."""
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
    if isinstance(given, int) and isinstance(length, int):
        return fourier(builder, data, axis, length, inverse=inverse, onesided=onesided)
    order = [*(i for i in range(rank - 1) if i != axis), axis, rank - 1]
    moved = builder.emit(relax.op.permute_dims(data, order))
    _check_length(attributes["tvm_custom"]["analyzer"], given, length)
    kind = (parts, inverse, onesided)
    table = builder.emit_te(_symbolic_matrix, given, length, *kind, primfunc_name_hint="dft_matrix")
    result = transform(builder, moved, builder.emit(relax.op.astype(table, dtype_of(data))), 1 if half else 2)
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
    split = split_length(length, length, length // 2 + 1 if onesided else length, inverse=False)
    if split is not None:
        framed = builder.emit_te(_frames, signal, step, split.second, split.first, primfunc_name_hint="frames")
        if window is not None:
            pieces = emit(op.reshape(window, [1, 1, split.first, split.second, 1]))
            framed = emit(op.multiply(framed, emit(op.permute_dims(pieces, [0, 1, 3, 2, 4]))))
        return split.transform(builder, framed)
    framed = builder.emit_te(_frames, signal, step, 1, length, primfunc_name_hint="frames")
    framed = emit(op.reshape(framed, [*extents(framed)[:2], length, parts]))
    matrix = tensor_constant(
        dft_matrix(length, parts, length, inverse=False, onesided=onesided).astype(dtype_of(signal))
    )
    if window is not None and constant(window, attributes) is not None:  # scaled once, at build time
        column = emit(op.broadcast_to(emit(op.reshape(window, [length, 1])), [length, parts]))
        matrix = emit(op.multiply(matrix, emit(op.reshape(column, [length * parts, 1]))))
    elif window is not None:
        framed = emit(op.multiply(framed, emit(op.reshape(window, [1, 1, length, 1]))))
    return transform(builder, framed, matrix, 2)


def _frames(signal: Any, step: int, inner: int, outer: int) -> Any:
    """Return the frames of a signal [N, samples, parts] as [N, frames, inner, outer, parts]: sample inner * o + i."""
    count = (signal.shape[1] - inner * outer) // step + 1
    return te.compute(
        (signal.shape[0], count, inner, outer, signal.shape[2]),
        lambda n, f, i, o, p: signal(n, f * step + o * inner + i, p),
        name="frames",
    )


CONVERTERS: Mapping[str, Converter] = {"DFT": _dft, "STFT": _stft}
