"""The type of a numpy array of any element type, for annotations on both sides."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

Array = NDArray[Any]
