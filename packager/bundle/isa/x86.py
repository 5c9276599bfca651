"""CPU features of x86-64 instructions.

The disassembler groups instructions by feature up to AVX-512 of 2017, with gaps. What is newer is told apart by its
encoding: all of it is VEX or EVEX. Source: Intel SDM volume 2, sections 2.3, 2.7 and the instruction reference.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, NamedTuple

from capstone import x86_const as x86

GROUPS = {
    x86.X86_GRP_SSE3: "pni",
    x86.X86_GRP_SSSE3: "ssse3",
    x86.X86_GRP_SSE41: "sse4_1",
    x86.X86_GRP_SSE42: "sse4_2",
    x86.X86_GRP_AES: "aes",
    x86.X86_GRP_PCLMUL: "pclmulqdq",
    x86.X86_GRP_AVX: "avx",
    x86.X86_GRP_AVX2: "avx2",
    x86.X86_GRP_FMA: "fma",
    x86.X86_GRP_F16C: "f16c",
    x86.X86_GRP_FMA4: "fma4",
    x86.X86_GRP_XOP: "xop",
    x86.X86_GRP_TBM: "tbm",
    x86.X86_GRP_BMI: "bmi1",
    x86.X86_GRP_BMI2: "bmi2",
    x86.X86_GRP_ADX: "adx",
    x86.X86_GRP_SHA: "sha_ni",
    x86.X86_GRP_AVX512: "avx512f",
    x86.X86_GRP_CDI: "avx512cd",
    x86.X86_GRP_DQI: "avx512dq",
    x86.X86_GRP_BWI: "avx512bw",
    x86.X86_GRP_VLX: "avx512vl",
}
MNEMONICS = {"popcnt": "popcnt", "lzcnt": "abm", "movbe": "movbe", "cmpxchg16b": "cx16", "prefetchw": "3dnowprefetch"}
PREFIXES = {"vfmadd": "fma", "vfmsub": "fma", "vfnmadd": "fma", "vfnmsub": "fma", "gf2p8": "gfni"}

# What any EVEX instruction may need beside the below: the disassembler does not tell vector lengths apart. All CPUs of
# x86-64-v4 have these together.
EVEX_FEATURES = ("avx512bw", "avx512dq", "avx512f", "avx512vl")
NP, P66, PF3, PF2 = range(4)  # the mandatory prefix, as VEX and EVEX encode it
FP16_MAPS = (5, 6)

_LEGACY_PREFIXES = b"\x66\x67\xf2\xf3\xf0\x2e\x36\x3e\x26\x64\x65"
_VECTOR_PREFIXES = (b"\xc4", b"\xc5", b"\x62", b"\x8f")  # after other prefixes, and of XOP

Opcodes = dict[tuple[int, int, int], str]  # (opcode map, mandatory prefix, opcode) -> feature


def _table(*rows: tuple[int, int, tuple[int, ...], str]) -> Opcodes:
    return {(space, prefix, opcode): name for space, prefix, opcodes, name in rows for opcode in opcodes}


EVEX: Opcodes = _table(
    (2, P66, (0x50, 0x51, 0x52, 0x53), "avx512_vnni"),
    (2, PF3, (0x52, 0x72), "avx512_bf16"),
    (2, PF2, (0x72,), "avx512_bf16"),
    (2, P66, (0x55,), "avx512_vpopcntdq"),
    (2, P66, (0x54, 0x8F), "avx512_bitalg"),
    (2, P66, (0x62, 0x63, 0x70, 0x71, 0x72, 0x73), "avx512_vbmi2"),
    (3, P66, (0x70, 0x71, 0x72, 0x73), "avx512_vbmi2"),
    (2, P66, (0x83,), "avx512vbmi"),
    (2, P66, (0xB4, 0xB5), "avx512ifma"),
    (2, P66, (0xC4,), "avx512cd"),
    (2, P66, (0x44,), "avx512cd"),
    (2, PF3, (0x2A, 0x3A), "avx512cd"),
    (2, PF2, (0x68,), "avx512_vp2intersect"),
    (2, P66, (0xCF,), "gfni"),
    (3, P66, (0xCE, 0xCF), "gfni"),
    (2, P66, (0xDC, 0xDD, 0xDE, 0xDF), "vaes"),
    (3, P66, (0x44,), "vpclmulqdq"),
    (3, NP, (0x08, 0x0A, 0x26, 0x27, 0x56, 0x57, 0x66, 0x67, 0xC2), "avx512_fp16"),
    (3, PF3, (0xC2,), "avx512_fp16"),
)
# Bytes with W = 0, words (avx512bw) with W = 1.
EVEX_BYTE_PERMUTES = {(2, P66, opcode) for opcode in (0x75, 0x7D, 0x8D)}
VEX: Opcodes = _table(
    (2, P66, (0x50, 0x51, 0x52, 0x53), "avx_vnni"),
    *((2, prefix, (0x50, 0x51), "avx_vnni_int8") for prefix in (NP, PF3, PF2)),
    *((2, prefix, (0xD2, 0xD3), "avx_vnni_int16") for prefix in (NP, P66, PF3)),
    (2, P66, (0xB4, 0xB5), "avx_ifma"),
    *((2, prefix, (0xB0,), "avx_ne_convert") for prefix in (NP, P66, PF3, PF2)),
    *((2, prefix, (0xB1,), "avx_ne_convert") for prefix in (P66, PF3)),
    (2, PF3, (0x72,), "avx_ne_convert"),
    (2, P66, (0xCF,), "gfni"),
    (3, P66, (0xCE, 0xCF), "gfni"),
    *((2, prefix, (0x49, 0x4B), "amx_tile") for prefix in (NP, P66, PF3, PF2)),
    *((2, prefix, (0x5E,), "amx_int8") for prefix in (NP, P66, PF3, PF2)),
    (2, PF3, (0x5C,), "amx_bf16"),
    (2, PF2, (0x5C,), "amx_fp16"),
)
# With 128 bits these are of AES and PCLMULQDQ, which the disassembler groups.
VEX_256: Opcodes = _table((2, P66, (0xDC, 0xDD, 0xDE, 0xDF), "vaes"), (3, P66, (0x44,), "vpclmulqdq"))


class Vector(NamedTuple):
    """The fields of a VEX or EVEX instruction that say what it is; ``length`` up to and with its opcode."""

    evex: bool
    space: int
    prefix: int
    opcode: int
    wide: bool  # W
    long: bool  # 256 bits, for VEX
    length: int

    def features(self) -> Iterator[str]:
        """Yield the features that the disassembler does not know of."""
        key = (self.space, self.prefix, self.opcode)
        if not self.evex:
            if key in VEX:
                yield VEX[key]
            if self.long and key in VEX_256:
                yield VEX_256[key]
            return
        yield from EVEX_FEATURES
        if self.space in FP16_MAPS:
            yield "avx512_fp16"
        elif key in EVEX:
            yield EVEX[key]
        elif key in EVEX_BYTE_PERMUTES and not self.wide:
            yield "avx512vbmi"


def vector(code: bytes) -> Vector | None:
    """Return the fields of the VEX or EVEX instruction at the start of ``code``, None for any other."""
    match code[:1]:
        case b"\xc5" if len(code) > 2:
            return Vector(False, 1, code[1] & 3, code[2], False, bool(code[1] & 4), 3)
        case b"\xc4" if len(code) > 3:
            return Vector(False, code[1] & 31, code[2] & 3, code[3], bool(code[2] & 128), bool(code[2] & 4), 4)
        case b"\x62" if len(code) > 4:
            return Vector(True, code[1] & 7, code[2] & 3, code[4], bool(code[2] & 128), False, 5)
    return None


def instruction_key(mnemonic: str, _operands: str, code: bytes) -> Hashable:
    """Return what an instruction's features follow from: its opcode, and whether it has an operand in memory.

    Which registers and addresses it uses, and its immediate, have no part in them.
    """
    found = vector(code)
    if found is not None:
        width = code[3] >> 5 & 3 if found.evex else 0
        return mnemonic, found[:-1], width, _is_register(code[found.length :])
    rest = code.lstrip(_LEGACY_PREFIXES)
    prefixes = code[: len(code) - len(rest)]
    if rest[:1] in _VECTOR_PREFIXES:
        return code
    if rest[0] & 0xF0 == 0x40:  # REX
        rest = rest[1:]
    size = 1 if rest[:1] != b"\x0f" else 3 if rest[1:2] in (b"\x38", b"\x3a") else 2
    return mnemonic, prefixes, rest[:size], _is_register(rest[size:])


def _is_register(code: bytes) -> bool:
    """Say whether the ModRM byte at the start, if there is one, names no memory."""
    return bool(code) and code[0] >> 6 == 3


def instruction_features(instruction: Any) -> Iterator[str]:
    """Yield the features that an instruction of the disassembler needs; baseline x86-64 has none."""
    mnemonic = instruction.mnemonic
    yield from (GROUPS[group] for group in instruction.groups if group in GROUPS)
    if mnemonic in MNEMONICS:
        yield MNEMONICS[mnemonic]
    if instruction.bytes[0] != 0x62:  # EVEX forms of FMA are of AVX-512 itself
        yield from (feature for prefix, feature in PREFIXES.items() if mnemonic.startswith(prefix))
    found = vector(instruction.bytes)
    if found is not None:
        yield from found.features()


def unknown_instruction(code: bytes) -> tuple[int, tuple[str, ...]]:
    """Return size in bytes and features of what stands at the start of ``code`` and the disassembler does not know.

    Anything but VEX and EVEX counts as one byte of data between functions.
    """
    found = vector(code)
    if found is None or len(code) <= found.length:
        return 1, ()
    immediate = 1 if found.space == 3 else 0
    return found.length + _operand_bytes(code[found.length :]) + immediate, tuple(found.features())


def _operand_bytes(code: bytes) -> int:
    """Return the size of ModRM, SIB and displacement."""
    mode, base = code[0] >> 6, code[0] & 7
    if mode == 3:
        return 1
    size = 1
    if base == 4:
        size += 1
        base = code[1] & 7 if len(code) > 1 else 0
    if mode == 0:
        return size + (4 if base == 5 else 0)
    return size + (1 if mode == 1 else 4)
