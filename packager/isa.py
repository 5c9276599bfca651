"""Which CPU features machine code uses, found by disassembling it. Names are those of ``/proc/cpuinfo``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import capstone
from capstone import arm64_const, x86_const

from packager.deploy.elf import SHF_EXECINSTR, read_elf
from packager.errors import BackendError

_X86 = x86_const
X86_GROUPS = {
    _X86.X86_GRP_SSE3: "sse3",
    _X86.X86_GRP_SSSE3: "ssse3",
    _X86.X86_GRP_SSE41: "sse4_1",
    _X86.X86_GRP_SSE42: "sse4_2",
    _X86.X86_GRP_AES: "aes",
    _X86.X86_GRP_PCLMUL: "pclmulqdq",
    _X86.X86_GRP_AVX: "avx",
    _X86.X86_GRP_AVX2: "avx2",
    _X86.X86_GRP_FMA: "fma",
    _X86.X86_GRP_F16C: "f16c",
    _X86.X86_GRP_BMI: "bmi1",
    _X86.X86_GRP_BMI2: "bmi2",
    _X86.X86_GRP_ADX: "adx",
    _X86.X86_GRP_SHA: "sha_ni",
    _X86.X86_GRP_AVX512: "avx512f",
    _X86.X86_GRP_CDI: "avx512cd",
    _X86.X86_GRP_DQI: "avx512dq",
    _X86.X86_GRP_BWI: "avx512bw",
    _X86.X86_GRP_VLX: "avx512vl",
}
X86_MNEMONICS = {"popcnt": "popcnt", "lzcnt": "abm", "movbe": "movbe"}
ARM64_GROUPS = {
    arm64_const.ARM64_GRP_FPARMV8: "fp",
    arm64_const.ARM64_GRP_NEON: "asimd",
    arm64_const.ARM64_GRP_FULLFP16: "asimdhp",
    arm64_const.ARM64_GRP_DOTPROD: "asimddp",
    arm64_const.ARM64_GRP_CRC: "crc32",
    arm64_const.ARM64_GRP_CRYPTO: "aes",
}
# Instructions that are newer than the disassembler's tables; their opcodes start with EVEX or VEX all the same.
UNDECODED_X86 = ("avx512f", "avx512bw", "avx512vl", "avx512dq")


def cpu_features(path: Path) -> tuple[str, ...]:
    """Return the features that the executable sections of an ELF file use, sorted.

    Raises BundleError for a file that is not ELF, BackendError for a machine that is not known.
    """
    image = read_elf(path)
    data = path.read_bytes()
    decoder, groups, mnemonics = _decoder(image.machine)
    found: set[str] = set()
    seen: set[tuple[int, ...]] = set()
    for section in image.sections.values():
        if not section.flags & SHF_EXECINSTR:
            continue
        code = data[section.offset : section.offset + section.size]
        for instruction in decoder.disasm(code, section.address):
            if instruction.id == 0:
                found.update(_undecoded(image.machine, bytes(instruction.bytes)))
                continue
            key = tuple(instruction.groups)
            if key not in seen:
                seen.add(key)
                found.update(groups[group] for group in key if group in groups)
            if instruction.mnemonic in mnemonics:
                found.add(mnemonics[instruction.mnemonic])
    return tuple(sorted(found))


def _decoder(machine: str) -> tuple[Any, dict[int, str], dict[str, str]]:
    if machine == "x86_64":
        decoder, groups, mnemonics = capstone.Cs(capstone.CS_ARCH_X86, capstone.CS_MODE_64), X86_GROUPS, X86_MNEMONICS
    elif machine == "aarch64":
        decoder, groups, mnemonics = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM), ARM64_GROUPS, {}
    else:
        raise BackendError(f"machine code for {machine!r} cannot be read")
    decoder.detail = True
    decoder.skipdata = True
    return decoder, groups, mnemonics


def _undecoded(machine: str, code: bytes) -> tuple[str, ...]:
    """Name the least that an instruction needs that the disassembler does not know; padding needs nothing."""
    if machine == "x86_64" and code[:1] == b"\x62":
        return UNDECODED_X86
    return ()
