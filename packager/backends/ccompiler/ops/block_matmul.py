"""Products with weights that are quantized in blocks: their bits become floats in registers, where they are used.

A panel is 16 columns wide, a band has four. A word of a lane has the weights of one column at consecutive depths,
unsigned. Few rows are bound by the bytes of the weights, where CPUs multiply bytes: rows become integers of three
bytes, or fewer where the model allows it, whose sums over a block are exact. More rows are multiplied as floats, and
share what is unpacked.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from packager.backends.ccompiler.core.expressions import as_result
from packager.backends.ccompiler.core.functions import FunctionDraft, GroupDraft
from packager.backends.ccompiler.core.machine import BYTE_PAIRS, COLUMNS, Machine
from packager.backends.ccompiler.core.operations import CannotRender, Operation, Use
from packager.backends.ccompiler.core.shapes import c_text, ceil_div, product
from packager.backends.ccompiler.core.stages import Stage
from packager.backends.ccompiler.gemm.loop_nest import pad
from packager.graph.block_weights import BlockFormat, format_of, unpack

if TYPE_CHECKING:
    from packager.bundle.arrays import Array

BAND = 64  # columns of a unit of work
ROWS = 16  # of a unit of work
EXACT = 3  # bytes of a number that are as exact as float32
WORD = 32  # bits
# Accumulators of a tile that hide the latency of an addition.
CHAINS = 8
# Weights of a column for which a unit gathers its rows: they fit the L1 cache, and lie in different sets of it.
GATHERED = 256
APART = 16
AHEAD = 2048  # words that are fetched before they are read


@dataclass(frozen=True)
class Tile:
    """Rows times panels whose weights are read in turns, ``together`` vectors of these at a time."""

    height: int
    panels: int
    together: int


@dataclass(frozen=True)
class Integers:
    """How rows are multiplied as integers, which is exact but for the rounding of the rows.

    Of at most ``rows`` rows, or of any. Without dot products of four bytes the products of ``words`` words fit 16 bits.
    With ``apart`` 256 times a sum does not fit 32.
    """

    rows: int | None
    tiles: tuple[Tile, ...]
    words: int
    apart: bool


# By the bytes of a number. What a tile adds up, and reads meanwhile, fits 32 registers; one row reads each number of it
# for a whole band, whose weights lie together, as one stream.
QUAD_TILES = {
    1: (Tile(8, 1, 1), Tile(4, 2, 2), Tile(2, 4, 4), Tile(1, 4, 4)),
    2: (Tile(8, 1, 1), Tile(4, 2, 2), Tile(2, 4, 4), Tile(1, 4, 4)),
    3: (Tile(6, 1, 1), Tile(4, 1, 1), Tile(2, 2, 2), Tile(1, 4, 4)),
}
PAIR_TILES = (Tile(4, 1, 1), Tile(2, 1, 1), Tile(1, 1, 2))
# Of more rows floats take as long.
QUAD_ROWS = {1: None, 2: None, 3: 16}
PAIR_ROWS = {1: None, 2: 16, 3: 4}


def add_block_matmul(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the functions of a stage to its group. Raises CannotRender."""
    form = format_of(anchor.attributes)
    data, packed, scales, zeros = anchor.uses
    if any(use.tensor.argument is None for use in (packed, scales, zeros)):
        raise CannotRender("weights in blocks that are no constants")
    columns = int(packed.shape[0])
    may_be_few = form.data_bytes < EXACT or not isinstance(stage.rows, int) or stage.rows <= ROWS
    integers = _integers(form, group.machine) if may_be_few else None
    values: dict[str, Any] = {
        "form": form,
        "block_rows": ROWS,
        "rows": c_text(stage.rows),
        "integers": integers,
    }
    spaces = _rows_as_integers(stage, data, form, group, values) if may_be_few else {}
    draft = group.function("block_matmul")
    values |= {name: draft.workspace(*space, written=False) for name, space in spaces.items()}
    values |= {
        **_weights(draft, anchor, form),
        **_registers(group.machine, form),
        "x": draft.tensor(data.tensor, False),
        "program": draft.program(stage, as_result(f"c[r * {BAND} + j]", anchor.result.dtype)),
        "unused": [values[name] for name in spaces] if integers is None else [],
        "columns": columns,
        "padded": -(-columns // COLUMNS) * COLUMNS,
        "row_blocks": c_text(ceil_div(stage.rows, ROWS)),
        "band": BAND,
    }
    extent = product((ceil_div(stage.rows, ROWS), -(-columns // BAND)))
    draft.finish("ops/block_matmul", extent, values, feature="PK_QUADS" if group.machine.quads else "")


def _rows_as_integers(
    stage: Stage, data: Use, form: BlockFormat, group: GroupDraft, values: dict[str, Any]
) -> dict[str, tuple[int, str]]:
    """Add the function that makes integers of the rows, and return its workspaces and their C types.

    Of each row the bytes of each number, planes apart; of each block the sums of these times less the middle, the
    unit, and the sum of all in units. Machines that multiply floats have the function too, but do nothing there.
    """
    rows = stage.rows if form.data_bytes < EXACT or isinstance(stage.rows, int) else ROWS
    spaces = {
        "limbs": (group.workspace(product((rows, form.data_bytes * form.blocks * form.block)), "int8"), "int8_t"),
        "sums": (group.workspace(product((rows, 4 * form.blocks)), "int32"), "int32_t"),
        "units": (group.workspace(product((rows, 2 * form.blocks))), "float"),
    }
    draft = group.function("block_rows")
    written = {name: draft.workspace(*space, written=True) for name, space in spaces.items()}
    values = {**values, **written, "x": draft.tensor(data.tensor, False)}
    draft.finish("ops/block_rows", product((stage.rows, form.blocks)), values)
    return spaces


def _integers(form: BlockFormat, machine: Machine) -> Integers | None:
    """Return how a machine multiplies few rows as integers, or None if floats take as long."""
    apart = form.block * form.middle * 128 * 257 >= 1 << 31
    if machine.quads:
        return Integers(QUAD_ROWS[form.data_bytes], QUAD_TILES[form.data_bytes], 1, apart)
    if machine.name not in BYTE_PAIRS or form.bits == 8:  # pairs of products of eight bits do not fit 16
        return None
    steps = (1 << 15) // (2 * 128 * ((1 << form.bits) - 1))
    return Integers(PAIR_ROWS[form.data_bytes], PAIR_TILES, steps // (8 // form.bits), apart)


def _weights(draft: FunctionDraft, anchor: Operation, form: BlockFormat) -> dict[str, Any]:
    """Return the packed constants, and how a panel is read."""
    group = draft.group
    packed, scales, zeros = (group.constant(use) for use in anchor.uses[1:])
    per_word, chunk = WORD // form.bits, max(1, GATHERED // form.block)
    spread = group.packing(scales, f"bands{BAND}", _bands(0.0))
    found = {
        "w": draft.packed(group.packing(packed, f"blocks{form.bits}x{BAND}", _words(form)), "int32_t"),
        "scales": draft.packed(spread, "float"),
        "zeros": "",
        "per_word": per_word,
        "words": form.block // per_word,
        "full_words": form.depth // per_word,
        "rest": form.depth % per_word,
        "chunk": chunk,
        "gathered": chunk * form.block + APART,
        "ahead": AHEAD,
    }
    if form.has_zeros:
        spread = group.packing(zeros, f"bands{BAND}-{form.middle}", _bands(form.middle))
        found["zeros"] = draft.packed(spread, "float")
    return found


def _registers(machine: Machine, form: BlockFormat) -> dict[str, Any]:
    """Return the heights of tiles, vectors of a panel and other facts of a machine that its template reads."""
    vectors = COLUMNS * 4 // machine.vector_bytes
    heights = {1: (16, 8, 4, 2, 1), 2: (4, 2, 1)}.get(vectors, (4, 2, 1) if machine.registers > 16 else (2, 1))
    return {
        "vectors": vectors,
        "lanes": COLUMNS // vectors,
        "heights": heights,
        "quads": machine.quads,
        # Rows that are read where they are: a tile adds up each block before it is scaled.
        "few": (4, 2, 1) if vectors == 1 else (2, 1),
        "chains": {height: max(1, CHAINS // (height * vectors)) for height in heights},
        # A register of 16 floats is a table of the values of four bits.
        "permutes": machine.name == "avx512" and form.bits == 4,
        # Makes unsigned numbers two's complement.
        "flip": int(np.uint32(sum(form.middle << shift for shift in range(0, WORD, form.bits))).view(np.int32)),
    }


def _words(form: BlockFormat) -> Callable[[Array], Array]:
    """Return the function that packs weights [columns, blocks, bytes] as words of bands.

    Each byte of a word has weights that are four apart, so that one mask gives four consecutive ones.
    """
    per_byte = 8 // form.bits

    def pack(array: Array) -> Array:
        flat = array.reshape(len(array), -1)
        numbers = unpack(flat, form.bits, flat.shape[1] * per_byte).reshape(len(array), -1, per_byte, 4)
        shifts = np.arange(0, 8, form.bits, dtype=np.uint8)[:, None]
        words = np.ascontiguousarray(np.bitwise_or.reduce(numbers << shifts, axis=2)).view("<u4")[..., 0]
        return _interleave(words).view(np.int32)

    return pack


def _bands(middle: float) -> Callable[[Array], Array]:
    """Return the function that packs [columns, blocks] less ``middle``."""
    return lambda array: _interleave(array - np.float32(middle))


def _interleave(array: Array) -> Array:
    """Return [columns, steps] as bands, [steps, 64] each; the last has as many columns as fill its panels."""
    padded = pad(array, (COLUMNS, 1))
    whole = len(padded) // BAND * BAND
    bands = padded[:whole].reshape(-1, BAND, array.shape[1]).transpose(0, 2, 1)
    return np.concatenate([bands.reshape(-1), padded[whole:].T.reshape(-1)])
