"""What the checks of patterns share: anchors, extents that are known, element types."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from tvm import relax
from tvm.ir import GenericConst

from packager.backends.base import Match, Pattern, Search
from packager.backends.ccompiler.core.expressions import expression
from packager.backends.ccompiler.core.moves import VIEWS
from packager.backends.ccompiler.core.problems import FLOATS
from packager.graph.dataflow import operator_of, static_shape_of
from packager.graph.resize import NAME as RESIZE

# Element types of anchors.
NUMBERS = (*FLOATS, "int8", "int32")


def anchor(name: str, pattern: Any, check: Callable[[Match], bool]) -> Pattern:
    """Return the pattern of an anchor, an operator with a loop nest of its own."""
    return Pattern(f"ccompiler.{name}", pattern, check=check, anchor=True)


def readable(pattern: Pattern | Search) -> Pattern | Search:
    """Return a pattern that also refuses constants in the graph that no template reads."""
    if isinstance(pattern, Search):
        return pattern
    return replace(pattern, check=lambda match: _reads_constants(pattern, match) and pattern.check(match))


def _reads_constants(pattern: Pattern, match: Match) -> bool:
    """Whether constants in the graph are numbers, and operands of neither a single anchor nor a view; or tables of a
    resizing, which are part of the code."""
    for call in match.calls:
        if str(getattr(call.op, "name", "")) == RESIZE:
            continue
        needs_tensors = (pattern.anchor and len(match.calls) == 1) or operator_of(call) in VIEWS
        operands = [field for arg in call.args for field in (arg.fields if isinstance(arg, relax.Tuple) else [arg])]
        constants = [operand for operand in operands if isinstance(operand, GenericConst)]
        if any(needs_tensors or math.prod(static_shape_of(constant) or ()) != 1 for constant in constants):
            return False
    return True


def has_expression(call: Any) -> bool:
    """Whether there is a C expression of an elementwise operator for its element types."""
    dtypes = [str(arg.ty.dtype) for arg in call.args if isinstance(arg.ty, relax.TensorType)]
    numbers = [float(arg.value) for arg in call.args if isinstance(getattr(arg, "value", None), int | float)]
    names = ["x"] * len(dtypes)
    return expression(operator_of(call), names, dtypes, str(call.ty.dtype), call.attrs, numbers) is not None


def is_static(extents: Sequence[Any]) -> bool:
    """Whether all extents are known."""
    return all(isinstance(extent, int) for extent in extents)


def dtypes_of(call: Any) -> set[str]:
    """Return the element types of the tensors that a call reads and makes."""
    return {str(value.ty.dtype) for value in (*call.args, call) if isinstance(value.ty, relax.TensorType)}


def has_channels(shape: tuple[Any, ...] | None) -> bool:
    """Whether the number of channels of NHWC is known."""
    return shape is not None and isinstance(shape[-1], int)
