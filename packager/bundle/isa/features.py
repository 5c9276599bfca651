"""Which CPU features machine code uses, found by disassembling it. Names are those of ``/proc/cpuinfo``."""

from __future__ import annotations

from pathlib import Path

from packager.bundle.elf.file import ElfImage, read_elf
from packager.bundle.elf.tables import SHF_EXECINSTR
from packager.bundle.isa import arm64, x86
from packager.errors import BackendError

MACHINES = {"x86_64": x86.code_features, "aarch64": arm64.code_features}


def cpu_features(path: Path) -> tuple[str, ...]:
    """Return the features that the executable sections of an ELF file use, sorted.

    Raises BundleError for a file that is not ELF, BackendError for a machine that is not known.
    """
    return tuple(sorted(frozenset().union(*features_by_section(read_elf(path), path).values())))


def features_by_section(image: ElfImage, path: Path) -> dict[str, frozenset[str]]:
    """Return the features that each executable section of the ELF file at ``path`` uses; raises as ``cpu_features``."""
    if image.machine not in MACHINES:
        raise BackendError(f"machine code for {image.machine!r} cannot be read")
    found: dict[str, frozenset[str]] = {}
    with path.open("rb") as file:
        for name, section in image.sections.items():
            if section.flags & SHF_EXECINSTR:
                file.seek(section.offset)
                found[name] = frozenset(MACHINES[image.machine](file.read(section.size)))
    return found
