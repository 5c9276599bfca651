"""Which CPU features machine code uses, found by disassembling it. Names are those of ``/proc/cpuinfo``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import capstone

from packager import isa_arm64, isa_x86
from packager.deploy.elf import SHF_EXECINSTR, read_elf
from packager.errors import BackendError

# The decoder gets this much at a time, so that going on after an instruction that it does not know costs little.
CHUNK_BYTES = 4096


@dataclass(frozen=True)
class Machine:
    """How to read one machine's code."""

    decoder: Any
    features: Callable[[Any], Iterator[str]]  # of an instruction that the disassembler knows
    unknown: Callable[[bytes], tuple[int, tuple[str, ...]]]  # size and features of one that it does not


def cpu_features(path: Path) -> tuple[str, ...]:
    """Return the features that the executable sections of an ELF file use, sorted.

    Raises BundleError for a file that is not ELF, BackendError for a machine that is not known.
    """
    image = read_elf(path)
    if image.machine not in MACHINES:
        raise BackendError(f"machine code for {image.machine!r} cannot be read")
    data = path.read_bytes()
    found: set[str] = set()
    for section in image.sections.values():
        if section.flags & SHF_EXECINSTR:
            found |= _features(data[section.offset : section.offset + section.size], MACHINES[image.machine])
    return tuple(sorted(found))


def _features(code: bytes, machine: Machine) -> set[str]:
    found: set[str] = set()
    at = 0
    while at < len(code):
        start = at
        for instruction in machine.decoder.disasm(code[at : at + CHUNK_BYTES], at):
            found.update(machine.features(instruction))
            at += instruction.size
        if at == start:  # not merely cut off by the end of the chunk
            size, features = machine.unknown(code[at : at + 16])
            found.update(features)
            at += size
    return found


def _decoder(architecture: int, mode: int) -> Any:
    decoder = capstone.Cs(architecture, mode)
    decoder.detail = True
    return decoder


MACHINES = {
    "x86_64": Machine(
        _decoder(capstone.CS_ARCH_X86, capstone.CS_MODE_64), isa_x86.instruction_features, isa_x86.unknown_instruction
    ),
    "aarch64": Machine(
        _decoder(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM),
        isa_arm64.instruction_features,
        isa_arm64.unknown_instruction,
    ),
}
