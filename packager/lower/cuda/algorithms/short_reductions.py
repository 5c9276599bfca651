"""Lower reductions of very few elements for GPUs to expressions, which fuse with what comes before and after.

Coordinates, quaternions, complex numbers and branches are reduced by one thread anyway; as loops they would be kernels
of their own, since TVM fuses nothing of another shape with what follows a reduction.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import reduce
from typing import Any

from tvm import relax, te, tirx
from tvm.ir import Op

from packager.bundle.dtypes import HALVES
from packager.graph.dataflow import operator_of, shape_of
from packager.ir.pattern_kinds import INJECTIVE
from packager.lower.legalize.min_max import kept_indices, legalize_min_max, reduced_shape

MOST = 4
_COMBINED: dict[str, Callable[[Any, Any], Any]] = {
    "sum": lambda a, b: a + b,
    "mean": lambda a, b: a + b,
    "prod": lambda a, b: a * b,
    "max": tirx.max,
    "min": tirx.min,
}


def legalize_short_reduction(builder: relax.BlockBuilder, call: relax.Call) -> relax.Expr:
    """Legalize ``sum``, ``mean``, ``prod``, ``max`` or ``min``: of MOST elements or fewer as one expression."""
    name, shape, dtype = operator_of(call), shape_of(call.args[0]), str(call.ty.dtype)
    rank = len(shape or ())
    axes = range(rank) if call.attrs.axis is None else sorted(int(axis) % rank for axis in call.attrs.axis)
    reduced = [shape[axis] for axis in axes] if shape else []
    length = math.prod(reduced) if all(isinstance(extent, int) for extent in reduced) else 0
    if shape is None or not 0 < length <= MOST or len(axes) == rank or dtype == "bool":
        if name in ("max", "min"):
            return legalize_min_max(builder, call)
        return Op.get(f"relax.{name}").get_attr("FLegalize")(builder, call)
    keepdims = bool(call.attrs.keepdims)
    wide = "float32" if dtype in HALVES else dtype

    def compute(operand: Any) -> Any:
        def element(*index: Any) -> Any:
            kept = kept_indices(index, axes, keepdims)
            place = [None if axis in axes else next(kept) for axis in range(rank)]
            values = []
            for each in itertools.product(*(range(shape[axis]) for axis in axes)):
                chosen = iter(each)
                values.append(operand(*(next(chosen) if i is None else i for i in place)).astype(wide))
            result = reduce(_COMBINED[name], values)
            return (result / tirx.const(length, wide) if name == "mean" else result).astype(dtype)

        return te.compute(reduced_shape(shape, axes, keepdims), element, name=name)

    return builder.call_te(compute, call.args[0], primfunc_name_hint=name, primfunc_attrs={"op_pattern": INJECTIVE})


SHORT_REDUCTIONS = dict.fromkeys((f"relax.{name}" for name in _COMBINED), legalize_short_reduction)
