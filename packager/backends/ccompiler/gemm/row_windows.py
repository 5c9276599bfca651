"""Read conv windows of NHWC in place, row by row, without im2col.

The part of a window in one line of the image is contiguous, and neighboring windows have a constant pitch: a tile
accumulates line by line, without a copy of each window. With padding, or where the last step reads beyond the window,
a block first copies its lines with zeros around them: a third of the size of im2col for 3x3 windows.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from packager.backends.ccompiler.core.shapes import Shape, product
from packager.backends.ccompiler.gemm.blocks import ALIASED, BLOCK, COPIED, Blocks, Data

if TYPE_CHECKING:
    from packager.backends.ccompiler.core.machine import Kind
    from packager.backends.ccompiler.core.operations import Window

# The maximum steps of a window's line; longer ones are gathered in chunks.
MOST_STEPS = 512
# The maximum steps of a copy: the size of the buffer for gathered windows.
MOST_COPIED = BLOCK * COPIED
STEP = 4  # bytes of a step without conversion


def windows_in_lines(x: str, data: Shape, result: Shape, window: Window, kind: Kind) -> tuple[Blocks, Data] | None:
    """Return the blocks and rows of a convolution that reads its windows in place, or None if it cannot.

    Each line of a window starts a new step; the weights of a partial last step must be padded with zeros.
    """
    if not all(isinstance(extent, int) for extent in (*data[1:], *result[1:])) or window.dilation != (1, 1):
        return None
    height, width, channels = data[1:]
    lines, places = result[1:3]
    (tall, wide), (down, right), (top, left, _, _) = window.size, window.strides, window.padding
    stretch, pitch = -(-wide * channels // kind.unit), right * channels
    beyond = stretch * kind.unit - wide * channels  # elements that the last step reads beyond the window
    if kind.converts or stretch > MOST_STEPS or pitch % (ALIASED * kind.unit) == 0:
        return None
    copies = window.is_padded or beyond > 0
    parts = -(-places // BLOCK)
    part = -(-places // parts)  # pixels of a line per block
    met = (part - 1) * right + wide  # pixels of the image that they read
    together = BLOCK // places if parts == 1 else 1  # lines per block
    if copies:
        together = min(together, ((MOST_COPIED * kind.unit - beyond) // (met * channels) - tall) // down + 1)
    if together < 1:
        return None
    together = -(-lines // -(-lines // together))

    blocks = Blocks(result[0], lines * places, together * places)
    group, groups = str(places), f"count / {places}"
    counts: tuple[int, ...] = (places,)
    if parts > 1:
        blocks = Blocks(product((result[0], lines)), places, part)
        group, groups, counts = "count", "1", (part, places - (parts - 1) * part)
    prepare = (
        f"const int64_t top = first / {places} % {lines} * {down} - {top}, left = first % {places} * {right} - {left};"
        f"\n        const {kind.data} *image = {x} + first / {lines * places} * {height * width * channels};"
    )
    if copies:
        line, source = met * channels, "a"
        copied = ((together - 1) * down + tall) * line + beyond
        read = f"(const uint8_t *)image, {height}, {width}, {STEP // kind.unit * channels}, top, left"
        prepare += f"\n        pk_pad_lines((uint8_t *)a, {read}, ({groups} - 1) * {down} + {tall}, {met});"
    else:
        line, copied = width * channels, 0
        source = f"image + (top * {width} + left) * {channels}"
    source = f"{source} + done / {stretch} * {line}"
    layout = f"{group}, {groups}, {pitch}, {down * line}, taken / {stretch}, {line}"
    return blocks, Data(source, layout, buffer=copied, prepare=prepare, stretch=stretch, groups=counts)
