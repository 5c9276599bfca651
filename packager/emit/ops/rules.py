"""All rules: the name of a Relax operator without ``relax.`` -> a function of the writer and a call.

A rule returns the name of the result's value, a list of names for a tuple, or a ShapeExpr for a shape. It raises
CannotWriteError for a use of the operator that ONNX does not have.
"""

from __future__ import annotations

from packager.emit.function_writer import Rules
from packager.emit.ops import elementwise, indexing, movement, normalization, recurrent, reductions, windows

RULES: Rules = {
    **elementwise.RULES,
    **movement.RULES,
    **reductions.RULES,
    **indexing.RULES,
    **windows.RULES,
    **normalization.RULES,
    **recurrent.RULES,
}
