"""Sums of all elements before one, in parallel: sums of groups, of groups of groups, and so on, added up on demand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.lower.cuda.algorithms.nests import Nests, ceil_div, int64, keep, local

# Elements of a group: as many additions for an element in each level, at most.
GROUP = 64


@dataclass(frozen=True)
class PrefixSums:
    """Sums over ``size`` elements (int64): ``element(i)`` is one of them, ``levels`` are the sums of groups."""

    element: Callable[[Any], Any]
    size: Any
    levels: tuple[Any, ...]

    def before(self, index: Any) -> Any:
        """Write the sum of all elements before ``index``; return the variable of the thread that holds it."""
        total, at = local(int64(0)), index
        for level in range(len(self.levels) + 1):
            group = keep(at >> int64(GROUP.bit_length() - 1))
            self._add(total, level, keep(group * GROUP), keep(at - group * GROUP))
            at = group
        return total

    def total(self) -> Any:
        """Write the sum of all elements; return the variable of the thread that holds it."""
        total, number = local(int64(0)), int64(self.size)
        for _ in self.levels:
            number = ceil_div(number, GROUP)
        self._add(total, len(self.levels), int64(0), number)
        return total

    def _add(self, total: Any, level: int, first: Any, number: Any) -> None:
        with T.serial(int64(0), int64(GROUP)) as i, T.If(i < number), T.Then():
            total[0] = total[0] + (self.levels[level - 1][first + i] if level else self.element(first + i))


def prefix_sums(nests: Nests, size: Any, most: int, element: Callable[[Any], Any]) -> PrefixSums:
    """Write the nests that sum up groups of ``size`` elements, which are ``most`` at most."""
    sums = PrefixSums(element, size, ())
    number, bound = int64(size), most
    while bound > GROUP:
        inner = number
        number, bound = ceil_div(number, GROUP), -(-bound // GROUP)
        level = nests.workspace([number], "int64")
        with nests.grid("sum_groups", number) as (group,):
            total, first = local(int64(0)), group * GROUP
            with T.serial(int64(0), int64(GROUP)) as i, T.If(first + i < inner), T.Then():
                total[0] = total[0] + (sums.levels[-1][first + i] if sums.levels else element(first + i))
            level[group] = total[0]
        sums = PrefixSums(element, size, (*sums.levels, level))
    return sums
