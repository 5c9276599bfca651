"""matmul: the matrix is packed at build time if it is constant, else in each run, unless there are few rows."""

from __future__ import annotations

from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.machine import COLUMNS, KINDS, Kind
from packager.backends.ccompiler.core.operations import Operation, Use
from packager.backends.ccompiler.core.shapes import Extent, c_text, ceil_div, equal, product
from packager.backends.ccompiler.core.stages import Stage
from packager.backends.ccompiler.gemm.blocks import even_blocks, rows_of
from packager.backends.ccompiler.gemm.few_rows import add_few_rows, are_few
from packager.backends.ccompiler.gemm.loop_nest import Product, add_product, packer


def add_dense(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the functions of a stage to its group: packing of the matrix, then the product. Raises CannotRender."""
    data, matrix = anchor.uses
    kind = KINDS[data.tensor.dtype]
    depth, columns = data.shape[-1], stage.inner
    batched = not equal(product(matrix.shape[:-2]), 1)
    batch = product(data.shape[:-2]) if batched else 1
    rows = data.shape[-2] if batched else product(data.shape[:-1])
    argument = matrix.tensor.argument
    if (argument is None or argument not in group.graph.constants) and are_few(stage, anchor, rows):
        add_few_rows(stage, anchor, group, batch, int(rows))
        return
    is_packed, index = _packed(matrix, kind, batch, depth, columns, group)

    draft = group.function("dense")
    x = draft.tensor(data.tensor, False)
    w = draft.packed(index, kind.weight) if is_packed else draft.workspace(index, kind.weight, False)
    first = f"batch * {c_text(rows)} + first" if batched else "first"
    blocks = even_blocks(rows)
    sizes = Product(batch, blocks, depth, columns, rows_of(x, first, depth, depth, kind, blocks), f"{first} + r")
    add_product(draft, "gemm/product", sizes, stage, anchor, kind, w)


def _packed(
    matrix: Use, kind: Kind, batch: Extent, depth: Extent, columns: Extent, group: GroupDraft
) -> tuple[bool, int]:
    """Pack the matrix; return whether that happens at build time, and the index of the packing or workspace."""
    argument = matrix.tensor.argument
    if argument is not None and argument in group.graph.constants and all(isinstance(e, int) for e in matrix.shape):
        shape = (int(product(matrix.shape[:-2])), int(depth), int(columns))
        layout = f"kn{COLUMNS}" + (f"p{kind.pair}" if kind.pair > 1 else "")
        return True, group.packing(argument, layout, packer(shape, kind.pair))
    steps, panels = ceil_div(depth, kind.pair), ceil_div(columns, COLUMNS)
    workspace = group.workspace(product((batch, panels, steps, COLUMNS, kind.pair)), matrix.tensor.dtype)
    draft = group.function("pack")
    draft.finish(
        "gemm/pack",
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
