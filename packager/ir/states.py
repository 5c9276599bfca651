"""Tensors that a session keeps between runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packager.bundle.arrays import Array


@dataclass(frozen=True)
class State:
    """A run reads the state as the model's input ``name``, and writes it as the output ``output`` for the next run. In
    a bundle of several models an entry may have only one of them.

    ``initial`` is the initial value, of the input's type and shape; None means zeros.
    """

    name: str
    output: str
    initial: Array | None = None
