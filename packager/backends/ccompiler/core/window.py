"""The sliding window of a convolution or pooling: kernel, strides, padding, dilation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Window:
    """The attributes of a convolution: [vertical, horizontal], padding also [top, left, bottom, right]."""

    size: tuple[int, int]
    strides: tuple[int, int]
    dilation: tuple[int, int]
    padding: tuple[int, int, int, int]

    @property
    def is_padded(self) -> bool:
        """Whether it reads beyond the edges."""
        return any(self.padding)

    @property
    def is_place(self) -> bool:
        """Whether it meets just the place that it is for."""
        return self.size == (1, 1) and self.strides == (1, 1) and not self.is_padded


def window_of(size: Any, attributes: Any) -> Window:
    """Return the window of TVM's attributes of a convolution or a pooling."""
    top, left, bottom, right = (int(value) for value in attributes.padding)
    vertical, horizontal = (tuple(int(value) for value in pair) for pair in (attributes.strides, attributes.dilation))
    return Window((int(size[0]), int(size[1])), vertical, horizontal, (top, left, bottom, right))  # type: ignore[arg-type]
