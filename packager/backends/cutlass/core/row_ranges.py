"""Kernels of problems whose number of rows is known at run time alone: one for each range of it.

The tile that suits most rows leaves a GPU idle for few: by that for 32 x 128 rows, 128 take more than twice as long.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import replace

from packager.backends.cutlass.core.drafts import Candidate, Choice, Ranking

# Each range ends with so many times the rows of the one before.
STEP = 4
# Ranges beside the last one, each of which may be another kernel to compile; and rows that have kernels of their own.
RANGES, FEW = 2, 8


def rank_by_rows(rank: Callable[[int], Ranking], least: int, most: int) -> Ranking:
    """Return a ranking for ``least`` to ``most`` rows, whose first candidate launches the best kernel of each range.

    ``rank`` returns the ranking for at most so many rows.
    """
    whole = rank(most)
    if not whole:
        return whole
    ranges = [(rows, rank(rows).candidates[0].choices) for rows in range_ends(least, most)]
    first = whole.candidates[0].choices
    archs = [choice.arch for choice in first]
    fitting = [(rows, choices) for rows, choices in ranges if [choice.arch for choice in choices] == archs]
    found: list[Choice] = []
    for place, last in enumerate(first):
        found += _distinct([*(replace(choices[place], rows=rows) for rows, choices in fitting), last])
    if len(found) == len(first):
        return whole
    return replace(whole, candidates=(Candidate(tuple(found)), *whole.candidates), estimates=())


def range_ends(least: int, most: int) -> list[int]:
    """Return the most rows of each range but the last one, in order."""
    ends = {most // STEP**step for step in range(1, RANGES + 1)} | {FEW}
    return sorted(end for end in ends if max(least, FEW) <= end < most)


def _distinct(choices: Sequence[Choice]) -> list[Choice]:
    """Leave out those with the kernel of the range that follows."""
    pairs = itertools.pairwise(choices)
    return [*(choice for choice, after in pairs if choice.kernel != after.kernel), choices[-1]]
