"""Finds the CPU features of machine code by disassembly. Names are those of ``/proc/cpuinfo``."""

from __future__ import annotations

from pathlib import Path

from packager.bundle.elf.file import ElfImage, read_elf
from packager.bundle.elf.tables import SHF_EXECINSTR
from packager.bundle.isa import arm64, x86
from packager.errors import BackendError

MACHINES = {"x86_64": x86.code_features, "aarch64": arm64.code_features}


def cpu_features(path: Path) -> tuple[str, ...]:
    """Return the sorted features used by the executable sections of an ELF file.

    Raises BundleError if the file is not ELF, BackendError for an unknown machine.
    """
    return tuple(sorted(frozenset().union(*features_by_section(read_elf(path), path).values())))


def features_by_section(image: ElfImage, path: Path) -> dict[str, frozenset[str]]:
    """Return the features used by each executable section of the ELF file at ``path``. Raises like ``cpu_features``."""
    if image.machine not in MACHINES:
        raise BackendError(f"cannot disassemble machine code for {image.machine!r}")
    found: dict[str, frozenset[str]] = {}
    with path.open("rb") as file:
        for name, section in image.sections.items():
            if section.flags & SHF_EXECINSTR:
                file.seek(section.offset)
                found[name] = frozenset(MACHINES[image.machine](file.read(section.size)))
    return found
