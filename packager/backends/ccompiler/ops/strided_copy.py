"""Copies: each piece is a loop nest around a run, a tile that is transposed, or a loop with strides.

The outer loops are the units that threads share. Pieces with the same ones share them, so that neighbors in the result
are written one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from packager.backends.ccompiler.core.copies import Copy, Loop, Piece
from packager.backends.ccompiler.core.expressions import CTYPES, literal
from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.operations import CannotRender, Operation
from packager.backends.ccompiler.core.shapes import Extent, c_text, ceil_div, equal, plain, product
from packager.backends.ccompiler.core.stages import Stage
from packager.bundle.dtypes import DTYPES

# Rows and columns of a tile that is transposed at once, and rows that are one unit of work.
TILE, BAND = 16, 256
# Bytes of a run that is copied by a few moves of known length, and of a run that is one unit of work.
SHORT, LONG = 64, 16384
# The longest loop that is unrolled within the loop of a kernel, and the shortest of these.
UNROLLED, FEWEST = 4, 8
# Elements of loops with strides that are one unit of work, and of loops within a unit.
STRIDED, WITHIN = 1024, 2048
# Iterations of a loop with strides that the compiler sees as one.
VECTOR = 16


@dataclass(frozen=True)
class Nest:
    """The loops of a piece: outer ones, units; then inner ones; then the kernel's ``main`` one, ``unrolled`` inside.

    With ``band``, a unit is so many iterations of the main loop. A tile has ``main`` along the result's rows, and
    ``unrolled`` along the source's.
    """

    piece: Piece
    kernel: str
    units: tuple[Loop, ...]
    inner: tuple[Loop, ...]
    main: Loop
    unrolled: Loop | None
    band: int


def add_copy(stage: Stage, anchor: Operation, group: GroupDraft) -> None:  # noqa: ARG001  # as all adders
    """Add the function of a copy to its group. Raises CannotRender."""
    copy: Copy = anchor.attributes
    result = anchor.result
    if any(equal(extent, 0) for extent in result.shape) or not copy.pieces:
        raise CannotRender("a tensor without elements")
    itemsize = DTYPES[result.dtype].itemsize
    draft = group.function("copy")
    pointers = [draft.tensor(use.tensor, False) for use in anchor.uses]
    y = draft.tensor(result, True)
    shared: dict[tuple[str, ...], list[Nest]] = {}
    for nest in (_nest(piece, itemsize) for piece in copy.pieces):
        shared.setdefault(tuple(c_text(extent) for extent in _unit_extents(nest)), []).append(nest)
    first: Extent = 0
    groups = []
    for nests in shared.values():
        extents = _unit_extents(nests[0])
        last = plain(first + product(extents))
        parts = [_part(nest, pointers, result.dtype) for nest in nests]
        numbered = list(enumerate(map(c_text, extents)))
        groups.append({"first": c_text(first), "last": c_text(last), "units": numbered[::-1], "parts": parts})
        first = last
    values = {
        "groups": groups,
        "alone": len(groups) == 1,
        "y": y,
        "stored": CTYPES[result.dtype].stored,
        "itemsize": itemsize,
        "bits": 8 * itemsize,
        "tile": TILE,
    }
    draft.finish("ops/strided_copy", first, values)


def _nest(piece: Piece, itemsize: int) -> Nest:
    """Choose the kernel of a piece and its loops."""
    loops = list(piece.loops) or [Loop(1, 1, 1)]
    along = next((loop for loop in loops if equal(loop.target, 1)), None)
    across = next((loop for loop in loops if equal(loop.source, 1)), None)
    main, unrolled, kernel = along or across or loops[-1], None, "strided"
    if piece.source is not None and along is not None and along is across:
        kernel = "run"
    elif piece.source is not None and along is not None and across is not None:
        small, large = sorted((along, across), key=lambda loop: _size(loop.extent))
        main, unrolled = (large, small) if _size(small.extent) <= UNROLLED else (along, across)
        kernel = "strided" if unrolled is small and _size(small.extent) <= UNROLLED else "tile"
    elif _size(main.extent) <= UNROLLED:
        others = [loop for loop in loops if loop is not main and _size(loop.extent) >= FEWEST]
        main, unrolled = (others[-1], main) if others else (main, None)
    most = {"run": LONG // itemsize, "tile": BAND, "strided": STRIDED}[kernel]
    bands = ceil_div(main.extent, most) if _size(main.extent) > most else 1
    band = most if not isinstance(bands, int) else 0 if bands == 1 else ceil_div(main.extent, bands)
    outer = [loop for loop in loops if loop is not main and loop is not unrolled]
    inner: list[Loop] = []
    size = _size(main.extent) * _size(unrolled.extent if unrolled else 1)
    while outer and not band and kernel != "tile" and size * _size(outer[-1].extent) <= WITHIN:
        inner.insert(0, outer.pop())
        size *= _size(inner[0].extent)
    return Nest(piece, kernel, tuple(outer), tuple(inner), main, unrolled, band)


def _size(extent: Extent) -> int:
    """Return an extent, a large number if it is not known."""
    return extent if isinstance(extent, int) else 1 << 40


def _unit_extents(nest: Nest) -> tuple[Extent, ...]:
    """Return the extents of the loops over units."""
    extents = [loop.extent for loop in nest.units]
    if nest.band:
        extents.append(ceil_div(nest.main.extent, nest.band))
    if nest.kernel == "tile" and nest.unrolled is not None:
        extents.append(ceil_div(nest.unrolled.extent, TILE))
    return tuple(extents)


def _part(nest: Nest, pointers: list[str], dtype: str) -> dict[str, Any]:
    """Return the values of the template for a piece."""
    piece, main, unrolled = nest.piece, nest.main, nest.unrolled
    source: list[tuple[str, Extent]] = [(f"u{n}", loop.source) for n, loop in enumerate(nest.units)]
    target: list[tuple[str, Extent]] = [(f"u{n}", loop.target) for n, loop in enumerate(nest.units)]
    band = f"u{len(nest.units)}"
    block = f"u{len(nest.units) + bool(nest.band)}"
    if nest.band:
        source.append((band, product((main.source, nest.band))))
        target.append((band, product((main.target, nest.band))))
    if nest.kernel == "tile" and unrolled is not None:
        source.append((block, product((unrolled.source, TILE))))
        target.append((block, product((unrolled.target, TILE))))
    source += [(f"c{n}", loop.source) for n, loop in enumerate(nest.inner)]
    target += [(f"c{n}", loop.target) for n, loop in enumerate(nest.inner)]
    count = c_text(main.extent)
    itemsize = DTYPES[dtype].itemsize
    short = nest.kernel == "run" and _size(main.extent) * itemsize <= SHORT
    return {
        "kernel": nest.kernel if piece.source is not None else "fill",
        "x": "" if piece.source is None else _sum(pointers[piece.source], piece.offset, source),
        "y": _sum("", piece.start, target),
        "value": _stored(piece.value, dtype) if piece.source is None else "",
        "inner": [(f"c{n}", c_text(loop.extent)) for n, loop in enumerate(nest.inner)],
        "count": f"pk_min_i64({nest.band}, {count} - {band} * {nest.band})" if nest.band else count,
        "bytes": int(main.extent) * itemsize if short else 0,
        "step": _step(nest),
        "from": c_text(main.source),
        "to": c_text(main.target),
        "columns": f"pk_min_i64({TILE}, {c_text(unrolled.extent)} - {block} * {TILE})" if unrolled else "",
        "pitch": c_text(unrolled.target) if unrolled else "",
        "terms": [
            (c_text(product((unrolled.source, n))), c_text(product((unrolled.target, n))))
            for n in range(int(unrolled.extent))
        ]
        if unrolled and nest.kernel != "tile"
        else [("0", "0")],
    }


def _step(nest: Nest) -> int:
    """Return how many iterations of the main loop are one vector loop: the last ones are made again if need be."""
    count = nest.main.extent if nest.unrolled is None else 1
    if nest.band and isinstance(count, int):
        count -= (ceil_div(count, nest.band) - 1) * nest.band  # of the last band
    return 1 << (min(count, VECTOR).bit_length() - 1) if isinstance(count, int) and count >= FEWEST else 1


def _sum(first: str, offset: Extent, terms: list[tuple[str, Extent]]) -> str:
    texts = [first, "" if equal(offset, 0) else c_text(offset)]
    texts += [
        name if equal(stride, 1) else f"{name} * {c_text(stride)}" for name, stride in terms if not equal(stride, 0)
    ]
    return " + ".join(text for text in texts if text) or "0"


def _stored(value: float, dtype: str) -> str:
    """Return the C literal of an element as it is stored."""
    if dtype == "float16":
        return str(int(np.float16(value).view(np.uint16)))
    return literal(value if CTYPES[dtype].is_float else int(value), dtype)
