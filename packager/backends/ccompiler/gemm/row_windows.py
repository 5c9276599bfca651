"""Windows of a convolution over NHWC that are read where they are: in the lines of the data, or in a copy with edges.

What a window meets in one line of the data is in one piece there, and the windows of neighboring places are at one
distance. So a tile needs no copy of each window: its sums go from line to line. Where windows reach beyond the edges,
or a step beyond the data, a block first copies the lines that it reads, with zeros around them: a third of what 3x3
windows would be.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from packager.backends.ccompiler.core.shapes import Shape, product
from packager.backends.ccompiler.gemm.blocks import ALIASED, BLOCK, COPIED, Blocks, Data

if TYPE_CHECKING:
    from packager.backends.ccompiler.core.tile import Kind
    from packager.backends.ccompiler.core.window import Window

# Steps of a window's line at most: more of them are taken in chunks.
MOST_STEPS = 512
# Steps of a copy at most, as much as the buffer for windows has.
MOST_COPIED = BLOCK * COPIED
STEP = 4  # bytes of a step, where data is read as it is stored


def windows_in_lines(x: str, data: Shape, result: Shape, window: Window, kind: Kind) -> tuple[Blocks, Data] | None:
    """Return how a convolution reads its windows in lines of its data; None where that does not fit.

    Each line begins a step: of a last one that is not full the weights must be zeros.
    """
    if not all(isinstance(extent, int) for extent in (*data[1:], *result[1:])) or window.dilation != (1, 1):
        return None
    height, width, channels = data[1:]
    lines, places = result[1:3]
    (tall, wide), (down, right), (top, left, _, _) = window.size, window.strides, window.padding
    stretch, pitch = -(-wide * channels // kind.unit), right * channels
    beyond = stretch * kind.unit - wide * channels  # elements that the last step of a window reads after it
    if kind.converts or stretch > MOST_STEPS or pitch % (ALIASED * kind.unit) == 0:
        return None
    copies = window.is_padded or beyond > 0
    parts = -(-places // BLOCK)
    part = -(-places // parts)  # places of a line that a block has
    met = (part - 1) * right + wide  # places of the data that they meet
    together = BLOCK // places if parts == 1 else 1  # lines of a block
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
