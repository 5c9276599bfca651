"""Convolutions with channels last whose weights a run computes: packed as constant ones are, before the product.

Networks that modulate filters by a style, or mix them for each sample, have such. All sums are direct: Winograd's way
would transform the filters in each run, too.
"""

from __future__ import annotations

from collections.abc import Container

from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.machine import COLUMNS, KINDS
from packager.backends.ccompiler.core.operations import CONVOLUTIONS, Operation, spatial, window_of
from packager.backends.ccompiler.core.shapes import product
from packager.backends.ccompiler.core.stages import Stage
from packager.backends.ccompiler.gemm.copies import Convolution
from packager.backends.ccompiler.gemm.loop_nest import Product, add_product
from packager.backends.ccompiler.gemm.windows import find_rows


def is_computed_conv(anchor: Operation, constants: Container[int]) -> bool:
    """Whether a convolution has weights that are no constant."""
    return anchor.name in CONVOLUTIONS and anchor.uses[1].tensor.argument not in constants


def add_computed_conv(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the functions of a stage to its group: packing of the weights, then the product. Raises CannotRender."""
    data, weight = anchor.uses
    window, groups = window_of(weight.shape[1:-1], anchor.attributes, 3), int(anchor.attributes.groups)
    kind, filters = KINDS[data.tensor.dtype], int(weight.shape[0]) // groups
    conv = Convolution(spatial(data.shape, 3), spatial(anchor.result.shape, 3), window, groups, kind)
    packing = find_rows("", conv).packing
    depth = packing.slices * packing.stretches * packing.length
    panels = -(-filters // COLUMNS)
    workspace = group.workspace(groups * panels * depth * COLUMNS, weight.tensor.dtype)

    pack = group.function("pack")
    values = {
        "type": kind.weight,
        "source": pack.tensor(weight.tensor, False),
        "target": pack.workspace(workspace, kind.weight, True),
        "filters": filters,
        "panels": panels,
        "packing": packing,
        "given": int(product(weight.shape[1:])) // packing.stretches,
    }
    pack.finish("gemm/pack_filters", groups * panels, values)

    draft = group.function("conv2d")
    rows = find_rows(draft.tensor(data.tensor, False), conv)
    place = (rows.data, rows.blocks.row, f"batch * {filters} + " if groups > 1 else "", rows.setup)
    sizes = Product(groups, rows.blocks, depth, filters, *place, shared=groups > 1)
    add_product(draft, "gemm/product", sizes, stage, anchor, kind, draft.workspace(workspace, kind.weight, False))
