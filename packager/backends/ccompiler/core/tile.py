"""Register tiles of GEMM: rows by vectors of columns, for an element type."""

from __future__ import annotations

from dataclasses import dataclass

COLUMNS = 16  # of a panel of packed weights


@dataclass(frozen=True)
class Kind:
    """Element types of data as stored and as tiles read it, of weights, of sums; ``pair`` products are one step."""

    name: str
    stored: str
    data: str
    weight: str
    total: str
    pair: int = 1

    @property
    def unit(self) -> int:
        """How many elements of data, as tiles read it, a step takes."""
        return 1 if self.converts else self.pair

    @property
    def converts(self) -> bool:
        """Whether data is not read as it is stored."""
        return self.data != self.stored


KINDS = {
    "float32": Kind("f32", "float", "float", "float", "float"),
    "float16": Kind("f16", "uint16_t", "float", "uint16_t", "float"),
    "int32": Kind("i32", "int32_t", "int32_t", "uint32_t", "uint32_t"),
    "int8": Kind("i8", "int8_t", "int32_t", "int8_t", "uint32_t", pair=2),
    "uint8": Kind("u8", "uint8_t", "uint8_t", "int8_t", "uint32_t", pair=4),  # with weights of int8
}


@dataclass(frozen=True, order=True)
class Tile:
    """A tile function: rows x panels of 16 columns."""

    kind: str
    rows: int
    panels: int
    vectors: int  # of a panel

    @property
    def name(self) -> str:
        """Its name in C."""
        return f"pk_tile_{self.kind}_{self.rows}x{self.panels * COLUMNS}"
