"""Register tiles of GEMM: rows x columns that accumulate in vector registers.

The rows of a tile have a constant pitch; its columns are panels of packed weights, 16 columns wide on every CPU. A step
along K reads one element per row and one row of each panel; for int8 it is a pair of products.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from packager.backends.ccompiler.core.machine import COLUMNS, KINDS, Dots, Kind, Machine, Narrow, Tile
from packager.backends.ccompiler.core.shapes import Extent
from packager.backends.ccompiler.gemm.blocks import CHUNK
from packager.codegen.templates import render

BAND = 64  # columns of a unit of work, if that makes enough units; a multiple of a panel
FEW = 6  # rows of a tile that is alone in its block, and prefetches all of the next weights
CACHED = 4  # panels that a row reads at once from a cache
SHORT = 7  # rows of a tile that stores while the next one computes
NEAR_STEPS = 256  # of two panels that are in the L1 cache beside rows, 128 bytes a step
WHOLE = (8, 16)  # rows of a block that are whole tiles of 8
POINTERS = 8  # rows whose addresses general registers have room for
EMBEDDED = ("f32", "f16")  # kinds whose products broadcast a memory operand, where the CPU supports it


@dataclass(frozen=True)
class Registers:
    """The register allocation of tiles: at most ``rows`` rows, and more panels for few rows."""

    vectors: int
    rows: int
    widths: tuple[int, ...]  # panels of a tile of 1, 2, ... rows; the last one also of more

    def panels(self, rows: int) -> int:
        """Return the panels of a tile for data of ``rows`` rows."""
        return self.widths[min(rows, len(self.widths)) - 1]


def registers_of(machine: Machine, kind: str) -> Registers:
    """Return the largest tiles whose accumulators fit the registers, with enough of them to hide latency."""
    narrow = kind in ("i8", "i32") or (kind == "u8" and not machine.quads)
    bytes_ = min(machine.vector_bytes, 32) if narrow else machine.vector_bytes
    vectors = COLUMNS * 4 // bytes_
    if vectors == 1:
        return Registers(vectors, 14, (8, 4, 4, 4, 2))
    if vectors == 2 and kind == "u8":
        return Registers(vectors, 4 if machine.registers == 16 else 10, (2, 2, 1))
    if vectors == 2:
        return Registers(vectors, 6 if machine.registers == 16 else 12, (4, 2, 1))
    return Registers(vectors, 2 if machine.registers == 16 else 5, (2, 1))


def product_rows(machine: Machine, kind: str, counts: tuple[int, ...] | None, steps: Extent) -> int:
    """Return the maximum rows of a tile of dense and conv2d, for blocks of these numbers of rows and steps along K.

    With AVX-512 and few steps, half of what registers have room for: the stores of a taller tile come at once, and the
    next one waits. On Zen 4 a product then takes 0.8 to 1 of the time, least with few steps or a result beyond the L2
    cache. Panels of more steps come from the L2 cache for each tile, which cores with two multiply-adds a cycle wait
    for: tall tiles take 0.88 to 0.97 of the time on Sapphire Rapids, 1.01 to 1.02 on Zen 4. Winograd's products have
    such tiles, too.
    """
    if not machine.embeds or kind != "f32" or not (isinstance(steps, int) and steps <= NEAR_STEPS):
        return registers_of(machine, kind).rows
    return SHORT + 1 if counts and max(counts) in WHOLE else SHORT


def heights_of(rows: int, most: int) -> frozenset[int]:
    """Return the heights of tiles that cover ``rows`` rows evenly."""
    tiles = -(-rows // most)
    return frozenset({rows // tiles, -(-rows // tiles)})


def tiles_of(
    machine: Machine,
    kind: Kind,
    blocks: tuple[int, ...] | None,
    columns: Extent,
    band: int = BAND,
    *,
    most: int | None = None,
    grouped: bool = False,
    half: bool = False,
) -> frozenset[Tile]:
    """Return the tiles for blocks of these numbers of rows, or any number for None, and ``columns`` columns.

    A unit of work is ``band`` columns wide. Tiles have at most ``most`` rows, by default as many as registers have room
    for. With ``grouped`` the numbers are of groups of rows, two of which may share a tile. With ``half`` the last panel
    is half of one.
    """
    registers = registers_of(machine, kind.name)
    most = most or registers.rows
    panels = -(-columns // COLUMNS) if isinstance(columns, int) else None
    made = set()
    for block in range(1, most * 4) if blocks is None else blocks:
        both = grouped and 2 * block <= most
        widest = registers.panels(2 * block if both else block)
        widths = {widest >> shift for shift in range(widest.bit_length())}
        if panels is not None:
            # The largest power of two that divides the panels and a band is the minimum.
            odd = min(panels & -panels, band // COLUMNS)
            widths = {width for width in widths if min(odd, widest) <= width <= panels}
        heights = {block, 2 * block} if both else heights_of(block, most)
        made |= {Tile(kind.name, height, width, registers.vectors) for height in heights for width in widths}
        if half and panels is not None:  # a band of whole panels may be followed by any width, others by the same one
            last = widths if odd == band // COLUMNS else {min(odd, widest)}
            made |= {Tile(kind.name, h, width, registers.vectors, half=True) for h in heights for width in last}
    return frozenset(made)


def _cells_of(tile: Tile) -> list[dict[str, Any]]:
    """Return the vectors of a row: panel, vector of the panel, first column, and whether it is half a vector."""
    lanes = COLUMNS // tile.vectors
    places = (
        (panel, vector, panel * COLUMNS + vector * lanes)
        for panel, vector in product(*map(range, (tile.panels, tile.vectors)))
    )
    return [
        {"panel": panel, "vector": vector, "column": column, "half": column + lanes > tile.columns}
        for panel, vector, column in places
        if column < tile.columns
    ]


def _rows_of(tile: Tile, embeds: bool) -> dict[str, Any]:
    """Return the rows that have a pointer, and the pointer and offset of each row: one for three rows of a half.

    With one panel an element is used once: where its product ``embeds`` it, which takes a pointer, each row has one, in
    0.92 of the time.
    """
    halves = (0, (tile.rows + 1) // 2)
    if embeds and tile.panels == 1 and tile.rows <= POINTERS:
        return {"halves": halves, "starts": [*range(tile.rows)], "places": [(row, 0) for row in range(tile.rows)]}
    starts, places = [], []
    for row in range(tile.rows):
        in_half = row - halves[row >= halves[1]]
        if in_half % 3 == 0:
            starts.append(row)
        places.append((starts[-1], in_half % 3))
    return {"halves": halves, "starts": starts, "places": places}


def _of_cached(tile: Tile) -> Tile:
    """Return the tile that reads as many panels at once as is fastest while weights come from a cache."""
    return replace(tile, panels=min(tile.panels, CACHED)) if tile.kind == "f32" and tile.vectors == 1 else tile


def render_tiles(
    machine: Machine, wanted: Set[Tile | Dots | Narrow], *, fetch: bool = True, cached: bool = False
) -> list[str]:
    """Return the C of tiles and their callers, preceded by the functions that gather rows.

    With ``fetch`` tiles prefetch the next weights, which is cheap only with many rows. With ``cached`` weights stay in
    the shared cache: a row reads fewer panels at once, in 0.87 to 0.99 of the time, which would be 1.2 from memory.
    """
    tiles = {_of_cached(tile) if cached else tile for tile in wanted if isinstance(tile, Tile)}
    others = {tile for tile in wanted if isinstance(tile, Dots | Narrow)}
    names = {tile.kind for tile in tiles} | ({"f32"} if others else set())
    kinds = [kind for kind in KINDS.values() if kind.name in names]
    if not kinds:
        return []
    values = {"chunk": CHUNK, "bytes": machine.vector_bytes, "few": FEW}
    embedded = EMBEDDED if machine.embeds else ()
    elements = {"quads": machine.quads, "embedded": embedded, "half_tiles": any(tile.half for tile in tiles)}
    made = [
        render("ccompiler/common/gather.h.j2", values, kinds=kinds),
        render("ccompiler/common/elements.h.j2", elements, kinds=kinds),
    ]
    if any(tile.kind == "f32" and not tile.near for tile in tiles):
        made.append(render("ccompiler/gemm/finish.h.j2", lanes=machine.vector_bytes // 4))
    for kind, near in product(kinds, (False, True)):
        own = sorted(tile for tile in tiles if (tile.kind, tile.near) == (kind.name, near))
        if not own:
            continue
        registers = registers_of(machine, kind.name)
        types = {
            **{"kind": kind.name, "data": kind.data, "weight": kind.weight, "total": kind.total, "unit": kind.unit},
            **{"step": COLUMNS * kind.pair, "near": near, "fetch": fetch and not near},
            "finishes": kind.name == "f32" and not near,
            "largest": max(tile.rows * tile.panels * COLUMNS for tile in own),
        }
        for tile in own:
            made.append(
                render(
                    "ccompiler/gemm/tile.c.j2",
                    values,
                    **types,
                    feature="PK_QUADS" if machine.quads and kind.name == "u8" else "",
                    name=tile.name,
                    rows=tile.rows,
                    **_rows_of(tile, tile.kind in embedded),
                    panels=tile.panels,
                    cells=_cells_of(tile),
                )
            )
        most = max(tile.panels for tile in own)
        products = {"widths": [min(width, most) for width in registers.widths], "tiles": own}
        made.append(render("ccompiler/gemm/products.c.j2", values, **types, **products))
    return [text.trimmed() for text in made]
