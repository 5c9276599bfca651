"""matmul: rows of data times a matrix, which is packed at build time if it is constant and else before every run."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from packager.backends.ccompiler.expressions import DTYPES
from packager.backends.ccompiler.functions import ITEMSIZE, GroupDraft
from packager.backends.ccompiler.graph import Operation, Tensor, Use
from packager.backends.ccompiler.program import make_program
from packager.backends.ccompiler.shapes import Extent, c_text, ceil_div, equal, product
from packager.backends.ccompiler.stages import Stage
from packager.backends.ccompiler.tiles import COLUMNS, KINDS, Kind, choose_tiling

if TYPE_CHECKING:
    from packager.primitives import Array

# Tiles of rows that share one look at the matrix, and the steps that they take before the next look: as many as leave
# the panel in the first-level cache.
TILES_PER_BLOCK = 4
CHUNK = 512


def add_dense(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the functions of a stage to its group: what prepares its operands, then the product. Raises CannotRender."""
    data, matrix = anchor.uses
    kind = KINDS[data.tensor.dtype]
    depth, columns = data.shape[-1], stage.inner
    steps = ceil_div(depth, kind.pair)
    batched = not equal(product(matrix.shape[:-2]), 1)
    batch = product(data.shape[:-2]) if batched else 1
    rows = data.shape[-2] if batched else product(data.shape[:-1])
    widened = _widen(data, kind, product((batch, rows)), depth, group)
    packed = _packed(matrix, kind, batch, depth, columns, group)

    draft = group.function("dense")
    x = draft.tensor(data.tensor, False) if widened is None else draft.workspace(widened, kind.data, False)
    w = draft.packed(packed[1], kind.weight) if packed[0] else draft.workspace(packed[1], kind.weight, False)
    tiling = choose_tiling(group.machine, kind, rows, columns)
    full = tiling.columns
    block = tiling.rows * (
        TILES_PER_BLOCK if not isinstance(rows, int) else min(TILES_PER_BLOCK, -(-rows // tiling.rows))
    )
    blocks, panels = ceil_div(rows, block), ceil_div(columns, COLUMNS)
    bands = ceil_div(columns, tiling.columns)
    panel = product((steps, COLUMNS * kind.pair))
    program = make_program(
        stage.after,
        inner=columns,
        given=[(anchor.result, total_value(anchor.result, f"tile[r * {tiling.columns} + j]"))],
        stored=stage.stored,
        pointer_of=draft.tensor,
    )
    draft.finish(
        "dense",
        product((batch, bands, blocks)),
        {
            "program": program,
            "kind": kind,
            "x": x,
            "w": w,
            "cases": tiling.cases(),
            "tile_rows": tiling.rows,
            "tile_columns": full,
            "rows": c_text(rows),
            "columns": c_text(columns),
            "steps": c_text(steps),
            "block": block,
            "blocks": c_text(blocks),
            "bands": c_text(bands),
            "panels": c_text(panels),
            "panel": c_text(panel),
            "band_panels": tiling.columns // COLUMNS,
            "chunk": CHUNK,
            "step": COLUMNS * kind.pair,
            "width": full
            if isinstance(columns, int) and columns % full == 0
            else f"pk_min_i64({full}, {c_text(columns)} - start)",
        },
        frozenset(tiling.tiles),
    )


def total_value(result: Tensor, total: str) -> str:
    """Return a sum of a tile as a value of the result's type."""
    return f"pk_round_half({total})" if result.dtype == "float16" else f"({DTYPES[result.dtype].value}){total}"


def _widen(data: Use, kind: Kind, rows: Extent, depth: Extent, group: GroupDraft) -> int | None:
    """Convert data that tiles cannot read as it is; return the workspace, or None if there is no need to."""
    if data.tensor.dtype in ("float32", "int32"):
        return None
    steps = ceil_div(depth, kind.pair)
    workspace = group.workspace(product((rows, steps)), 4)
    draft = group.function("widen")
    draft.finish(
        f"widen_{kind.name}",
        rows,
        {
            "source": draft.tensor(data.tensor, False),
            "target": draft.workspace(workspace, kind.data, True),
            "depth": c_text(depth),
            "steps": c_text(steps),
        },
    )
    return workspace


def _packed(
    matrix: Use, kind: Kind, batch: Extent, depth: Extent, columns: Extent, group: GroupDraft
) -> tuple[bool, int]:
    """Have the matrix packed; return whether that is done at build time, and the packing or the workspace."""
    argument = matrix.tensor.argument
    if argument is not None and argument in group.graph.constants and all(isinstance(e, int) for e in matrix.shape):
        shape = (int(product(matrix.shape[:-2])), int(depth), int(columns))
        layout = f"kn{COLUMNS}" + (f"p{kind.pair}" if kind.pair > 1 else "")
        return True, group.packing(argument, layout, packer(shape, kind.pair))
    steps, panels = ceil_div(depth, kind.pair), ceil_div(columns, COLUMNS)
    workspace = group.workspace(
        product((batch, panels, steps, COLUMNS, kind.pair)), ITEMSIZE.get(matrix.tensor.dtype, 1)
    )
    draft = group.function("pack")
    draft.finish(
        "pack",
        product((batch, panels)),
        {
            "type": kind.weight,
            "source": draft.tensor(matrix.tensor, False),
            "target": draft.workspace(workspace, kind.weight, True),
            "depth": c_text(depth),
            "steps": c_text(steps),
            "columns": c_text(columns),
            "panels": c_text(panels),
            "pair": kind.pair,
        },
    )
    return False, workspace


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
