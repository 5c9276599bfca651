"""Pooling of windows of known extents: maxima with their indices, and means, of windows that may exceed the data."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tvm import relax, te, tirx


@dataclass(frozen=True)
class Window:
    """The windows along one spatial axis; ``after`` is the model's end padding, ``size`` the number of windows."""

    extent: int
    kernel: int
    stride: int
    dilation: int
    before: int
    after: int
    size: int

    @property
    def reach(self) -> int:
        """The dilated kernel size."""
        return (self.kernel - 1) * self.dilation + 1

    @property
    def end(self) -> int:
        """The end padding that all windows fit in."""
        return max(0, (self.size - 1) * self.stride + self.reach - self.before - self.extent)

    def at(self, output: Any, element: Any) -> Any:
        """Return where an element of a window is."""
        return output * self.stride + element * self.dilation - self.before

    def inside(self, _output: Any, at: Any) -> list[Any]:
        """Return the conditions for an element to be in the data; none if all are."""
        return [at >= 0, at < self.extent] if self.before or self.end else []

    def counts(self, *, padding: bool) -> Any:
        """Return the number of elements of each window."""
        positions = np.arange(self.size)[:, None] * self.stride - self.before + np.arange(self.kernel) * self.dilation
        low, high = (-self.before, self.extent + self.after) if padding else (0, self.extent)
        return np.maximum(((positions >= low) & (positions < high)).sum(axis=1), 1)


@dataclass(frozen=True)
class AdaptiveWindow:
    """The windows along one spatial axis that share it among ``size`` outputs; they overlap if they cannot equally."""

    extent: int
    size: int

    @property
    def kernel(self) -> int:
        """The elements of the largest window."""
        return int(self.counts(padding=False).max())

    def at(self, output: Any, element: Any) -> Any:
        """Return where an element of a window is."""
        return output * self.extent // self.size + element

    def inside(self, output: Any, at: Any) -> list[Any]:
        """Return the conditions for an element to be in its window; none if all are."""
        if self.extent % self.size == 0:
            return []
        return [at < ((output + 1) * self.extent + self.size - 1) // self.size]

    def counts(self, *, padding: bool) -> Any:  # noqa: ARG002  (there is none)
        """Return the number of elements of each window."""
        places = np.arange(self.size + 1) * self.extent
        return -(-places[1:] // self.size) - places[:-1] // self.size


Windows = Sequence[Window | AdaptiveWindow]


def reduce_windows(x: Any, windows: Windows, combine: Any, outside: Any, name: str) -> Any:
    """Return a reduction of each window; elements that it does not have are ``outside``."""
    axes = [te.reduce_axis((0, window.kernel), name=f"k{i}") for i, window in enumerate(windows)]

    def element(n: Any, c: Any, *output: Any) -> Any:
        at = [w.at(p, k) for p, k, w in zip(output, axes, windows, strict=True)]
        inside = [each for p, a, w in zip(output, at, windows, strict=True) for each in w.inside(p, a)]
        value = x(n, c, *at)
        return combine(tirx.if_then_else(tirx.all(*inside), value, outside) if inside else value, axis=axes)

    return te.compute((x.shape[0], x.shape[1], *(window.size for window in windows)), element, name=name)


def max_and_indices(
    builder: Any, data: Any, windows: Windows, *, column_major: bool = False, in_plane: bool = False
) -> Any:
    """Return maxima and their indices in the whole input, or in their plane; ties select the first."""
    dtype = str(data.ty.dtype)
    spatial = [window.extent for window in windows]

    last = tirx.const(np.iinfo(np.int64).max, "int64")
    plane = math.prod(spatial)

    def compute(x: Any) -> Any:
        value = reduce_windows(x, windows, te.max, tirx.min_value(dtype), "max_pool")
        axes = [te.reduce_axis((0, window.kernel), name=f"p{i}") for i, window in enumerate(windows)]

        def first(n: Any, c: Any, *output: Any) -> Any:
            """Return the lowest row-major index of a window element that equals the maximum."""
            at = [w.at(p, k).astype("int64") for p, k, w in zip(output, axes, windows, strict=True)]
            inside = [each for p, a, w in zip(output, at, windows, strict=True) for each in w.inside(p, a)]
            index = tirx.const(0, "int64")
            for a, extent in zip(at, spatial, strict=True):
                index = index * extent + a
            found = x(n, c, *at) == value(n, c, *output)
            found = tirx.if_then_else(tirx.all(*inside), found, tirx.const(0, "bool")) if inside else found
            return te.min(tirx.Select(found, index, last), axis=axes)

        index = te.compute(value.shape, first, name="first_of_equals")

        def index_in_plane(n: Any, c: Any, *output: Any) -> Any:
            row_major = tirx.min(index(n, c, *output), tirx.const(plane - 1, "int64"))  # a window of NaNs equals none
            base = tirx.const(0, "int64") if in_plane else (n * x.shape[1] + c).astype("int64") * plane
            if not column_major:
                return base + row_major
            rest, result, stride = row_major, tirx.const(0, "int64"), plane
            for extent in reversed(spatial):
                stride //= extent
                result, rest = result + tirx.truncmod(rest, extent) * stride, tirx.truncdiv(rest, extent)
            return base + result

        return [value, te.compute(value.shape, index_in_plane, name="indices")]

    return builder.call_te(compute, data, primfunc_name_hint="max_pool_indices")


def windowed_mean(builder: Any, data: Any, windows: Windows, *, padding: bool, divisor: int | None = None) -> Any:
    """Return the sum of each window by its elements, with or without the padding, or by ``divisor``."""
    dtype = str(data.ty.dtype)
    work = "float64" if dtype == "float64" else "float32"
    counts = [window.counts(padding=padding) for window in windows]
    if divisor is not None:
        counts = [np.full(window.size, divisor if axis == 0 else 1) for axis, window in enumerate(windows)]
    tables = [relax.const(count.astype(work), work) for count in counts]

    def compute(x: Any, *counts: Any) -> Any:
        wide = x if dtype == work else te.compute(x.shape, lambda *i: x(*i).astype(work), name="wide")
        total = reduce_windows(wide, windows, te.sum, tirx.const(0.0, work), "window_sum")

        def element(n: Any, c: Any, *output: Any) -> Any:
            size = math.prod((count[p] for count, p in zip(counts, output, strict=True)), start=tirx.const(1.0, work))
            return (total(n, c, *output) / size).astype(dtype)

        return te.compute(total.shape, element, name="average_pool")

    return builder.call_te(compute, data, *tables, primfunc_name_hint="average_pool")
