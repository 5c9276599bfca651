"""Lower sampling of images and volumes by a grid, for CPUs: tables of elements and weights, then sums by them.

Each output position has taps along each axis: two of linear interpolation, four of cubic, one nearest. The tables are
computed once for all channels. Sources: ONNX operator GridSample (version 22), ``torch.nn.functional.grid_sample``.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvm import relax, tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.lower.tir_loops import emit_rows

TAPS = {"nearest": 1, "bilinear": 2, "bicubic": 4}
CUBIC_COEFFICIENT = -0.75
# Output positions that one task computes: their tables stay in the first-level cache while channels pass by.
POSITIONS = 128
# Channels that are computed at once: a 256-bit vector of floats.
LANES = 8


@dataclass(frozen=True)
class _Sampling:
    """How a call samples. ``work``: the type that coordinates, weights and sums have; ``index``: that of offsets."""

    method: str
    padding: str
    align_corners: bool
    axes: int
    work: str
    index: str

    @property
    def taps(self) -> int:
        """Taps along one axis."""
        return TAPS[self.method]

    @property
    def columns(self) -> int:
        """Taps along all axes, one axis after the other: the rows of a table."""
        return self.axes * self.taps

    def number(self, value: float) -> Any:
        return tirx.const(value, self.work)


def legalize_grid_sample(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``image.grid_sample`` of [N, C, *extents] by a grid [N, axes, *sizes], its last axis first."""
    data, grid = call.args
    extents, types = data.ty.shape.values[2:], {str(data.ty.dtype), str(grid.ty.dtype)}
    known = all(isinstance(extent, tirx.IntImm) for extent in extents)
    sampling = _Sampling(
        str(call.attrs.method),
        str(call.attrs.padding_mode),
        bool(call.attrs.align_corners),
        len(extents),
        "float64" if "float64" in types else "float32",
        "int32" if known and math.prod(map(int, extents)) < 1 << 31 else "int64",
    )
    tables = _emit_tables(builder, sampling, data, grid)
    return _emit_samples(builder, sampling, data, tables, grid)


def _emit_tables(builder: Any, sampling: _Sampling, data: Any, grid: Any) -> list[Any]:
    """Return offsets into a plane, and weights, both [N, axes * taps, positions]; the offset of an axis includes its
    stride. Offsets are in bounds for any coordinate, NaN too; a tap that padding with zeros leaves out weighs 0."""
    columns = sampling.columns

    def shapes(_x: Any, points: Any) -> Any:
        positions = _product(points.shape[2:])
        shape = [points.shape[0], columns, positions]
        return points.shape[0] * _tasks(positions), [(shape, sampling.index), (shape, sampling.work)]

    def body(buffers: Sequence[Any], given: Sequence[Sequence[Any]], row: Any) -> None:
        _, points, offsets, weights = buffers
        extents, positions = given[0][2:], _product(given[1][2:])
        batch, start, number = _task(row, positions)
        with T.serial(0, number) as i:
            for axis, extent in enumerate(extents):
                # The first coordinate is that of the last axis.
                place = (batch * sampling.axes + (sampling.axes - 1 - axis)) * positions + start + i
                stride = tirx.Cast(sampling.index, _product(extents[axis + 1 :]))
                for tap, (at, weight) in enumerate(_taps(sampling, points[place].astype(sampling.work), extent)):
                    into = (batch * columns + axis * sampling.taps + tap) * positions + start + i
                    offsets[into] = at.astype(sampling.index) * stride
                    weights[into] = weight

    return emit_rows(builder, "grid_sample_tables", [data, grid], shapes, body)


def _emit_samples(builder: Any, sampling: _Sampling, data: Any, tables: Sequence[Any], grid: Any) -> Any:
    """Return the sums over taps, [N, C, *sizes]: those of LANES channels at once if the data get packed."""
    lanes, dtype = _lanes(sampling, data, grid), str(data.ty.dtype)
    packed = [_pack(builder, data, lanes)] if lanes > 1 else []

    def shapes(x: Any, _offsets: Any, _weights: Any, points: Any, *_packed: Any) -> Any:
        batch, channels = x.shape[:2]
        return batch * _tasks(_product(points.shape[2:])) * _blocks(channels, lanes), [
            ([batch, channels, *points.shape[2:]], dtype)
        ]

    def body(buffers: Sequence[Any], given: Sequence[Sequence[Any]], row: Any) -> None:
        x, offsets, weights, _, *packs, result = buffers
        source = packs[0] if packs else x
        channels, plane, positions = given[0][1], _product(given[0][2:]), _product(given[3][2:])
        blocks = tirx.max(_blocks(channels, lanes), tirx.const(1, "int64"))
        batch, start, number = _task(tirx.indexdiv(row, blocks), positions)
        block = tirx.indexmod(row, blocks)
        first, image = T.bind(batch * sampling.columns), T.bind((batch * blocks + block) * plane)
        into = T.bind((batch * channels + block * lanes) * positions + start)

        def taps_at(i: Any) -> tuple[list[Any], list[Any]]:
            places = [(first + column) * positions + start + i for column in range(sampling.columns)]
            # Bound offsets are not clamped once more: the tables are in bounds.
            at = [T.bind(offsets[place].astype("int64")) for place in places]
            return at, [T.bind(weights[place]) for place in places]

        if lanes == 1:
            with T.serial(0, number) as i:
                result[into + i] = _total(sampling, source, image, *taps_at(i)).astype(dtype)
            return
        sums = T.alloc_buffer((POSITIONS * lanes,), dtype, scope="local", layout=None)
        with T.serial(0, number) as i:
            at, weight = taps_at(i)
            with T.vectorized(0, lanes) as lane:
                total = _total(sampling, source, image, at, weight, lambda place: place * lanes + lane)
                T.buffer_store(sums, total.astype(dtype), [i * lanes + lane])
        used = tirx.min(tirx.const(lanes, "int64"), channels - block * lanes)
        with T.serial(0, used) as lane, T.serial(0, number) as i:
            result[into + lane * positions + i] = tirx.BufferLoad(sums, [i * lanes + lane])

    return emit_rows(builder, "grid_sample", [data, *tables, grid, *packed], shapes, body)[0]


def _total(
    sampling: _Sampling,
    source: Any,
    start: Any,
    offsets: Sequence[Any],
    weights: Sequence[Any],
    element: Callable[[Any], Any] = lambda place: place,
) -> Any:
    """Return the sum over all taps, of the last axis innermost."""

    def total(axis: int, at: Any) -> Any:
        if axis == sampling.axes:
            value = T.bind(source[element(at)])  # loaded in any case: a branch would cost more
            return value if sampling.method == "nearest" else value.astype(sampling.work)
        terms = []
        for column in range(axis * sampling.taps, (axis + 1) * sampling.taps):
            value = total(axis + 1, at + offsets[column])
            value = value if sampling.method == "nearest" else weights[column] * value
            terms.append(_where_weighed(sampling, weights[column], value))
        return functools.reduce(operator.add, terms)

    return total(0, start)


def _lanes(sampling: _Sampling, data: Any, grid: Any) -> int:
    """Return how many channels are computed at once: several if all data are worth packing for it."""
    channels, *extents = data.ty.shape.values[1:]
    if sampling.method == "nearest" or not isinstance(channels, tirx.IntImm) or int(channels) < LANES:
        return 1
    sizes = grid.ty.shape.values[2:]
    if not all(isinstance(extent, tirx.IntImm) for extent in (*extents, *sizes)):
        return LANES  # about as many positions as elements are usual
    loads = math.prod(map(int, sizes)) * sampling.taps**sampling.axes
    return LANES if loads >= math.prod(map(int, extents)) else 1


def _pack(builder: Any, data: Any, lanes: int) -> Any:
    """Return the data as [N, blocks, elements of a plane, lanes]. Lanes beyond the channels repeat the last one."""

    def shapes(x: Any) -> Any:
        blocks, plane = _blocks(x.shape[1], lanes), _product(x.shape[2:])
        return x.shape[0] * blocks * _tasks(plane), [([x.shape[0], blocks, plane, lanes], x.dtype)]

    def body(buffers: Sequence[Any], given: Sequence[Sequence[Any]], row: Any) -> None:
        x, packed = buffers
        channels, plane = given[0][1], _product(given[0][2:])
        blocks = tirx.max(_blocks(channels, lanes), tirx.const(1, "int64"))
        image, start, number = _task(row, plane)
        batch, block = tirx.indexdiv(image, blocks), tirx.indexmod(image, blocks)
        into = T.bind((image * plane + start) * lanes)
        planes = []
        for lane in range(lanes):
            channel = tirx.min(block * lanes + lane, channels - 1)
            planes.append(T.bind((batch * channels + channel) * plane + start))
        with T.serial(0, number) as i:
            for lane, source in enumerate(planes):
                packed[into + i * lanes + lane] = x[source + i]

    return emit_rows(builder, "grid_sample_pack", [data], shapes, body)[0]


def _where_weighed(sampling: _Sampling, weight: Any, value: Any) -> Any:
    """Return a value, or 0 where padding with zeros leaves it out: the element in its place may be infinite or NaN."""
    if sampling.padding != "zeros":
        return value
    return tirx.Select(weight != sampling.number(0.0), value, tirx.const(0, str(value.ty)))


def _blocks(channels: Any, lanes: int) -> Any:
    return tirx.indexdiv(channels + (lanes - 1), lanes)


def _tasks(positions: Any) -> Any:
    """Return the number of tasks for the positions of one image."""
    return tirx.indexdiv(positions + (POSITIONS - 1), POSITIONS)


def _task(number: Any, positions: Any) -> tuple[Any, Any, Any]:
    """Return the image of a task, its first position, and its number of positions."""
    tasks = tirx.max(_tasks(positions), tirx.const(1, "int64"))
    start = tirx.indexmod(number, tasks) * POSITIONS
    return tirx.indexdiv(number, tasks), start, tirx.min(positions - start, tirx.const(POSITIONS, "int64"))


def _taps(sampling: _Sampling, point: Any, extent: Any) -> list[tuple[Any, Any]]:
    """Return the index along an axis, as a float in bounds, and the weight of each tap of a coordinate."""
    number, size = sampling.number, tirx.Cast(sampling.work, extent)
    last = size - number(1.0)
    scaled = (point + number(1.0)) * (last if sampling.align_corners else size)
    at = _stored((scaled if sampling.align_corners else scaled - number(1.0)) * number(0.5))
    cubic = sampling.method == "bicubic"
    if not cubic and sampling.padding != "zeros":  # taps of cubic interpolation are moved inside one by one
        at = _moved_inside(sampling, at, size)
    first = _stored(tirx.nearbyint(at) if sampling.method == "nearest" else tirx.floor(at))
    found = []
    for tap, weight in enumerate(_WEIGHTS[sampling.method](sampling, _stored(at - first))):
        index = first + number(tap - (1 if cubic else 0))
        if sampling.padding == "zeros":
            inside = tirx.all(index >= number(0.0), index <= last)
            found.append((_clamp(index, number(0.0), last), tirx.Select(inside, weight, number(0.0))))
        else:
            moved = _moved_inside(sampling, index, size) if cubic else _clamp(index, number(0.0), last)
            found.append((moved, weight))
    return found


def _moved_inside(sampling: _Sampling, at: Any, size: Any) -> Any:
    """Return a coordinate within the image by the padding: the nearest, or reflected until it is inside."""
    number, last = sampling.number, size - sampling.number(1.0)
    if sampling.padding == "reflection":
        edge, length = (number(0.0), tirx.max(last, number(1.0))) if sampling.align_corners else (number(-0.5), size)
        distance = _stored(tirx.abs(at - edge))
        turns = _stored(tirx.floor(distance / length))
        beyond = _stored(distance - turns * length)
        odd = turns - number(2.0) * tirx.floor(turns * number(0.5)) > number(0.5)
        at = _stored(edge + tirx.Select(odd, length - beyond, beyond))
    return _clamp(at, number(0.0), last)


def _clamp(value: Any, low: Any, high: Any) -> Any:
    """Return a value in bounds: the low one for NaN, whose comparisons are false."""
    return _stored(tirx.Select(value > low, tirx.Select(value < high, value, high), low))


def _cubic_weights(sampling: _Sampling, fraction: Any) -> list[Any]:
    """Source: Keys 1981, "Cubic convolution interpolation for digital image processing", equation 4."""
    number, a = sampling.number, CUBIC_COEFFICIENT

    def near(x: Any) -> Any:
        return (number(a + 2) * x - number(a + 3)) * x * x + number(1.0)

    def far(x: Any) -> Any:
        return ((number(a) * x - number(5 * a)) * x + number(8 * a)) * x - number(4 * a)

    one = number(1.0)
    return [far(fraction + one), near(fraction), near(one - fraction), far(number(2.0) - fraction)]


_WEIGHTS: dict[str, Callable[[_Sampling, Any], list[Any]]] = {
    "nearest": lambda sampling, _fraction: [sampling.number(1.0)],
    "bilinear": lambda sampling, fraction: [sampling.number(1.0) - fraction, fraction],
    "bicubic": _cubic_weights,
}


def _stored(value: Any) -> Any:
    """Return a value by way of a local variable: TVM's simplifier expands bound ones, which takes seconds."""
    variable = T.alloc_buffer((1,), str(value.ty), scope="local", layout=None)
    T.buffer_store(variable, value, [0])
    return tirx.BufferLoad(variable, [0])


def _product(extents: Sequence[Any]) -> Any:
    return math.prod(extents, start=tirx.const(1, "int64"))
