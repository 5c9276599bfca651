"""Which function writes which operator."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

import onnx

if TYPE_CHECKING:
    from tests.conformance.random_onnx.growth import Growth

Writer = Callable[["Growth", str], None]
WRITERS: dict[str, Writer] = {}


def writes(*operators: str) -> Callable[[Writer], Writer]:
    """Register a function that draws a node of any of these operators."""

    def register(writer: Writer) -> Writer:
        for operator in operators:
            WRITERS[operator] = writer
        return writer

    return register


@functools.cache
def schema(operator: str, opset: int) -> onnx.defs.OpSchema | None:
    """Return what an operator set says of an operator, None if it has none of this name."""
    try:
        found = onnx.defs.get_schema(operator, opset)
    except onnx.defs.SchemaError:
        return None
    return None if found.deprecated else found
