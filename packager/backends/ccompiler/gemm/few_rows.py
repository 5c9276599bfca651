"""Products of few rows and a matrix that a run computes: the matrix is read once where it is, and packed nowhere."""

from __future__ import annotations

from dataclasses import dataclass

from packager.backends.ccompiler.core.expressions import as_result
from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.machine import Machine
from packager.backends.ccompiler.core.operations import Operation
from packager.backends.ccompiler.core.shapes import Extent, c_text, product
from packager.backends.ccompiler.core.stages import Stage
from packager.backends.ccompiler.gemm.blocks import SUM

# With more rows packing costs less than the products.
MOST_ROWS = 4
# Columns that one iteration computes.
BAND = 64


@dataclass(frozen=True)
class _Part:
    """So many vectors of columns from ``first`` on; ``left`` are the columns of the last one if it has fewer."""

    first: int
    vectors: int
    left: int


def are_few(stage: Stage, anchor: Operation, rows: Extent) -> bool:
    """Whether a product of float32 with so many rows, each of a known number of columns, is one of few rows."""
    dtypes = {use.tensor.dtype for use in anchor.uses} | {anchor.result.dtype}
    known = isinstance(rows, int) and isinstance(stage.inner, int)
    return dtypes == {"float32"} and known and stage.placed is None and 0 < int(rows) <= MOST_ROWS


def add_few_rows(stage: Stage, anchor: Operation, group: GroupDraft, batch: Extent, rows: int) -> None:
    """Add the function of a product of [batch, rows, depth] and [batch, depth, columns]. Raises CannotRender."""
    data, matrix = anchor.uses
    draft, columns, machine = group.function("dense"), int(stage.inner), group.machine
    bands = -(-columns // BAND)
    values = {
        "x": draft.tensor(data.tensor, False),
        "w": draft.tensor(matrix.tensor, False),
        "program": draft.program(stage, as_result(f"c[r * {BAND} + j]", anchor.result.dtype)),
        "rows": rows,
        "depth": c_text(data.shape[-1]),
        "columns": columns,
        "bands": bands,
        "band": BAND,
        "lanes": machine.vector_bytes // 4,
        "sum": SUM,
        "whole": _parts(BAND, rows, machine) if columns >= BAND else [],
        "rest": _parts(columns % BAND, rows, machine),
    }
    draft.finish("gemm/few_rows", product((batch, bands)), values)


def _parts(columns: int, rows: int, machine: Machine) -> list[_Part]:
    """Return columns as parts whose sums are in registers, beside a vector of the matrix and an element of a row."""
    lanes = machine.vector_bytes // 4
    vectors, most = -(-columns // lanes), max(1, (machine.registers - 2) // (rows + 1))
    return [
        _Part(first * lanes, min(most, vectors - first), columns % lanes if first + most >= vectors else 0)
        for first in range(0, vectors, most)
    ]
