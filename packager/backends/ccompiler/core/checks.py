"""What the checks of patterns share: anchors, extents that are known, element types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax

from packager.backends.base import Match, Pattern
from packager.backends.ccompiler.core.problems import FLOATS

# Element types of anchors.
NUMBERS = (*FLOATS, "int8", "int32")


def anchor(name: str, pattern: Any, check: Callable[[Match], bool]) -> Pattern:
    """Return the pattern of an anchor, an operator with a loop nest of its own."""
    return Pattern(f"ccompiler.{name}", pattern, check=check, anchor=True)


def is_static(extents: Sequence[Any]) -> bool:
    """Whether all extents are known."""
    return all(isinstance(extent, int) for extent in extents)


def dtypes_of(call: Any) -> set[str]:
    """Return the element types of the tensors that a call reads and makes."""
    return {str(value.ty.dtype) for value in (*call.args, call) if isinstance(value.ty, relax.TensorType)}


def has_channels(shape: tuple[Any, ...] | None) -> bool:
    """Whether the number of channels of NHWC is known."""
    return shape is not None and isinstance(shape[-1], int)
