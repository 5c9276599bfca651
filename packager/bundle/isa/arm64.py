"""CPU features of aarch64 instructions, from their mnemonics and registers.

capstone groups few of them by feature. Source: Arm ARM (DDI 0487); names: Linux,
Documentation/arch/arm64/elf_hwcaps.rst. BTI and PAC instructions are hints, NOPs on older CPUs, and require nothing.
"""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator
from typing import Any

import capstone
from capstone import arm64_const as arm64

GROUPS = {arm64.ARM64_GRP_FPARMV8: "fp", arm64.ARM64_GRP_NEON: "asimd"}
FEATURES = (
    (r"[su]dot", "asimddp"),
    (r"[su]mmla|usmmla|usdot|sudot", "i8mm"),
    (r"bf(dot|mmla|mlal[bt]|cvt|cvtn2?)", "bf16"),
    (r"fml[as]l2?", "asimdfhm"),
    (r"sqrdml[as]h", "asimdrdm"),
    (r"fcmla|fcadd", "fcma"),
    (r"frint(32|64)[xz]", "frint"),
    (r"fjcvtzs", "jscvt"),
    (r"crc32\w+", "crc32"),
    (r"aes\w+", "aes"),
    (r"sha1\w+", "sha1"),
    (r"sha256\w+", "sha2"),
    (r"sha512\w+", "sha512"),
    (r"eor3|bcax|rax1|xar", "sha3"),
    (r"ldapr[bh]?", "lrcpc"),
    (r"ldapur\w*|stlur\w*", "ilrcpc"),
    (r"(cas|casp|swp|(ld|st)(add|clr|eor|set|[su](max|min)))(a|l|al)?[bh]?", "atomics"),
)
_FEATURE_OF = tuple((re.compile(pattern), feature) for pattern, feature in FEATURES)
# Arithmetic on float16; conversions from and to other floats are baseline.
_FLOAT = re.compile(r"f(?!cvt(l|n|xn)?2?$|ml[as]l)|[su]cvtf")
_HALF_VECTOR = re.compile(r"\bv\d+\.[48]?h\b")
_HALF_SCALAR = re.compile(r"\bh\d+\b")
_NUMBERS = re.compile(r"(?<!\[)(?:0x[0-9a-f]+|\d+)")
_POLYNOMIAL_64 = re.compile(r"\.1q\b")
_SVE_FEATURES = (
    (re.compile(r"[su]mmla|usmmla|usdot|sudot"), "svei8mm"),
    (re.compile(r"bf\w+"), "svebf16"),
    (re.compile(r"fmmla"), "svef32mm"),
)
# Decode in small chunks, so that resuming after an unknown instruction is cheap.
CHUNK_BYTES = 4096


def _disassembler(*, detail: bool) -> Any:
    made = capstone.Cs(capstone.CS_ARCH_ARM64, capstone.CS_MODE_ARM)
    made.detail = detail
    return made


DECODER, DETAILED = _disassembler(detail=False), _disassembler(detail=True)


def code_features(code: bytes) -> set[str]:
    """Return the features required by ``code``; decodes one instruction per key in detail."""
    found: set[str] = set()
    seen: set[Hashable] = set()
    at = 0
    while at < len(code):
        start = at
        for _, size, mnemonic, operands in DECODER.disasm_lite(code[at : at + CHUNK_BYTES], at):
            key = instruction_key(mnemonic, operands, code[at : at + size])
            if key not in seen:
                seen.add(key)
                (instruction,) = DETAILED.disasm(code[at : at + size], at)
                found.update(instruction_features(instruction))
            at += size
        if at == start:
            found.update(_unknown_features(code[at : at + 4]))
            at += 4
    return found


def instruction_key(mnemonic: str, operands: str, code: bytes) -> Hashable:
    """Return a key that determines an instruction's features: immediates and register numbers are irrelevant."""
    return mnemonic, code[1] & 0xFC, code[2] & 0xE0, code[3], _NUMBERS.sub("", operands)


def instruction_features(instruction: Any) -> Iterator[str]:
    """Yield the features that a decoded instruction requires."""
    mnemonic, operands = instruction.mnemonic, instruction.op_str
    word = int.from_bytes(instruction.bytes, "little")
    if _is_sve(word):
        yield from _sve_features(word, mnemonic)
        return
    yield from (GROUPS[group] for group in instruction.groups if group in GROUPS)
    yield from (feature for pattern, feature in _FEATURE_OF if pattern.fullmatch(mnemonic))
    if mnemonic in ("pmull", "pmull2") and _POLYNOMIAL_64.search(operands):
        yield "pmull"
    if _FLOAT.match(mnemonic):
        if _HALF_VECTOR.search(operands):
            yield "asimdhp"
        elif _HALF_SCALAR.search(operands):
            yield "fphp"


def _unknown_features(code: bytes) -> tuple[str, ...]:
    """Return the features of an unknown word: data, or an instruction newer than the disassembler."""
    word = int.from_bytes(code, "little")
    return ("sve",) if _is_sve(word) and word else ()


def _is_sve(word: int) -> bool:
    return (word >> 25) & 0xF == 0b0010


def _sve_features(word: int, mnemonic: str) -> Iterator[str]:
    yield "sve"
    feature = next((name for pattern, name in _SVE_FEATURES if pattern.fullmatch(mnemonic)), None)
    if feature is not None:
        yield feature
    # These two encoding blocks hold SVE2's integer instructions; from SVE1 they hold only dot products.
    elif word >> 24 in (0x44, 0x45) and mnemonic not in ("sdot", "udot"):
        yield "sve2"
