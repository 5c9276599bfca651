"""Names of GPU architectures: real ones, ``sm_90a``, for machine code, and virtual ones, ``compute_90a``, for PTX.

The suffix ``a`` means code for exactly this architecture, ``f`` code for its family.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Those of systems on a chip: their code runs on no other architecture, although the major version may be equal.
_ON_CHIP = frozenset({(5, 3), (6, 2), (7, 2), (8, 7), (8, 8), (10, 1), (11, 0)})


@dataclass(frozen=True)
class GpuArch:
    """An architecture: ``compute_103f`` is virtual, of version (10, 3), with suffix ``f``."""

    virtual: bool
    version: tuple[int, int]
    suffix: str

    def runs_on(self, device: tuple[int, int]) -> bool:
        """Say whether code for this architecture runs on a device of compute capability ``device``, as a driver that
        is new enough for both decides it."""
        if self.version == device:
            return True
        if self.suffix == "a" or self.version > device:
            return False
        if self.virtual and not self.suffix:
            return True
        return self.version[0] == device[0] and not {self.version, device} & _ON_CHIP


_NAME = re.compile(r"(sm|compute)_([0-9]{1,2})([0-9])([af]?)", re.ASCII)


def is_arch(name: str) -> bool:
    """Say whether a name is written as an architecture's."""
    return _NAME.fullmatch(name) is not None


def parse_arch(name: str) -> GpuArch:
    """Return what a name says. Raises ValueError if it is no architecture's."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is no GPU architecture")
    return GpuArch(match[1] == "compute", (int(match[2]), int(match[3])), match[4])


def arch_key(name: str) -> tuple[bool, tuple[int, int], str]:
    """Return what names are sorted by: machine code first, then by version, then by suffix. Raises ValueError."""
    arch = parse_arch(name)
    return (arch.virtual, arch.version, arch.suffix)
