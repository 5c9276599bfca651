"""Products with weights that are quantized in blocks: their bits become floats in registers, where they are used.

A panel is 16 columns wide. A word of a lane has the weights of one column at consecutive depths, in two's complement.
Few rows are bound by the bytes of the weights; more rows share what is unpacked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from packager.backends.ccompiler.core.expressions import as_result
from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.machine import COLUMNS, Machine
from packager.backends.ccompiler.core.operations import CannotRender, Operation
from packager.backends.ccompiler.core.shapes import c_text, ceil_div, product
from packager.backends.ccompiler.core.stages import Stage
from packager.backends.ccompiler.gemm.loop_nest import pad
from packager.graph.block_weights import BlockFormat, format_of

if TYPE_CHECKING:
    from packager.bundle.arrays import Array

BAND = 64  # columns of a unit of work
ROWS = 16  # of a unit of work
WORD = 32  # bits
# Accumulators of a tile that hide the latency of an addition.
CHAINS = 8
# Weights of a column for which a unit gathers its rows: they fit the L1 cache, and lie in different sets of it.
GATHERED = 256
APART = 16


def add_block_matmul(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the function of a stage to its group. Raises CannotRender."""
    form = format_of(anchor.attributes)
    data, packed, scales, zeros = anchor.uses
    if any(use.tensor.argument is None for use in (packed, scales, zeros)):
        raise CannotRender("weights in blocks that are no constants")
    columns = int(packed.shape[0])
    draft = group.function("block_matmul")
    per_word, chunk = WORD // form.bits, max(1, GATHERED // form.block)
    values: dict[str, Any] = {
        "x": draft.tensor(data.tensor, False),
        "w": draft.packed(
            group.packing(group.constant(packed), f"blocks{form.bits}x{COLUMNS}", _words(form)), "int32_t"
        ),
        "scales": draft.packed(group.packing(group.constant(scales), f"panels{COLUMNS}", _panels(0.0)), "float"),
        "zeros": draft.packed(
            group.packing(group.constant(zeros), f"panels{COLUMNS}-{form.middle}", _panels(form.middle)), "float"
        )
        if form.has_zeros
        else "",
        "program": draft.program(stage, as_result(f"c[r * {BAND} + j]", anchor.result.dtype)),
        "form": form,
        "rows": c_text(stage.rows),
        "columns": columns,
        "block_rows": ROWS,
        "row_blocks": c_text(ceil_div(stage.rows, ROWS)),
        "band": BAND,
        "per_word": per_word,
        "words": form.block // per_word,
        "full_words": form.depth // per_word,
        "rest": form.depth % per_word,
        "chunk": chunk,
        "pitch": chunk * form.block + APART,
        **_registers(group.machine),
    }
    draft.finish("ops/block_matmul", product((ceil_div(stage.rows, ROWS), -(-columns // BAND))), values)


def _registers(machine: Machine) -> dict[str, Any]:
    """Return the heights of tiles, vectors of a panel and other facts of a machine that its template reads."""
    vectors = COLUMNS * 4 // machine.vector_bytes
    heights = {1: (16, 8, 4, 2, 1), 2: (4, 2, 1)}.get(vectors, (4, 2, 1) if machine.registers > 16 else (2, 1))
    return {
        "vectors": vectors,
        "lanes": COLUMNS // vectors,
        "heights": heights,
        # Rows that are read where they are: a tile adds up each block before it is scaled.
        "few": (4, 2, 1) if vectors == 1 else (2, 1),
        "chains": {height: max(1, CHAINS // (height * vectors)) for height in heights},
        "permutes": machine.name == "avx512",  # a register of 16 floats is a table of the values of four bits
    }


def _words(form: BlockFormat) -> Callable[[Array], Array]:
    """Return the function that packs weights [columns, blocks, bytes] as [panels, words, 16]."""
    flip = np.uint32(sum(form.middle << shift for shift in range(0, WORD, form.bits)))

    def pack(array: Array) -> Array:
        words = np.ascontiguousarray(array.reshape(len(array), -1)).view("<u4") ^ flip
        padded = pad(words, (COLUMNS, 1))
        return np.ascontiguousarray(padded.reshape(-1, COLUMNS, words.shape[1]).transpose(0, 2, 1)).view(np.int32)

    return pack


def _panels(middle: float) -> Callable[[Array], Array]:
    """Return the function that packs [columns, blocks] less ``middle`` as [panels, blocks, 16]."""

    def pack(array: Array) -> Array:
        padded = pad(array - np.float32(middle), (COLUMNS, 1))
        return padded.reshape(-1, COLUMNS, array.shape[1]).transpose(0, 2, 1)

    return pack
