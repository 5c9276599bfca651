"""Splits the CPU features of a bundle's code by level: baseline, per level, and dispatched at run time."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from packager.bundle.cpu_levels import CODE_PREFIX, DISPATCHED_SECTION
from packager.bundle.elf.file import ElfImage


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
    """Disassemble the file at ``path``. Raises BackendError for an unsupported machine."""
    from packager.bundle.isa.features import features_by_section

    found = features_by_section(image, path)
    of_levels = {
        name.removeprefix(CODE_PREFIX): features for name, features in found.items() if name.startswith(CODE_PREFIX)
    }
    ordinary = [
        features for name, features in found.items() if name != DISPATCHED_SECTION and not name.startswith(CODE_PREFIX)
    ]
    return CodeNeeds(frozenset().union(*ordinary), of_levels, found.get(DISPATCHED_SECTION, frozenset()))
