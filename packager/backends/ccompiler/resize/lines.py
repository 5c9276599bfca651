"""Resizing along the last axis too: lines of the data are added up, and what that gives is permuted by vectors.

A vector of neighboring results reads, for each term, neighbors in a line of the data: if it enlarges, of one vector,
if it halves, of two. One permutation finds them; tables say where the vector begins and which of its lanes each result
reads. Where results are farther apart, or vectors short, they are read one by one.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from packager.backends.ccompiler.core.expressions import as_result
from packager.backends.ccompiler.core.functions import GroupDraft
from packager.backends.ccompiler.core.operations import CannotRender, Operation
from packager.backends.ccompiler.core.resize_tables import ResizeTables
from packager.backends.ccompiler.core.shapes import c_text
from packager.backends.ccompiler.core.stages import Stage
from packager.backends.ccompiler.resize.terms import LineTerms, floats, integers, line_terms
from packager.bundle.arrays import Array

SHORTEST_VECTOR = 8  # lanes of vectors that one instruction permutes
READ = 2  # vectors of which one instruction, or three, take lanes


@dataclass(frozen=True)
class Permuted:
    """Blocks of results, one vector each, the last of which may overlap the one before it.

    ``starts`` are of the blocks, ``bases`` [blocks, taps] of the vectors that they read, ``lanes`` [blocks, taps,
    vector] the lanes of ``read`` vectors.
    """

    read: int
    starts: Array
    bases: Array
    lanes: Array


def permuted(indices: Array, extent: int, vector: int) -> Permuted | None:
    """Return the blocks of a line by its tables [results, taps]; None if some block reads what is too far apart.

    ``extent`` is that of the data's line, which may be shorter than what is read at once.
    """
    size = len(indices)
    if size < vector or vector < SHORTEST_VECTOR:
        return None
    starts = np.minimum(np.arange(0, size, vector), size - vector)
    places = starts[:, None] + np.arange(vector)
    read = indices[places].transpose(0, 2, 1)  # [blocks, taps, vector]
    first = read.min(2)
    for count in range(1, READ + 1):
        bases = np.minimum(first, max(extent, count * vector) - count * vector)
        lanes = read - bases[:, :, None]
        if lanes.max() < count * vector:
            return Permuted(count, starts, bases, lanes)
    return None


def add_resize_lines(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the function of a stage to its group. Raises CannotRender."""
    tables: ResizeTables = anchor.attributes
    indices, weights = tables.arrays[-1]
    length = anchor.uses[0].shape[-1]
    if indices is None or not isinstance(length, int):
        raise CannotRender("resizing of the last axis by a table that is not constant")
    draft = group.function("resize_lines")
    vector = group.machine.vector_bytes // 4
    terms: LineTerms = line_terms(anchor, draft, len(tables.axes) - 1)
    blocks = permuted(indices, length, vector)
    # With nothing to add up, the line of the data is read where it is, of fewer elements than a vector those that it
    # has: what is copied is stored by vectors, and loads that overlap two of them would wait for both.
    extent = max(length, blocks.read * vector if blocks else length)
    added = len(terms.terms) > 1 or not terms.exact
    copied = added or extent > max(length, vector)
    stored = stage.stored[0] if not stage.after and len(stage.stored) == 1 else None
    values = {
        "x": draft.tensor(anchor.uses[0].tensor, False),
        "lines": terms,
        "copied": copied,
        "length": length,
        "extent": extent,
        "partial": not copied and extent > length,
        "inner": c_text(stage.inner),
        "taps": range(tables.taps[-1]),
        "vector": vector,
        "blocks": blocks,
        "exact": tables.taps[-1] == 1,
        # As they are in the table: [results, taps].
        "given": floats(weights) if weights is not None else "",
        "given_from": draft.tensor(anchor.uses[-1].tensor, False) if weights is None else "",
        "result": None if stored is None else draft.tensor(stored, True),
        "program": None if stored is not None else draft.program(stage, as_result("(line[j])", anchor.result.dtype)),
    }
    if blocks is not None:
        values |= {"starts": integers(blocks.starts), "bases": integers(blocks.bases), "count": len(blocks.starts)}
        values |= {"chosen": integers(blocks.lanes)}
    else:
        values |= {"chosen": integers(indices.T)}
    draft.finish("ops/resize_lines", stage.rows, values)
