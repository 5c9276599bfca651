"""Permutations of axes: whole rows where the last axis stays, else tiles of 16 x 16 elements."""

from __future__ import annotations

from typing import Any

from packager.backends.ccompiler.core.expressions import CTYPES
from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.operations import Operation
from packager.backends.ccompiler.core.permutations import Permutation, permutation_of
from packager.backends.ccompiler.core.shapes import c_text, ceil_div, product
from packager.bundle.dtypes import DTYPES

TILE = 16
# Elements along the result's rows that are one unit of work.
BAND = 256
# Rows up to this length are copied by a loop of known length.
SHORT = 64


def add_transpose(anchor: Operation, group: GroupDraft) -> None:
    """Add the function of a permutation to its group."""
    data, result = anchor.uses[0], anchor.result
    moved = permutation_of(data.shape, [int(axis) for axis in anchor.attributes.axes])
    draft = group.function("transpose")
    itemsize = DTYPES[result.dtype].itemsize
    last = len(moved.extents) - 1
    values: dict[str, Any] = {
        "stored": CTYPES[result.dtype].stored,
        "x": draft.tensor(data.tensor, False),
        "y": draft.tensor(result, True),
        "itemsize": itemsize,
        "bits": 8 * itemsize,
    }
    if moved.axes[-1] == last:
        row = moved.extents[last]
        short = isinstance(row, int) and row * itemsize <= SHORT
        values |= {"row": c_text(row), "short": short, "outer": _outer(moved, (last,))}
        draft.finish("ops/permuted_rows", product(moved.extents[:last]), values)
        return
    along = moved.axes[-1]  # the source's axis that becomes the result's last
    inner, count = moved.extents[last], moved.extents[along]
    blocks, bands = ceil_div(inner, TILE), ceil_div(count, BAND)
    outer = [extent for axis, extent in enumerate(moved.extents) if axis not in (last, along)]
    values |= {
        "outer": _outer(moved, (last, along)),
        "inner": c_text(inner),
        "count": c_text(count),
        "blocks": c_text(blocks),
        "bands": c_text(bands),
        "tile": TILE,
        "band": BAND,
        "from_pitch": c_text(moved.strides[along]),
        "to_pitch": c_text(moved.pitches[last]),
    }
    draft.finish("ops/transpose", product((*outer, bands, blocks)), values)


def _outer(moved: Permutation, others: tuple[int, ...]) -> list[dict[str, str]]:
    """Return extents and strides of the source's axes but ``others``, from the result's last axis to its first."""
    return [
        {
            "extent": c_text(moved.extents[axis]),
            "from": c_text(moved.strides[axis]),
            "to": c_text(moved.pitches[axis]),
        }
        for axis in reversed(moved.axes)
        if axis not in others
    ]
