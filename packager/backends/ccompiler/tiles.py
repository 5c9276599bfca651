"""The inner loops of dense and conv2d: a tile of rows x columns that accumulates in vector registers.

One kernel serves both: for every step of the sum it reads one number per row of the tile, from where ``offsets`` says,
and one vector of weights, which are packed 16 columns wide. A step of dense is one k; of conv2d, one input channel at
one place of the window. For int8 a step is a pair of these, whose products are added at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from packager.backends.ccompiler.functions import Machine
from packager.backends.ccompiler.shapes import Extent, ceil_div

COLUMNS = 16  # of a panel of packed weights, whatever the machine: a layout that does not depend on -march


@dataclass(frozen=True)
class Kind:
    """Element types of a tile: of the data that it reads, of weights, and of sums; ``pair`` steps are one."""

    name: str
    data: str
    weight: str
    total: str
    pair: int = 1


KINDS = {
    "float32": Kind("f32", "float", "float", "float"),
    "float16": Kind("f16", "float", "uint16_t", "float"),
    "int32": Kind("i32", "uint32_t", "uint32_t", "uint32_t"),
    "int8": Kind("i8", "int32_t", "int8_t", "uint32_t", pair=2),
}


@dataclass(frozen=True, order=True)
class Tile:
    """A tile function: rows x panels of 16 columns, for a window of height x width."""

    kind: str
    rows: int
    panels: int
    vectors: int  # of a panel
    height: int
    width: int

    @property
    def name(self) -> str:
        """Its name in C."""
        return f"pk_tile_{self.kind}_{self.rows}x{self.panels * COLUMNS}_{self.height}x{self.width}"


@dataclass(frozen=True)
class Tiling:
    """The tiles that cover an extent of rows: the first is the largest, the others are for what it leaves."""

    tiles: tuple[Tile, ...]

    @property
    def rows(self) -> int:
        """Rows of the largest tile."""
        return self.tiles[0].rows

    @property
    def columns(self) -> int:
        """Columns of every tile."""
        return self.tiles[0].panels * COLUMNS

    def cases(self) -> list[dict[str, str]]:
        """Return for each tile, largest first, the C condition on the rows that are left, and its name."""
        smaller = [*(tile.rows for tile in self.tiles[1:]), 0]
        leads = ["if", *["else if"] * (len(self.tiles) - 1)]
        return [
            {"when": f"{lead} (left > {rows})", "tile": tile.name}
            for lead, rows, tile in zip(leads, smaller, self.tiles, strict=True)
        ]


def choose_tiling(
    machine: Machine, kind: Kind, rows: Extent, columns: Extent, window: Sequence[int] = (1, 1)
) -> Tiling:
    """Return tiles that keep their sums in registers, for ``rows`` rows and ``columns`` columns."""
    bytes_ = min(machine.vector_bytes, 32) if kind.name in ("i8", "i32") else machine.vector_bytes
    vectors = COLUMNS * 4 // bytes_
    most, panels = {1: (12, 2), 2: (6 if machine.registers == 16 else 12, 1)}.get(
        vectors, (2 if machine.registers == 16 else 6, 1)
    )
    if isinstance(rows, int) and rows <= 2:  # few sums in flight: make up for it with more columns
        most, panels = rows, 8 // vectors
    elif isinstance(rows, int):
        least = 8 // (vectors * panels)
        most = min(range(min(most, rows), 0, -1), key=lambda size: _cost(rows, size, least))
    available = ceil_div(columns, COLUMNS)
    if isinstance(available, int):
        panels = max(1, min(panels, available))
    sizes = [most]
    for size in (most // 2, 1):
        useful = not isinstance(rows, int) or 0 < rows % most <= size
        if 0 < size < sizes[-1] and useful:
            sizes.append(size)
    return Tiling(tuple(Tile(kind.name, size, panels, vectors, *window) for size in sizes))


def _cost(rows: int, size: int, least: int) -> int:
    """Return what tiles of ``size`` rows cost for a step, in rows; small ones wait for their sums."""
    rest = rows % size
    return rows // size * max(size, least) + (max(rest, least) if rest else 0)
