"""Computes the offset and strides of an operand's heads in its source tensor.

Replays the reshapes, transposes and slices between them on a numpy array of zeros, and reads its strides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tvm import relax, tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_map

from packager.graph.dataflow import Dataflow, axes_of, operator_of, same, scalar_of, shape_of, slice_of
from packager.graph.identity import IdentityMap, IdentitySet

MOVES = ("reshape", "permute_dims", "expand_dims", "squeeze")
# Stand-ins for symbolic extents: distinct primes, so that no two extents are equal by chance.
PRIMES = (5, 7, 11, 13, 17)


@dataclass(frozen=True)
class Heads:
    """An operand as [batch, heads, rows, depth] of ``source``; element (b, h, s, d) is at offset
    ``offset + b * rows * row + s * row + h * head + d``.

    With ``head_major``, as in caches of keys and values, all rows of a head follow each other:
    ``offset + (b * heads / group + h) * rows * row + s * row + d``. Each head of the source is that of ``group``
    consecutive heads of the operand (Ainslie et al. 2023, "GQA"): ``h`` is then divided by ``group``.
    """

    source: Any
    offset: int
    row: int
    head: int
    head_major: bool = False
    group: int = 1


@dataclass(frozen=True)
class Operand:
    """A matmul operand as [batch, heads, rows, depth], and the views from ``source`` to it, in order.

    Its elements are scaled by ``scale``.
    """

    source: Any
    views: tuple[Any, ...]
    shape: tuple[Any, ...]
    swapped: bool = False
    scale: float = 1.0

    def transposed(self) -> Operand:
        """Return the operand with its last two axes swapped."""
        b, h, s, d = self.shape
        return replace(self, shape=(b, h, d, s), swapped=True)

    def private(self, flow: Dataflow, inner: IdentitySet) -> Operand:
        """Return the operand from the last view on that others than ``inner`` read, which is then its source."""
        shared = [
            view for view in self.views if flow.is_result(view) or any(r not in inner for r in flow.readers(view))
        ]
        if not shared:
            return self
        at = next(index for index, view in enumerate(self.views) if view.same_as(shared[-1]))
        at += flow.call(shared[-1], "split") is not None  # a tuple: its field is what can be read
        return self.behind(flow, at)

    def behind(self, flow: Dataflow, at: int) -> Operand:
        """Return the operand from one of its views on, which is then its source."""
        views = self.views[at + 1 :]
        factors = [factor[1] for view in views if (factor := scaled_by(flow.value(view))) is not None]
        return replace(self, source=self.views[at], views=views, scale=math.prod(factors))


def follow_views(flow: Dataflow, variable: Any, *, widely: bool = False, repeated: bool = False) -> Operand | None:
    """Trace an operand back through views; stops before a view that fuses batch and heads.

    ``widely``: multiplications by scalars count as views; ``repeated``: so do repeated heads.
    """
    views: list[Any] = []
    scale = 1.0
    extents = shape_of(variable)
    if extents and len(extents) == 3:
        swap = flow.call(variable, "permute_dims") if widely else None
        if swap is not None and axes_of(swap) == (0, 2, 1):
            views.append(variable)
            variable, extents = swap.args[0], (extents[0], extents[2], extents[1])
        inner = shape_of(flow.value(variable).args[0]) if flow.call(variable, "reshape") is not None else None
        if inner is None or len(inner) != 4 or not same(inner[2:], extents[1:]):
            return None
        views.append(variable)
        variable = flow.value(variable).args[0]
        extents = inner if len(views) == 1 else (*inner[:2], inner[3], inner[2])
    if not extents or len(extents) != 4:
        return None
    while True:
        value = flow.value(variable)
        if operator_of(value) in MOVES or (widely and slice_of(value) is not None):
            views.append(variable)
            variable = value.args[0]
        elif isinstance(value, relax.TupleGetItem) and flow.call(value.tuple_value, "split") is not None:
            views += [variable, value.tuple_value]
            variable = flow.value(value.tuple_value).args[0]
        elif repeated and operator_of(value) == "broadcast_to":
            views.append(variable)
            variable = value.args[0]
        elif widely and (factor := scaled_by(value)) is not None:
            views.append(variable)
            variable, number = factor
            scale *= number
        else:
            return Operand(variable, tuple(reversed(views)), extents, scale=scale)


def scaled_by(call: Any) -> tuple[Any, float] | None:
    """Return (operand, factor) of a multiplication or division by a scalar; None for other calls."""
    name = operator_of(call)
    if name not in ("multiply", "divide"):
        return None
    first, second = call.args
    number = scalar_of(second)
    if number is None and name == "multiply":
        first, number = second, scalar_of(first)
    if not number:
        return None
    return first, number if name == "multiply" else 1 / number


def locate(flow: Dataflow, operand: Operand, *, widely: bool = False) -> Heads | None:
    """Return the layout of an operand in its source; None if its strides are not constant.

    ``widely``: heads may precede rows, and be repeated.
    """
    first, second = (_places(flow, operand, shift) for shift in (0, 1))
    for place in first:
        if place in second and (widely or not (place.head_major or place.group > 1)):
            return replace(place, source=operand.source)
    return None


def _places(flow: Dataflow, operand: Operand, shift: int) -> list[Heads]:
    """Return the layouts, without a source, that an operand has for one choice of the symbolic extents."""
    found = _replay(flow, operand, shift)
    if found is None:
        return []
    array, offset, group = found
    batch, head, row, step = array.strides
    batches, heads, rows, depth = array.shape
    if step != 1 and depth > 1:
        return []
    layouts = []
    if batches == 1 or batch == rows * row:
        layouts.append(Heads(None, offset, row, head, group=group))
    if (heads == 1 or head == rows * row) and (batches == 1 or batch == heads * rows * row):
        layouts.append(Heads(None, offset, row, 0, head_major=True, group=group))
    return layouts


def _replay(flow: Dataflow, operand: Operand, shift: int) -> tuple[NDArray[Any], int, int] | None:
    """Return an array of an operand's strides for one choice of the symbolic extents, its offset in the source, and
    how many heads each of its heads is; None if it is no view of the source."""
    numbers: IdentityMap[int] = IdentityMap()

    def known(extents: Sequence[Any]) -> tuple[int, ...] | None:
        sizes = tuple(number_of(extent, numbers, shift) for extent in extents)
        return None if any(size < 0 for size in sizes) else sizes  # of large divisors: these primes say nothing of it

    shape = known(shape_of(operand.source) or ())
    if shape is None:
        return None
    array: NDArray[Any] = np.zeros(shape, np.int8)  # with all its elements: a reshape that is no view copies them
    start = array.__array_interface__["data"][0]
    pending: list[NDArray[Any]] = []
    # Whether [batch, heads, group, rows, depth] stands without its third axis, [batch * heads, rows, depth] with both.
    group, repeated, fused = 1, False, False
    for view in operand.views:
        value = flow.value(view)
        name, axes = operator_of(value), axes_of(value)
        wanted = known(shape_of(view) or ())
        if name == "split":
            pending = _split(array, value)
        elif isinstance(value, relax.TupleGetItem):
            array = pending[int(value.index)]
        elif name in ("multiply", "divide"):
            continue
        elif name == "strided_slice":
            array = array[slice_of(value)]
        elif wanted is None:
            return None
        elif name == "broadcast_to" and array.shape == wanted:
            continue
        elif name == "broadcast_to":
            shared = None if group > 1 else _repeated_heads(array, wanted, known(operand.shape))
            if shared is None:
                return None
            (array, group), repeated = shared, True
        elif repeated or fused or (group > 1 and axes is None):
            whole = (array.shape[0], array.shape[1] * group, *array.shape[2:])
            if axes is not None and fused and axes[0] == 0:
                array = array.transpose([0, 1, *(axis + 1 for axis in axes[1:])])
            elif name == "reshape" and wanted == whole:
                repeated = fused = False
            elif name == "reshape" and wanted == (whole[0] * whole[1], *whole[2:]):
                repeated, fused = False, True
            else:
                return None
        elif axes is not None:
            array = array.transpose(axes)
        elif _fuses(array, wanted):
            fused = True
        else:
            array = array.view()
            try:
                array.shape = wanted
            except (AttributeError, ValueError):  # no view, or of a size that is equal for the sizes of a run alone
                if not _fuses(array, wanted):
                    return None
                fused = True
    found = None if repeated else _as_heads(array, known(operand.shape), operand.swapped, group)
    return None if found is None else (found, found.__array_interface__["data"][0] - start, group)


def _repeated_heads(
    array: NDArray[Any], wanted: tuple[int, ...], expected: tuple[int, ...] | None
) -> tuple[NDArray[Any], int] | None:
    """Return a source's view as [batch, heads, ...] that is repeated to ``wanted`` behind its heads, and how often.

    ``expected`` is the operand in the end. ``Tile`` becomes a reshape with axes of 1 for all that is not repeated.
    """
    grown = [axis for axis, (own, full) in enumerate(zip(array.shape, wanted, strict=False)) if own != full]
    if expected is None or array.ndim != len(wanted) or len(grown) != 1 or array.shape[grown[0]] != 1:
        return None
    (axis,) = grown
    group = wanted[axis]
    leading, trailing = array.shape[:axis], array.shape[axis + 1 :]
    heads = (expected[0], expected[1] // group)
    ends = [end for end in (expected[2:], expected[:1:-1]) if _without_ones(end) == _without_ones(trailing)]
    fused = (math.prod(heads),)  # an axis can be split without copies
    if not ends or _without_ones(leading) not in (_without_ones(heads), _without_ones(fused)):
        return None
    return array.reshape((*heads, *ends[0])), group


def _without_ones(extents: Sequence[int]) -> list[int]:
    return [extent for extent in extents if extent != 1]


def _as_heads(array: NDArray[Any], expected: tuple[int, ...] | None, swapped: bool, group: int) -> NDArray[Any] | None:
    """Return a source's view as [batch, heads, rows, depth], each head ``group`` of the ``expected``.

    The source may have batch and heads in one axis.
    """
    if expected is None:
        return None
    if array.ndim == 3:
        b, h, s, d = expected
        array = array.reshape((b, h, d, s) if swapped else expected)
    if array.ndim != 4:
        return None
    array = array.transpose([0, 1, 3, 2]) if swapped else array
    return array if (array.shape[0], array.shape[1] * group, *array.shape[2:]) == expected else None


def _fuses(array: NDArray[Any], wanted: tuple[int, ...]) -> bool:
    """Whether a reshape makes batch and heads one axis, which need not have a constant stride."""
    return array.ndim == 4 and wanted == (array.shape[0] * array.shape[1], *array.shape[2:])


def _split(array: NDArray[Any], call: Any) -> list[NDArray[Any]]:
    axis, sections = int(call.attrs.axis), call.attrs.indices_or_sections
    if isinstance(sections, int | tirx.IntImm):
        return np.split(array, int(sections), axis)
    return np.split(array, [int(index) for index in sections], axis)


def number_of(extent: Any, numbers: IdentityMap[int], shift: int) -> int:
    """Evaluate an extent with a prime for each variable."""
    if isinstance(extent, int):
        return extent
    if isinstance(extent, tirx.Var):
        return numbers.setdefault(extent, PRIMES[(len(numbers) + shift) % len(PRIMES)])
    known = structural_map(extent, (tirx.Var, lambda v: tirx.IntImm(str(v.ty.dtype), number_of(v, numbers, shift))))
    return int(Analyzer().simplify(known))
