"""Adds up what the threads of a block have counted."""

from __future__ import annotations

from typing import Any

from tvm import tirx
from tvm.script.ir_builder import tirx as T  # noqa: N812  (as TVM's own code calls it)

from packager.lower.cuda.algorithms.nests import int32, keep, local, shared

LANES = 32


class BlockCounts:
    """Counts of parts in shared memory, and their sums.

    Few threads add up: shared memory serves a warp at a time. Their parts are a bank apart.
    """

    def __init__(self, parts: int) -> None:
        self.several = -(-parts // LANES)
        self.counts, self.sums = shared([self.several * (LANES + 1)], "int32"), shared([self.several], "int32")
        self.sums_ahead = shared([self.several + 1], "int32")

    @property
    def bytes(self) -> int:
        """The shared memory that they take."""
        return 4 * (self.several * (LANES + 3) + 1)

    def note(self, part: Any, count: Any) -> None:
        """Store what a part has counted."""
        self.counts[part + tirx.truncdiv(part, int32(LANES))] = count

    def add_up(self) -> None:
        """Make the counts of ``LANES`` parts the sums of those ahead of them, and add up what is ahead of these."""
        with T.parallel(int32(0), int32(self.several)) as several:
            total = local(int32(0))
            with T.serial(int32(0), int32(LANES)) as part:
                count = keep(self.counts[several * (LANES + 1) + part])
                self.counts[several * (LANES + 1) + part] = total[0]
                total[0] = total[0] + count
            self.sums[several] = total[0]
        with T.parallel(int32(0), int32(self.several + 1)) as several:
            total = local(int32(0))
            with T.serial(int32(0), int32(self.several)) as other:
                total[0] = total[0] + tirx.Select(other < several, self.sums[other], int32(0))
            self.sums_ahead[several] = total[0]

    def ahead(self, part: Any) -> Any:
        """Return the sum of what parts ahead of one have counted."""
        several = keep(tirx.truncdiv(part, int32(LANES)))
        return keep(self.sums_ahead[several] + self.counts[part + several])

    def total(self) -> Any:
        """Return the sum of all parts."""
        return keep(self.sums_ahead[self.several])
