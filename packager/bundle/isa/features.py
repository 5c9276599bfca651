"""Finds the CPU features of machine code by disassembly, by section and by CPU level."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packager.bundle.elf.file import ElfImage, read_elf
from packager.bundle.elf.tables import SHF_EXECINSTR
from packager.bundle.isa.levels import CODE_PREFIX, DISPATCHED_SECTION
from packager.errors import BundleError

# Modules with ``code_features``, imported when needed: each loads a disassembler.
MACHINES = {"x86_64": "packager.bundle.isa.x86", "aarch64": "packager.bundle.isa.arm64"}


def cpu_features(path: Path) -> tuple[str, ...]:
    """Return the sorted features used by the executable sections of an ELF file.

    Raises BundleError if the file is not ELF, BundleError for an unknown machine.
    """
    return tuple(sorted(frozenset().union(*features_by_section(read_elf(path), path).values())))


def features_by_section(image: ElfImage, path: Path) -> dict[str, frozenset[str]]:
    """Return the features used by each executable section of the ELF file at ``path``. Raises like ``cpu_features``."""
    if image.machine not in MACHINES:
        raise BundleError(f"cannot disassemble machine code for {image.machine!r}")
    code_features = importlib.import_module(MACHINES[image.machine]).code_features
    found: dict[str, frozenset[str]] = {}
    with path.open("rb") as file:
        for name, section in image.sections.items():
            if section.flags & SHF_EXECINSTR:
                file.seek(section.offset)
                found[name] = frozenset(code_features(file.read(section.size)))
    return found


@dataclass(frozen=True)
class CodeNeeds:
    """The features that code uses: in every session, in sessions of each level, and behind its own check of the CPU."""

    every: frozenset[str]
    of_levels: Mapping[str, frozenset[str]]
    dispatched: frozenset[str]


def can_read_code() -> bool:
    """Whether the disassemblers are installed."""
    return all(importlib.util.find_spec(name) for name in ("iced_x86", "capstone"))


def needs_of_code(image: ElfImage, path: Path) -> CodeNeeds:
    """Disassemble the file at ``path``. Raises BundleError for an unsupported machine."""
    found = features_by_section(image, path)
    of_levels = {
        name.removeprefix(CODE_PREFIX): features for name, features in found.items() if name.startswith(CODE_PREFIX)
    }
    ordinary = [
        features for name, features in found.items() if name != DISPATCHED_SECTION and not name.startswith(CODE_PREFIX)
    ]
    return CodeNeeds(frozenset().union(*ordinary), of_levels, found.get(DISPATCHED_SECTION, frozenset()))
