"""The rewriter's interface for the converters of quantized operators."""

from __future__ import annotations

from typing import Any, Protocol

from packager.graph.identity import IdentityMap
from packager.transforms.quantize.constants import Constants
from packager.transforms.quantize.values import Concatenation, Linear, Quantized

Value = Quantized | Linear | Concatenation


class Emitter(Protocol):
    """Emits bindings into the rewritten ``main``, and returns the quantized values of operands.

    ``real`` maps original variables to emitted expressions.
    """

    constants: Constants
    real: IdentityMap[Any]

    def emit(self, expr: Any, name: str = "") -> Any:
        """Bind an expression to a new variable and return it."""

    def value(self, expr: Any) -> Value | None:
        """Return the quantized value of an operand, or None."""

    def linear(self, expr: Any) -> Linear | None:
        """Return an operand as a linear value, or None."""

    def limit(self, expr: Any) -> float:
        """Return an upper bound on the magnitude of an operand."""

    def computed(self, expr: Any, name: str = "") -> Any:
        """Emit an operand in the model's type and return the expression."""
