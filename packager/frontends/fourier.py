"""Fourier transforms as matmuls with the DFT matrix, or in two steps with two smaller ones.

The matrix has length^2 elements, and is the faster way below a length of a thousand. Above that, a length of two
factors is transformed in two steps (Cooley and Tukey, "An algorithm for the machine calculation of complex Fourier
series", 1965).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax

from packager.bundle.arrays import Array
from packager.graph.dataflow import shape_of

# The greatest length of one matrix, and of two steps.
MAX_LENGTH = 4096
MAX_SPLIT = 16384
# From this length on two steps are faster, if neither factor is small.
SPLIT_FROM = 1024
LEAST_FACTOR = 8


@dataclass(frozen=True)
class Split:
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
        *outer, _, _, parts = shape_of(data) or ()
        count, dtype = math.prod(outer), str(data.ty.dtype)
        sums, twiddled = (relax.const(matrix.astype(dtype), dtype) for matrix in self.matrices(parts))
        rows = emit(op.reshape(data, [count, self.second, self.first * parts]))
        summed = emit(op.reshape(emit(op.matmul(rows, sums)), [count, self.second, self.first, 2]))
        moved = emit(op.reshape(emit(op.permute_dims(summed, [2, 0, 1, 3])), [self.first, count, self.second * 2]))
        product = emit(op.reshape(emit(op.matmul(moved, twiddled)), [self.first, count, self.rows, 2]))
        ordered = emit(op.permute_dims(product, [1, 2, 0, 3]))
        whole = emit(op.reshape(ordered, [*outer, self.rows * self.first, 2]))
        if self.rows * self.first == self.outputs:
            return whole
        return emit(op.strided_slice(whole, [len(outer)], [0], [self.outputs], assume_inbound=True))


def split_length(given: int, length: int, outputs: int, *, inverse: bool) -> Split | None:
    """Return how to transform in two steps, None if one is faster. Raises ValueError for lengths that are too great."""
    factors = (f for f in range(math.isqrt(length), LEAST_FACTOR - 1, -1) if length % f == 0)
    first = next(factors, 0) if given == length >= SPLIT_FROM else 0
    most = MAX_SPLIT if first else MAX_LENGTH
    if max(given, length) > most:
        raise ValueError(f"a Fourier transform of length {length} exceeds {most}")
    return Split(first, length // first, outputs, inverse) if first else None


def dft_matrix(given: int, parts: int, length: int, *, inverse: bool, onesided: bool) -> Array:
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


def fourier(builder: Any, data: Any, axis: int, length: int, *, inverse: bool, onesided: bool) -> Any:
    """Transform one axis of data whose last axis has one part, or two: real and imaginary; of known extents.

    Inverse transforms are divided by ``length``. One that is ``onesided`` takes the first half of the spectrum, and
    returns one part.
    """
    shape, half = shape_of(data) or (), inverse and onesided
    given, parts, rank = shape[axis], shape[-1], len(shape)
    order = [*(i for i in range(rank - 1) if i != axis), axis, rank - 1]
    moved = builder.emit(relax.op.permute_dims(data, order))
    outputs = length // 2 + 1 if onesided else length
    split = split_length(given, length, outputs, inverse=inverse) if not half else None
    if split is None:
        if max(given, length) > MAX_LENGTH:
            raise ValueError(f"a Fourier transform of length {length} exceeds {MAX_LENGTH}")
        matrix = dft_matrix(given, parts, length, inverse=inverse, onesided=onesided).astype(str(data.ty.dtype))
        result = transform(builder, moved, relax.const(matrix, str(matrix.dtype)), 1 if half else 2)
    else:
        outer = (shape_of(moved) or ())[:-2]
        pieces = builder.emit(relax.op.reshape(moved, [*outer, split.first, split.second, parts]))
        last = len(outer)
        axes = [*range(last), last + 1, last, last + 2]
        result = split.transform(builder, builder.emit(relax.op.permute_dims(pieces, axes)))
    return relax.op.permute_dims(result, [order.index(i) for i in range(rank)])


def transform(builder: Any, data: Any, matrix: Any, parts: int) -> Any:
    """Transform [..., n, parts] along its second-to-last axis."""
    emit, op = builder.emit, relax.op
    *outer, given, inner = shape_of(data) or ()
    rows = emit(op.reshape(data, [*outer, given * inner]))
    product = emit(op.matmul(rows, matrix))
    return emit(op.reshape(product, [*outer, (shape_of(matrix) or ())[1] // parts, parts]))
