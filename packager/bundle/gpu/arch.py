"""GPU architecture names: real (``sm_90a``, machine code) and virtual (``compute_90a``, PTX).

Suffix ``a``: runs on exactly this architecture; ``f``: on its family.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_NAME = re.compile(r"(sm|compute)_([0-9]{1,2})([0-9])([af]?)", re.ASCII)
# Systems on a chip: not binary compatible with other architectures of the same major version.
_ON_CHIP = frozenset({(5, 3), (6, 2), (7, 2), (8, 7), (8, 8), (10, 1), (11, 0)})


@dataclass(frozen=True)
class GpuArch:
    """An architecture: ``compute_103f`` is virtual, of version (10, 3), with suffix ``f``."""

    virtual: bool
    version: tuple[int, int]
    suffix: str

    def runs_on(self, device: tuple[int, int]) -> bool:
        """Whether code for this architecture runs on a device of compute capability ``device``, given a driver that
        supports both."""
        if self.version == device:
            return True
        if self.suffix == "a" or self.version > device:
            return False
        if self.virtual and not self.suffix:
            return True
        return self.version[0] == device[0] and not {self.version, device} & _ON_CHIP


def is_arch(name: str) -> bool:
    """Whether a name has the syntax of an architecture."""
    return _NAME.fullmatch(name) is not None


def parse_arch(name: str) -> GpuArch:
    """Parse an architecture name. Raises ValueError."""
    match = _NAME.fullmatch(name)
    if match is None:
        raise ValueError(f"{name!r} is not a GPU architecture")
    return GpuArch(match[1] == "compute", (int(match[2]), int(match[3])), match[4])


def arch_key(name: str) -> tuple[bool, tuple[int, int], str]:
    """Return the sort key of a name: machine code first, then version, then suffix. Raises ValueError."""
    arch = parse_arch(name)
    return (arch.virtual, arch.version, arch.suffix)


def arch_number(name: str) -> int:
    """Return the number of an architecture: 90 for ``sm_90a``. Raises ValueError."""
    major, minor = parse_arch(name).version
    return major * 10 + minor
