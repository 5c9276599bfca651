"""Products of few rows and the transpose of a matrix that a run computes: dot products of rows, which lie as they are.

The scores of a few queries and all keys are such, and a matrix times a vector. Neither is transposed, nor packed:
vectors run along the rows of both, and sums are added up lane by lane at the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from packager.backends.ccompiler.core.expressions import as_result
from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.moves import Permute
from packager.backends.ccompiler.core.operations import ROW_DOTS, Operation, Tensor, Use
from packager.backends.ccompiler.core.shapes import Extent, Shape, c_text, ceil_div, equal, equal_shapes, product
from packager.backends.ccompiler.core.stages import Stage
from packager.backends.ccompiler.gemm.few_rows import BAND, MOST_ROWS

# Rows of one tile, and columns of one with so many rows: sums that hide latency, and fit 16 registers.
TILE_ROWS, TILE_COLUMNS = 2, {1: 8, 2: 4}


@dataclass(frozen=True)
class Matrix:
    """Where the columns of a product of so many rows lie in a tensor: elements from one to the next, and of the batch.

    ``batch`` has the extent and the distance of each axis, the first axis first.
    """

    rows: int
    pitch: Extent
    batch: tuple[tuple[Extent, Extent], ...]


def find_row_dots(operations: Sequence[Operation], results: Sequence[Tensor]) -> list[Operation]:
    """Replace products with a permuted matrix, of few rows, and products with a vector; drop what nothing reads."""
    made = {operation.result.index: operation for operation in operations}
    changed = [_row_dots(operation, made) or operation for operation in operations]
    read = {tensor.index for tensor in results} | {use.tensor.index for each in changed for use in each.uses}
    return [each for each in changed if each.result.index in read or not isinstance(each.attributes, Permute)]


def _row_dots(product_: Operation, made: dict[int, Operation]) -> Operation | None:
    """Return a product as dot products of rows; None if it is none of few rows."""
    if product_.name != "matmul" or {product_.result.dtype, *(u.tensor.dtype for u in product_.uses)} != {"float32"}:
        return None
    data, matrix = product_.uses
    batch, outer = matrix.shape[:-2], product(matrix.shape[:-2])
    batched = not equal(outer, 1)
    rows = data.shape[-2] if batched else product(data.shape[:-1])
    before = made.get(matrix.tensor.index)
    permuted = before.attributes.axes if before is not None and isinstance(before.attributes, Permute) else ()
    if before is not None and permuted and permuted[-2] == len(permuted) - 1:
        source = before.uses[0]
        same = equal_shapes(matrix.shape, before.result.shape)
        if same and isinstance(rows, int) and 0 < rows <= MOST_ROWS:
            strides = [product(source.shape[axis + 1 :]) for axis in permuted]
            pairs = zip(batch, strides, strict=False)
            return replace(
                product_,
                name=ROW_DOTS,
                operands=(data, Use(source.tensor, Shape((outer, matrix.shape[-1], matrix.shape[-2])))),
                attributes=Matrix(rows, strides[-1], tuple(pairs)),
            )
    if not equal(matrix.shape[-1], 1) or (batched and not equal(product(data.shape[:-2]), outer)):
        return None
    columns, depth = rows, data.shape[-1]
    return replace(
        product_,
        name=ROW_DOTS,
        operands=(Use(matrix.tensor, Shape((outer, 1, depth))), Use(data.tensor, Shape((outer, columns, depth)))),
        attributes=Matrix(1, depth, ((outer, product((columns, depth))),)),
    )


def add_row_dots(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the function of a product of [batch, rows, depth] and the transpose of [batch, columns, depth].

    Raises CannotRender.
    """
    data, matrix = anchor.uses
    place: Matrix = anchor.attributes
    batch, columns, depth = matrix.shape
    rows = place.rows
    draft, bands = group.function("dense"), ceil_div(columns, BAND)
    tiles = [(first, min(TILE_ROWS, rows - first)) for first in range(0, rows, TILE_ROWS)]
    draft.finish(
        "gemm/row_dots",
        product((batch, bands)),
        {
            "x": draft.tensor(data.tensor, False),
            "w": draft.tensor(matrix.tensor, False),
            "program": draft.program(stage, as_result(f"c[r * {BAND} + j]", anchor.result.dtype)),
            "rows": rows,
            "depth": c_text(depth),
            "whole": isinstance(depth, int) and depth % (group.machine.vector_bytes // 4) == 0,
            "columns": c_text(columns),
            "bands": c_text(bands),
            "band": BAND,
            "lanes": group.machine.vector_bytes // 4,
            "pitch": c_text(place.pitch),
            # Of the last axis first: what is left of the batch after each is of those before it.
            "batch": [(c_text(extent), c_text(stride)) for extent, stride in reversed(place.batch)],
            "tiles": [(first, high, TILE_COLUMNS[high]) for first, high in tiles],
        },
    )
