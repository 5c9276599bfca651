"""Buckets: fixed sizes of a dim, each compiled separately, behind one entry.

A model with bucketed dims has a *variant* for every combination of sizes: the model with these dims fixed. A run
selects its variant by the extents of its inputs (``docs/dims.md``).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from packager.errors import UsageError

MAX_VARIANTS = 64
Sizes = Mapping[str, int]


@dataclass(frozen=True, init=False)
class Buckets:
    """The allowed sizes of a dim, each compiled separately: ``dims={"seq": Buckets(128, 256, 512)}``."""

    sizes: tuple[int, ...]

    def __init__(self, *sizes: int) -> None:
        object.__setattr__(self, "sizes", sizes)

    def check(self, name: str) -> None:
        """Raise UsageError unless the sizes of dim ``name`` are strictly increasing and in [1, 2**31)."""
        listed = f"--dim {name}={','.join(map(str, self.sizes))}"
        if not self.sizes:
            raise UsageError(f"{listed}: there is no size", hint=f"for example: --dim {name}=128,256")
        for size in self.sizes:
            if not 1 <= size < 2**31:
                raise UsageError(f"{listed}: size {size} is not in 1..2**31-1")
        for before, after in itertools.pairwise(self.sizes):
            if before == after:
                raise UsageError(f"{listed}: duplicate size {after}")
            if before > after:
                raise UsageError(f"{listed}: {after} comes after {before}", hint="write the sizes in rising order")


def variant_label(entry: str, sizes: Sizes) -> str:
    """Return the name of an entry's variant: the entry's own name if it has no buckets."""
    return f"{entry}[{shown_sizes(sizes)}]" if sizes else entry


def shown_sizes(sizes: Sizes) -> str:
    """Format sizes as ``h=32,w=64``."""
    return ",".join(f"{name}={size}" for name, size in sizes.items())


def combinations(buckets: Mapping[str, Sequence[int]]) -> Iterator[Sizes]:
    """Yield every combination of sizes, the last dim varying fastest; one empty combination if there are no dims."""
    for sizes in itertools.product(*buckets.values()):
        yield dict(zip(buckets, sizes, strict=True))


def check_count(buckets: Mapping[str, Sequence[int]]) -> None:
    """Raise UsageError if there are more than MAX_VARIANTS combinations."""
    count = math.prod(map(len, buckets.values()))
    if count > MAX_VARIANTS:
        factors = " * ".join(f"{len(sizes)} of {name}" for name, sizes in buckets.items())
        raise UsageError(
            f"--dim: buckets make {count} variants ({factors}), at most {MAX_VARIANTS} are supported",
            hint="give fewer sizes, or bound a dim: NAME=MIN:MAX",
        )
