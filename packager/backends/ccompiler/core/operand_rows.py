"""Where the rows of a stage read an operand, which may be broadcast, as C."""

from __future__ import annotations

from collections.abc import Sequence

from packager.backends.ccompiler.core.operations import CannotRender, Use
from packager.backends.ccompiler.core.shapes import Extent, Shape, c_text, equal, product
from packager.backends.ccompiler.core.stages import is_full, mask_of, split_rows


def operand_offset(use: Use, shape: Shape, inner: Extent) -> tuple[str, str]:
    """Return where the run of an operand of an operator with a result of ``shape`` starts, and the index in the run.

    Both are C expressions, the first over ``row`` and ``start``; the index is ``j``, or ``0`` for one element per row.
    """
    if is_full(use, shape):
        return c_sum(c_row("row", inner), "start"), "j"
    axis = split_rows(shape, inner)
    if axis is None:
        raise CannotRender(f"an operand of shape {tuple(use.shape)} for rows of {inner}")
    mask = mask_of(use, shape)
    along = any(has and not equal(extent, 1) for has, extent in zip(mask[axis:], shape[axis:], strict=True))
    rows = _row_index(mask[:axis], Shape(shape[:axis]))
    offset = c_row(rows, inner if along else 1) if rows else ""
    return c_sum(offset, "start" if along else ""), "j" if along else "0"


def _row_index(mask: Sequence[bool], shape: Shape) -> str:
    """Return C for the row that a broadcast operand reads for ``row`` of ``shape``; '' if it has only one."""
    axes = [axis for axis in range(len(shape)) if not equal(shape[axis], 1)]
    if not any(mask[axis] for axis in axes):
        return ""
    if all(mask[axis] for axis in axes):
        return "row"
    terms = []
    stride: Extent = 1
    position = len(axes)
    while position > 0:
        stop = position
        while position > 0 and mask[axes[position - 1]] == mask[axes[stop - 1]]:
            position -= 1
        extent = product(shape[axis] for axis in axes[position:stop])
        if mask[axes[stop - 1]]:
            after = product(shape[axis] for axis in axes[stop:])
            index = "row" if equal(after, 1) else f"row / {c_text(after)}"
            index = f"({index})" if position == 0 else f"({index} % {c_text(extent)})"
            terms.append(c_row(index, stride))
            stride = product((stride, extent))
    return terms[0] if len(terms) == 1 else "(" + " + ".join(reversed(terms)) + ")"


def c_row(index: str, length: Extent) -> str:
    """Return C for where a row begins."""
    return index if equal(length, 1) else f"{index} * {c_text(length)}"


def c_sum(*terms: str) -> str:
    """Return C for a sum of terms that are not empty."""
    return " + ".join(term for term in terms if term) or "0"
