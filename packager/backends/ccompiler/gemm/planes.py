"""Blocks of the result of a convolution of planes, NCHW as it is: lines of pixels, and what their windows read.

What a block reads of a plane is staged on the stack, with zeros around it, the pixels of each residue of the strides
one after the other. There a tap of the window is a distance, for all lines of a block: their pixels, with what is
between the lines, are the columns of a product, read where they are. So nothing is copied for a tap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from packager.backends.ccompiler.core.machine import COLUMNS, Machine
from packager.backends.ccompiler.core.operations import Window
from packager.backends.ccompiler.gemm.blocks import even_size
from packager.codegen.templates import render

# The maximum columns of a block: with those between lines.
MOST = 128
# Elements of what is staged that the first-level cache holds beside filters and sums; and that are the maximum.
NEAR, MOST_STAGED = 6144, 16384


@dataclass(frozen=True)
class PlaneBlocks:
    """Blocks of ``lines`` x ``places`` of a result whose sides are ``out``, [D, H, W]; data has sides ``extent``."""

    window: Window
    channels: int
    extent: tuple[int, ...]
    out: tuple[int, ...]
    lines: int
    places: int

    @property
    def reach(self) -> tuple[int, int]:
        """Lines and places that windows read beyond as many as the result has."""
        steps = zip(self.window.size, self.window.dilation, self.window.strides, strict=True)
        _, tall, wide = ((size - 1) * dilation // stride for size, dilation, stride in steps)
        return tall, wide

    @property
    def residues(self) -> tuple[int, ...]:
        """Residues of the strides that taps read."""
        steps = zip(self.window.size, self.window.dilation, self.window.strides, strict=True)
        return tuple(min(stride, (size - 1) * dilation + 1) for size, dilation, stride in steps)

    @property
    def pitch(self) -> int:
        """Elements from a line to the next."""
        return self.places + self.reach[1]

    @property
    def high(self) -> int:
        """Lines that are staged of a residue."""
        return self.lines + self.reach[0]

    @property
    def columns(self) -> int:
        """Columns of the product of a block, in whole panels."""
        count = (self.lines - 1) * self.pitch + self.places
        return -(-count // COLUMNS) * COLUMNS

    @property
    def staged(self) -> int:
        """Elements that are staged, with those that the last vectors read beyond."""
        _, tall, wide = self.residues
        return self.channels * self.window.size[0] * tall * wide * self.high * self.pitch + MOST

    @property
    def staged_of_all(self) -> int:
        """Elements that all blocks stage."""
        return self.out[0] * self.tops * self.parts * (self.staged - MOST)

    @property
    def tops(self) -> int:
        """Blocks along the lines of a plane."""
        return -(-self.out[1] // self.lines)

    @property
    def parts(self) -> int:
        """Blocks of a line."""
        return -(-self.out[2] // self.places)

    @property
    def used(self) -> float:
        """The part of the columns of all blocks that are pixels."""
        return self.out[1] * self.out[2] / (self.tops * self.parts * self.columns)

    @property
    def fields(self) -> str:
        """The fields of a ``pk_planes_t``."""
        window = self.window
        arrays = (self.extent, window.size, window.strides, window.dilation, (1, *self.residues[1:]))
        texts = ["{" + ", ".join(map(str, array)) + "}" for array in arrays]
        return f"{{ {', '.join(texts)}, {self.channels}, {self.pitch}, {self.high} }}"


def find_plane_blocks(window: Window, channels: int, extent: Sequence[int], out: Sequence[int]) -> PlaneBlocks | None:
    """Return blocks that use the most of their columns, among those of which the cache holds what is staged; or any."""

    def blocks(lines: int, places: int) -> PlaneBlocks:
        return PlaneBlocks(window, channels, tuple(extent), tuple(out), lines, places)

    if min(out) < 1:
        return None
    sizes = {even_size(out[2], most) for most in range(COLUMNS, MOST + 1, COLUMNS)}
    lines = {even_size(out[1], most) for most in range(1, MOST // min(sizes) + 1)}
    made = [each for high in lines for places in sizes if (each := blocks(high, places)).columns <= MOST]
    fitting = [each for each in made if each.staged <= MOST_STAGED and (each.lines == 1 or each.places == out[2])]

    def speed(each: PlaneBlocks) -> float:
        """Tiles of one panel have many instructions beside their products; what the cache does not hold comes late."""
        return each.used * each.columns / (each.columns + COLUMNS) * (1.0 if each.staged <= NEAR else 0.9)

    return max(fitting, key=speed, default=None)


def render_planes(machine: Machine, sources: Sequence[str]) -> list[str]:
    """Return the C of what stages planes, if one of these functions calls it."""
    is_called = any("pk_stage_planes(" in source for source in sources)
    return [render("ccompiler/gemm/planes.h.j2", lanes=machine.vector_bytes // 4).trimmed()] if is_called else []
