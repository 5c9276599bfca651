"""Which CPU features machine code uses, found by disassembling it. Names are those of ``/proc/cpuinfo``."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import capstone

from packager.bundle.elf.file import ElfImage, read_elf
from packager.bundle.elf.tables import SHF_EXECINSTR
from packager.bundle.isa import arm64, x86
from packager.errors import BackendError

# The decoder gets this much at a time, so that going on after an instruction that it does not know costs little.
CHUNK_BYTES = 4096


@dataclass(frozen=True)
class Machine:
    """How to read one machine's code. ``detailed`` is slow, and asked once for all instructions with one key."""

    decoder: Any
    detailed: Any
    key: Callable[[str, str, bytes], Hashable]  # of an instruction's mnemonic, operands and bytes
    features: Callable[[Any], Iterator[str]]  # of an instruction that the disassembler knows
    unknown: Callable[[bytes], tuple[int, tuple[str, ...]]]  # size and features of one that it does not


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
                found[name] = frozenset(_features(file.read(section.size), MACHINES[image.machine]))
    return found


def _features(code: bytes, machine: Machine) -> set[str]:
    found: set[str] = set()
    seen: set[Hashable] = set()
    at = 0
    while at < len(code):
        start = at
        for _, size, mnemonic, operands in machine.decoder.disasm_lite(code[at : at + CHUNK_BYTES], at):
            key = machine.key(mnemonic, operands, code[at : at + size])
            if key not in seen:
                seen.add(key)
                (instruction,) = machine.detailed.disasm(code[at : at + size], at)
                found.update(machine.features(instruction))
            at += size
        if at == start:  # not merely cut off by the end of the chunk
            size, features = machine.unknown(code[at : at + 16])
            found.update(features)
            at += size
    return found


def _machine(architecture: int, mode: int, module: Any) -> Machine:
    decoder, detailed = capstone.Cs(architecture, mode), capstone.Cs(architecture, mode)
    detailed.detail = True
    return Machine(decoder, detailed, module.instruction_key, module.instruction_features, module.unknown_instruction)


MACHINES = {
    "x86_64": _machine(capstone.CS_ARCH_X86, capstone.CS_MODE_64, x86),
    "aarch64": _machine(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM, arm64),
}
