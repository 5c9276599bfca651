"""Which CPU features machine code uses, found by disassembling it. Names are those of ``/proc/cpuinfo``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
# The disassembler gives FMA3 instructions no group.
X86_PREFIXES = {"vfmadd": "fma", "vfmsub": "fma", "vfnmadd": "fma", "vfnmsub": "fma"}
ARM64_GROUPS = {
    arm64_const.ARM64_GRP_FPARMV8: "fp",
    arm64_const.ARM64_GRP_NEON: "asimd",
    arm64_const.ARM64_GRP_FULLFP16: "asimdhp",
    arm64_const.ARM64_GRP_DOTPROD: "asimddp",
    arm64_const.ARM64_GRP_CRC: "crc32",
    arm64_const.ARM64_GRP_CRYPTO: "aes",
}
EVEX = 0x62
# What any EVEX instruction may need beside its group: the disassembler does not tell vector lengths apart, and does not
# know the newest instructions. All CPUs of x86-64-v4 have these together.
EVEX_FEATURES = ("avx512bw", "avx512dq", "avx512f", "avx512vl")


def cpu_features(path: Path) -> tuple[str, ...]:
    """Return the features that the executable sections of an ELF file use, sorted.

    Raises BundleError for a file that is not ELF, BackendError for a machine that is not known.
    """
    image = read_elf(path)
    if image.machine not in _FEATURES_OF:
        raise BackendError(f"machine code for {image.machine!r} cannot be read")
    decoder, features_of = _FEATURES_OF[image.machine]
    data = path.read_bytes()
    found: set[str] = set()
    for section in image.sections.values():
        if section.flags & SHF_EXECINSTR:
            code = data[section.offset : section.offset + section.size]
            for instruction in decoder.disasm(code, section.address):
                found.update(features_of(instruction))
    return tuple(sorted(found))


def _x86_features(instruction: Any) -> Iterator[str]:
    if instruction.bytes[0] == EVEX:
        yield from EVEX_FEATURES
    if instruction.id == 0:  # data between functions, or newer than the disassembler
        return
    mnemonic = instruction.mnemonic
    for group in instruction.groups:
        if group in X86_GROUPS:
            yield X86_GROUPS[group]
    if mnemonic in X86_MNEMONICS:
        yield X86_MNEMONICS[mnemonic]
    for prefix, feature in X86_PREFIXES.items():
        if mnemonic.startswith(prefix):
            yield feature


def _arm64_features(instruction: Any) -> Iterator[str]:
    if instruction.id != 0:
        yield from (ARM64_GROUPS[group] for group in instruction.groups if group in ARM64_GROUPS)


def _decoder(architecture: int, mode: int) -> Any:
    decoder = capstone.Cs(architecture, mode)
    decoder.detail = True
    decoder.skipdata = True
    return decoder


_FEATURES_OF: dict[str, tuple[Any, Callable[[Any], Iterator[str]]]] = {
    "x86_64": (_decoder(capstone.CS_ARCH_X86, capstone.CS_MODE_64), _x86_features),
    "aarch64": (_decoder(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM), _arm64_features),
}
