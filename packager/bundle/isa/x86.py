"""CPU features of x86-64 instructions, from the disassembler iced-x86."""

from __future__ import annotations

from iced_x86 import Code, CpuidFeature, Decoder, Instruction, OpKind

# iced-x86's feature names -> the kernel's, beyond the baseline. Omits features for operating systems, or used only
# behind a CPUID check: XSAVE (the runtime uses xgetbv), RTM, PKU.
KERNEL_NAMES = {
    "SSE3": "pni",
    "LZCNT": "abm",
    "CMPXCHG16B": "cx16",
    "PREFETCHW": "3dnowprefetch",
    "SHA": "sha_ni",
    "AVX512_IFMA": "avx512ifma",
    "AVX512_VBMI": "avx512vbmi",
} | {
    name: name.lower()
    for name in (
        *("SSSE3", "SSE4_1", "SSE4_2", "POPCNT", "MOVBE", "AES", "PCLMULQDQ", "BMI1", "BMI2", "ADX", "GFNI"),
        *("AVX", "AVX2", "FMA", "F16C", "VAES", "VPCLMULQDQ", "FMA4", "XOP", "TBM"),
        *("AVX_VNNI", "AVX_VNNI_INT8", "AVX_VNNI_INT16", "AVX_IFMA", "AVX_NE_CONVERT"),
        *("AVX512F", "AVX512BW", "AVX512CD", "AVX512DQ", "AVX512VL", "AVX512_BF16", "AVX512_BITALG", "AVX512_FP16"),
        *("AVX512_VBMI2", "AVX512_VNNI", "AVX512_VP2INTERSECT", "AVX512_VPOPCNTDQ"),
        *("AMX_TILE", "AMX_INT8", "AMX_BF16", "AMX_FP16"),
    )
}
_NAMES = {number: KERNEL_NAMES[name] for name, number in vars(CpuidFeature).items() if name in KERNEL_NAMES}
# In 64-bit code this byte only starts EVEX instructions: an unknown one requires AVX-512 at least. Other unknown bytes
# are data between functions.
_EVEX = 0x62
_BRANCHES = (OpKind.NEAR_BRANCH32, OpKind.NEAR_BRANCH64)


def code_features(code: bytes) -> set[str]:
    """Return the features required by ``code`` beyond baseline x86-64."""
    found: set[str] = set()
    seen: set[int] = set()
    decoder, instruction = Decoder(64, code), Instruction()
    while decoder.can_decode:
        decoder.decode_out(instruction)
        kind = instruction.code  # identifies mnemonic and operand types, which determine the features
        if kind == Code.INVALID:
            if code[decoder.position - instruction.len] == _EVEX:
                found.add("avx512f")
        elif kind not in seen:
            seen.add(kind)
            found.update(_NAMES[feature] for feature in instruction.cpuid_features() if feature in _NAMES)
    return found


def operand_places(code: bytes) -> tuple[set[int], set[int]]:
    """Return the offsets of 32-bit operands: of those relative to the next instruction, and of the others."""
    relative: set[int] = set()
    others: set[int] = set()
    decoder, instruction = Decoder(64, code), Instruction()
    while decoder.can_decode:
        start = decoder.position
        decoder.decode_out(instruction)
        if instruction.len < 5 or instruction.code == Code.INVALID:
            continue
        places = decoder.get_constant_offsets(instruction)
        if places.displacement_size == 4:
            found = relative if instruction.is_ip_rel_memory_operand else others
            found.add(start + places.displacement_offset)
        if places.immediate_size == 4:
            found = relative if instruction.op0_kind in _BRANCHES else others
            found.add(start + places.immediate_offset)
    return relative, others
