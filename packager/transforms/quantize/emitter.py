"""The interface between the rewriter and the lowering of quantized operators: what these may ask it for."""

from __future__ import annotations

from typing import Any, Protocol

from packager.graph.identity import IdentityMap
from packager.transforms.quantize.constants import Constants
from packager.transforms.quantize.values import Joined, Linear, Quantized

Value = Quantized | Linear | Joined


class Emitter(Protocol):
    """Emits bindings into the rewritten ``main``, and tells what its operands stand for.

    ``real`` maps an original variable to the expression that computes it, once it is emitted.
    """

    constants: Constants
    real: IdentityMap[Any]

    def emit(self, expr: Any, name: str = "") -> Any:
        """Bind an expression to a new variable, and return that."""

    def value(self, expr: Any) -> Value | None:
        """Return the quantized value of an operand, or None."""

    def linear(self, expr: Any) -> Linear | None:
        """Return an operand as a sum of terms, or None."""

    def limit(self, expr: Any) -> float:
        """Return an upper bound of the magnitude of an operand."""

    def computed(self, expr: Any, name: str = "") -> Any:
        """Return the expression that computes an operand."""
