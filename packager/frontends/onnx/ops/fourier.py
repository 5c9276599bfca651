"""Fourier transforms as matmuls with the DFT matrix.

ONNX operators DFT (versions 17 and 20) and STFT (17). The length must be static. The matrix has length^2 elements:
faster than an FFT below a length of a thousand, refused above ``MAX_LENGTH``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, te

from packager.bundle.arrays import Array
from packager.frontends.onnx.ops.operands import (
    Convert,
    Converter,
    dtype_of,
    extents,
    known,
    opset,
    optional,
    tensor_constant,
)

MAX_LENGTH = 4096


def _matrix(given: int, parts: int, length: int, *, inverse: bool, onesided: bool) -> Array:
    """Return the DFT matrix for ``given`` inputs of ``parts`` parts (real, imaginary): [given * parts, outputs * 2]."""
    if max(given, length) > MAX_LENGTH:
        raise ValueError(f"a Fourier transform of length {length} exceeds {MAX_LENGTH}")
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


def _transform(builder: Any, data: Any, matrix: Array, parts: int) -> Any:
    """Transform [..., n, parts] along its second-to-last axis."""
    emit, op = builder.emit, relax.op
    *outer, given, inner = extents(data)
    rows = emit(op.reshape(data, [*outer, given * inner]))
    product = emit(op.matmul(rows, tensor_constant(matrix.astype(dtype_of(data)))))
    return emit(op.reshape(product, [*outer, matrix.shape[1] // parts, parts]))


def _dft(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    data, rank = inputs[0], inputs[0].ty.ndim
    inverse, onesided = bool(attributes.get("inverse", 0)), bool(attributes.get("onesided", 0))
    axis = attributes.get("axis", 1) if opset(attributes) < 20 else -2
    if optional(inputs, 2) is not None:
        axis = int(known(inputs[2], attributes, "the axis of DFT").item())
    axis %= rank
    shape = extents(data)
    given, parts = shape[axis], shape[-1]
    if not isinstance(given, int) or parts not in (1, 2):
        raise ValueError("DFT along an axis of symbolic extent: fix it with --dim")
    length = 2 * (given - 1) if inverse and onesided else given
    if optional(inputs, 1) is not None:
        length = int(known(inputs[1], attributes, "the length of DFT").item())
    order = [*(i for i in range(rank - 1) if i != axis), axis, rank - 1]
    moved = builder.emit(relax.op.permute_dims(data, order))
    matrix = _matrix(given, parts, length, inverse=inverse, onesided=onesided)
    result = _transform(builder, moved, matrix, 1 if inverse and onesided else 2)
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

    def frame(x: Any) -> Any:
        count = (x.shape[1] - length) // step + 1
        return te.compute((x.shape[0], count, length, parts), lambda n, f, i, p: x(n, f * step + i, p), name="frames")

    framed = builder.emit_te(frame, signal, primfunc_name_hint="frames")
    if window is not None:
        framed = emit(op.multiply(framed, emit(op.reshape(window, [1, 1, length, 1]))))
    matrix = _matrix(length, parts, length, inverse=False, onesided=bool(attributes.get("onesided", 1)))
    return _transform(builder, framed, matrix, 2)


CONVERTERS: Mapping[str, Converter] = {"DFT": _dft, "STFT": _stft}
