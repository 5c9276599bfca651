"""Strided boxes: chains of movements at random do what numpy does, as boxes and as the pieces of a copy."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

pytest.importorskip("tvm")
from tvm import tirx

from packager.backends.ccompiler.core.box_reshape import reshaped
from packager.backends.ccompiler.core.boxes import CannotMoveError, Moved, whole
from packager.backends.ccompiler.core.copies import Copy, pieces_of
from packager.backends.ccompiler.core.moves import Concat, Move, Pad, Permute, Repeat, Slice
from packager.backends.ccompiler.core.shapes import Shape


def evaluated(copy: Copy, shape: tuple[int, ...], sources: list[np.ndarray]) -> np.ndarray:
    """Return what a copy makes; each element is written once."""
    result = np.full(int(np.prod(shape)), np.nan)
    for piece in copy.pieces:
        for at in itertools.product(*(range(loop.extent) for loop in piece.loops)):
            place = piece.start + sum(i * loop.target for i, loop in zip(at, piece.loops, strict=True))
            source = piece.offset + sum(i * loop.source for i, loop in zip(at, piece.loops, strict=True))
            assert np.isnan(result[place])
            result[place] = piece.value if piece.source is None else sources[piece.source].reshape(-1)[source]
    assert not np.isnan(result).any()
    return result.reshape(shape)


def one_move(choose: random.Random, array: np.ndarray) -> tuple[Move | Shape, np.ndarray]:
    """Return a movement of an array, or a shape for it, and what numpy makes of it."""
    rank = array.ndim
    axis = choose.randrange(rank)
    extent = array.shape[axis]
    match choose.choice(["permute", "slice", "flip", "pad", "repeat", "tile", "roll", "reshape", "reshape"]):
        case "permute":
            axes = tuple(choose.sample(range(rank), rank))
            return Permute(axes), array.transpose(axes)
        case "slice":
            begin, step = choose.randrange(extent), choose.choice((1, 1, 2, 3))
            found = range(begin, choose.randrange(begin, extent) + 1, step)
            return Slice(((axis, begin, len(found), step),)), array.take(found, axis)
        case "flip":
            return Slice(((axis, extent - 1, extent, -1),)), np.flip(array, axis)
        case "pad":
            mode = choose.choice(("constant", "replicate", "reflect"))
            most = min(2, extent - 1) if mode == "reflect" else 2
            widths = tuple(
                (choose.randint(0, most), choose.randint(0, most)) if a == axis else (0, 0) for a in range(rank)
            )
            more = {"constant_values": 7.0} if mode == "constant" else {}
            return Pad(widths, mode, 7.0), np.pad(array, widths, mode.replace("replicate", "edge"), **more)
        case "repeat" | "tile" as name:
            counts = tuple(choose.randint(1, 2) if a == axis else 1 for a in range(rank))
            repeated = np.repeat(array, counts[axis], axis)
            return Repeat(counts, tiles=name == "tile"), np.tile(array, counts) if name == "tile" else repeated
        case "roll":  # a concatenation of two slices: as one movement, by a slice of what is tiled
            shift = choose.randrange(extent)
            return Slice(((axis, shift, extent, 1),)), np.roll(array, -shift, axis)
    factors = [f for e in array.shape for f in ([2, e // 2] if e % 2 == 0 and choose.random() < 0.5 else [e])]
    while len(factors) > 1 and choose.random() < 0.6:
        place = choose.randrange(len(factors) - 1)
        factors[place : place + 2] = [factors[place] * factors[place + 1]]
    return Shape(factors), array.reshape(factors)


@pytest.mark.parametrize("seed", range(60))
def test_chains(seed: int) -> None:
    choose = random.Random(seed)
    shape = tuple(choose.choice((1, 2, 3, 4, 6, 7)) for _ in range(choose.randint(1, 4)))
    source = np.arange(np.prod(shape), dtype=float).reshape(shape)
    moved, expected, composed = whole(0, Shape(shape)), source, 0
    for _ in range(5):
        move, after = one_move(choose, expected)
        if after.size > 3000:
            break
        try:
            if isinstance(move, Shape):
                made = reshaped(moved, move)
            elif (
                isinstance(move, Slice)
                and move.ranges[0][3] == 1
                and move.ranges[0][1] + move.ranges[0][2] > moved.shape[move.ranges[0][0]]
            ):
                axis, shift, count, _ = move.ranges[0]
                rest = moved.shape[axis] - shift
                halves = [Slice(((axis, shift, rest, 1),)), Slice(((axis, 0, count - rest, 1),))]
                made = Concat(axis).apply([half.apply([moved]) for half in halves])
            else:
                made = move.apply([moved])
        except CannotMoveError:
            continue
        moved, expected, composed = made, after, composed + 1
        assert moved.shape == Shape(expected.shape)
        np.testing.assert_array_equal(evaluated(Copy(pieces_of(moved)), expected.shape, [source]), expected)
    assert composed >= 2


def merged_windows(rows: int, window: int, channels: int) -> Moved:
    """Return windows of a rolled plane, flattened, and where they came from, by the movements of Swin."""
    moved = whole(0, Shape((1, rows, rows, channels)))
    shift = window // 2
    for axis in (1, 2):
        parts = [moved.sliced(axis, shift, rows - shift), moved.sliced(axis, 0, shift)]
        moved = Concat(axis).apply(parts)
    count = rows // window
    moved = reshaped(moved, Shape((1, count, window, count, window, channels))).permuted((0, 1, 3, 2, 4, 5))
    return reshaped(moved, Shape((count * count, window * window, channels)))


def test_pieces_are_few() -> None:
    assert len(pieces_of(merged_windows(14, 7, 3))) <= 9
    plane = whole(0, Shape((1, 8, 6, 5)))
    quarters = [plane.sliced(1, i, 4, 2).sliced(2, j, 3, 2) for j in (0, 1) for i in (0, 1)]
    assert len(pieces_of(Concat(3).apply(quarters))) == 1
    line = whole(0, Shape((1, 4000)))
    frames = [reshaped(line.sliced(1, 160 * n, 400), Shape((1, 1, 400))) for n in range(20)]
    assert len(pieces_of(Concat(1).apply(frames))) == 1


def test_symbolic_batch_and_rows() -> None:
    n, m = (tirx.Var(name, "int64") for name in "nm")
    moved = reshaped(whole(0, Shape((n, 14, 14, 8))), Shape((n, 2, 7, 2, 7, 8))).permuted((0, 1, 3, 2, 4, 5))
    moved = reshaped(moved, Shape((n * 4, 49, 8)))
    assert len(pieces_of(moved)) == 1
    heads = reshaped(whole(0, Shape((n, m, 24))), Shape((n, m, 4, 6))).permuted((0, 2, 1, 3))
    assert len(pieces_of(reshaped(heads, Shape((n * 4, m, 6))))) == 1
    with pytest.raises(CannotMoveError):
        reshaped(whole(0, Shape((n, m))).permuted((1, 0)), Shape((n, m)))
