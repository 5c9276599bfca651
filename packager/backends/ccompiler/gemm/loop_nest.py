"""The GEMM loop nest of dense and conv2d: blocks of rows times packed columns.

A unit of work is a block of rows times a band of columns. Consecutive units of a call share the gathered rows, up to
``SPAN`` bands. Only the tiles depend on the CPU.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from packager.backends.ccompiler.core.expressions import as_result
from packager.backends.ccompiler.core.functions import FunctionDraft
from packager.backends.ccompiler.core.machine import COLUMNS, Kind, Other
from packager.backends.ccompiler.core.operations import Operation, Tensor
from packager.backends.ccompiler.core.placed import Placed, Turned
from packager.backends.ccompiler.core.shapes import Extent, c_text, ceil_div, equal, product
from packager.backends.ccompiler.core.stages import Stage
from packager.backends.ccompiler.gemm.blocks import CHUNK, HELD, Blocks, Data, gathered, sum_of
from packager.backends.ccompiler.gemm.finish import Finish, find_finish
from packager.backends.ccompiler.gemm.line_blocks import LineBlocks
from packager.backends.ccompiler.gemm.tiles import BAND, product_rows, tiles_of

if TYPE_CHECKING:
    from packager.bundle.arrays import Array

# Columns per pass over the rows.
SPAN = 4 * BAND
# Columns of which the last panel may be copied to where it goes: of fewer, epilogues are as fast after.
LEAST_COPIED = 3 * COLUMNS
# The minimum number of units, if narrower bands reach it: threads cannot balance a few.
UNITS = 16


@dataclass(frozen=True)
class Product:
    """Sizes of a batched GEMM: ``batch`` times ``rows`` x ``depth`` by ``depth`` x ``columns``.

    ``row`` is C for the result's row of row ``r`` of a block, ``offset`` is added to its column, ``setup`` are
    declarations. With ``shared`` the matrices of a batch use parts of the same rows (groups of a convolution): the
    batch is then the innermost loop over a block, whose rows stay in the cache. With ``target`` the accumulators are
    stored there, without epilogue. ``other`` computes a block in
    place of tiles.
    """

    batch: Extent
    blocks: Blocks | LineBlocks
    depth: Extent
    columns: Extent
    data: Data
    row: str
    offset: str = ""
    setup: str = ""
    target: str = ""
    shared: bool = False
    other: Other | None = None


def add_product(
    draft: FunctionDraft, name: str, sizes: Product, stage: Stage, anchor: Operation, kind: Kind, weights: str
) -> None:
    """Finish a function that computes a product with its epilogue. Raises CannotRender."""
    group = draft.group
    result = _summed(sizes, stage, anchor, kind)
    if result is not None:
        sizes = _deep(sizes, kind)
    columns, blocks, data = sizes.columns, sizes.blocks, sizes.data
    steps = ceil_div(sizes.depth, kind.pair)
    other = sizes.other
    band = int(columns) if other else _band(sizes)
    bands = ceil_div(columns, band)
    most = min(SPAN, -(-columns // COLUMNS) * COLUMNS) if isinstance(columns, int) else SPAN
    pitch = (other.pitch or band) if other else most + COLUMNS
    rows_first = not equal(bands, 1) and (result is not None or sizes.shared or _rows_first(sizes))
    pieces = _pieces(stage.placed, sizes, band) if isinstance(stage.placed, Placed) else None
    turned = stage.placed if isinstance(stage.placed, Turned) else None
    finish = _finish(sizes, stage, anchor, kind)
    if turned:
        stage = replace(stage, placed=replace(turned, buffer=f"c + r * {pitch}"))
    place = f"c[r * {pitch} + {'piece + ' if pieces else ''}j]"
    total = f"o{result.index}[j]" if result else as_result(place, anchor.result.dtype)
    is_done = sizes.target or (result and not stage.after) or finish
    program = None if is_done else draft.program(stage, total)
    counts = data.groups or blocks.counts
    tile_rows = product_rows(group.machine, kind.name, counts, steps)
    half = kind.name == "f32" and isinstance(columns, int) and 0 < columns % COLUMNS <= COLUMNS // 2
    values = {
        "program": program,
        "pieces": pieces,
        "finish": finish.values(draft, sizes.row.removesuffix(" + r"), c_text(stage.inner)) if finish else None,
        "turned": _turned(turned, draft) if turned else None,
        "kind": kind,
        "tile_rows": tile_rows,
        "sizes": sizes,
        "w": weights,
        "rows": c_text(blocks.rows),
        "columns": c_text(columns),
        "steps": c_text(steps),
        "chunk": c_text(_chunk(steps, data)),
        "sum": sum_of(kind)[0],
        "sums": -(-data.chunk // sum_of(kind)[0]),
        "block": blocks.room,
        "blocks": c_text(blocks.count),
        "batch_of": f"% {c_text(sizes.batch)}" if sizes.shared else f"/ {c_text(blocks.count)}",
        "block_of": f"/ {c_text(sizes.batch)}" if sizes.shared else f"% {c_text(blocks.count)}",
        "place": blocks.place,
        "data": data,
        "bands": c_text(bands),
        # Rows of a static width; GCC 12 warns about loops that convert some of them.
        "one_band": equal(bands, 1) and not (program and (program.widened or program.narrowed)),
        "rows_first": rows_first,
        "band": band,
        "span": SPAN // band if result is None else bands,
        "target": draft.tensor(result, True) if result else sizes.target,
        "panels": c_text(ceil_div(columns, COLUMNS)),
        "panel": c_text(product((steps, other.step if other else COLUMNS * kind.pair))),
        "step": other.step if other else COLUMNS * kind.pair,
        "pitch": pitch,
        "apart": c_text(stage.inner) if finish else c_text(columns) if result or sizes.target else pitch,
        "other": other,
        "half": half,
    }
    extent = product((sizes.batch, blocks.count, bands))
    tiles = tiles_of(group.machine, kind, counts, columns, band, most=tile_rows, grouped=data.grouped, half=half)
    made = other.made_of if other else tiles
    draft.finish(name, extent, values, made, product((sizes.batch, sizes.depth, columns)))


def _finish(sizes: Product, stage: Stage, anchor: Operation, kind: Kind) -> Finish | None:
    """Return the epilogue if tiles can compute it: of rows that follow each other in the result.

    Sums that several passes add up are where the result goes, in whole panels.
    """
    steps, columns, data = ceil_div(sizes.depth, kind.pair), sizes.columns, sizes.data
    if kind.name != "f32" or sizes.target or sizes.other or not sizes.row.endswith("first + r"):
        return None
    is_one_pass = data.passes == "1" if data.passes else isinstance(steps, int) and steps <= data.chunk
    is_whole = isinstance(columns, int) and columns % COLUMNS == 0
    if not is_whole and not (is_one_pass and isinstance(columns, int) and columns >= LEAST_COPIED):
        return None
    return find_finish(stage, anchor)


def _turned(turned: Turned, draft: FunctionDraft) -> dict[str, str]:
    """Return C for where a block is transposed to."""
    numbers = {"pixels": turned.pixels, "image": turned.image, "column": turned.column}
    return {"target": draft.tensor(turned.target, True), **{name: c_text(each) for name, each in numbers.items()}}


def _pieces(placed: Placed, sizes: Product, band: int) -> str:
    """Return C for the elements of a piece of a row that is written at once, from ``start`` on."""
    piece, columns = placed.piece, sizes.columns
    static = isinstance(piece, int) and isinstance(columns, int)
    if static and columns % piece == 0 and (band % piece == 0 or columns <= band):
        return c_text(piece)
    return f"pk_min_i64({c_text(piece)} - start % {c_text(piece)}, width - piece)"


def _band(sizes: Product) -> int:
    """Return the columns of a unit."""
    others, columns = product((sizes.batch, sizes.blocks.count)), sizes.columns
    if isinstance(others, int) and isinstance(columns, int) and BAND < columns <= BAND * UNITS // others:
        return BAND // 2
    return BAND


def _rows_first(sizes: Product) -> bool:
    """Whether threads split the rows, which keeps them in a core's cache between functions, or else the weights.

    Worth it where the rows have more elements than the weights, all of which each thread then reads.
    """
    rows, depth, columns = sizes.blocks.rows, sizes.depth, sizes.columns
    if not (isinstance(rows, int) and isinstance(depth, int) and isinstance(columns, int)):
        return False
    return 2 * rows * (depth + columns) >= depth * columns


def _summed(sizes: Product, stage: Stage, anchor: Operation, kind: Kind) -> Tensor | None:
    """Return a result to accumulate in, so that a block gathers its rows once for all columns; None for a buffer.

    Each block then reads all weights, which the cache must hold.
    """
    if (
        sizes.data.passes
        or not sizes.data.gather
        or sizes.target
        or sizes.offset
        or kind.total != "float"
        or stage.placed
    ):
        return None
    columns, weights = sizes.columns, product((sizes.depth, sizes.columns))
    if not isinstance(columns, int) or columns <= SPAN or columns % COLUMNS:
        return None
    if not _rows_first(sizes) and not (isinstance(weights, int) and weights <= HELD):
        return None
    elements = product(anchor.result.shape)
    fitting = (tensor for tensor in stage.stored if tensor.dtype == "float32")
    return next((tensor for tensor in fitting if equal(product(tensor.shape), elements)), None)


def _deep(sizes: Product, kind: Kind) -> Product:
    """Return a product with blocks of half the rows and the steps of rows in place: there is no accumulator buffer."""
    if isinstance(sizes.blocks, LineBlocks):
        return sizes
    blocks = sizes.blocks.halved()
    data = gathered(sizes.data.gather, blocks, kind.unit, CHUNK, sizes.data.following)
    return replace(sizes, blocks=blocks, data=data)


def _chunk(steps: Extent, data: Data) -> Extent:
    """Return the steps per chunk, as even as possible."""
    if isinstance(steps, int):
        return -(-steps // -(-steps // data.chunk))
    return data.chunk


def packer(shape: tuple[int, int, int], pair: int) -> Callable[[Array], Array]:
    """Return the function that packs [batch, depth, columns]; its result is a view if nothing has to be padded."""

    def pack(array: Array) -> Array:
        batch, depth, columns = shape
        padded = pad(np.asarray(array).reshape(shape), (1, pair, COLUMNS))
        split = padded.reshape(batch, -(-depth // pair), pair, -(-columns // COLUMNS), COLUMNS)
        return split.transpose(0, 3, 1, 4, 2)

    return pack


def pad(array: Array, multiples: tuple[int, ...]) -> Array:
    """Return an array with zeros up to multiples of these extents; the array itself if it has them."""
    missing = [(0, -extent % multiple) for extent, multiple in zip(array.shape, multiples, strict=True)]
    return np.asarray(np.pad(array, missing)) if any(after for _, after in missing) else array
