"""Tensors that a session keeps between runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from packager.bundle.arrays import Array


@dataclass(frozen=True)
class State:
    """The model's input ``name`` is what a run begins with, its output ``output`` what the next run begins with. Of
    several models in one bundle some may have the one and some the other.

    ``initial`` is what the first run begins with, of the input's type and shape; None: zeros.
    """

    name: str
    output: str
    initial: Array | None = None
