"""CPU features of x86-64 instructions, as the disassembler iced-x86 lists them for each."""

from __future__ import annotations

from iced_x86 import Code, CpuidFeature, Decoder, Instruction

# The disassembler's names of features beyond the baseline, and those of the kernel. What has a use only in an operating
# system, or where code asks the CPU first, is left out: XSAVE (so the runtime uses xgetbv), RTM, PKU.
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
# Starts nothing but EVEX in 64-bit code: what is newer than the disassembler needs AVX-512 at least. All else that is
# not known counts as data between functions.
_EVEX = 0x62


def code_features(code: bytes) -> set[str]:
    """Return the features that the instructions in ``code`` need; baseline x86-64 has none."""
    found: set[str] = set()
    seen: set[int] = set()
    decoder, instruction = Decoder(64, code), Instruction()
    while decoder.can_decode:
        decoder.decode_out(instruction)
        kind = instruction.code  # a line of the manual: features are the same whatever the operands
        if kind == Code.INVALID:
            if code[decoder.position - instruction.len] == _EVEX:
                found.add("avx512f")
        elif kind not in seen:
            seen.add(kind)
            found.update(_NAMES[feature] for feature in instruction.cpuid_features() if feature in _NAMES)
    return found
