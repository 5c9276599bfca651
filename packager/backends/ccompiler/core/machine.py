"""The vector unit that C is rendered for, and the instructions that depend on it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """What the compiler's options give: bytes of a vector register, how many there are, and their kind.

    With ``quads`` there is an instruction that adds up four products of bytes (AVX-512 VNNI).
    """

    vector_bytes: int
    registers: int
    name: str  # "sse2", "avx2", "avx512", "aarch64"
    quads: bool = False

    @property
    def embeds(self) -> bool:
        """Whether an instruction reads one element for all lanes itself."""
        return self.name == "avx512"


# How each machine loads halves as floats (p), stores floats as halves, and adds the products of pairs of int16.
HALF_LOADS = {
    "avx2": "__builtin_ia32_vcvtph2ps256(*(const pk_uh *)p)",
    "avx512": "__builtin_ia32_vcvtph2ps512_mask(*(const pk_uh *)p, (pk_vf32){0}, -1, 4)",
    "aarch64": "__builtin_convertvector(*(const pk_uh *)p, pk_vf32)",
    "sse2": "",
}

HALF_STORES = {
    "avx2": "(pk_uh)__builtin_ia32_vcvtps2ph256(pk_load_f32(from + i), 0)",
    "avx512": "(pk_uh)__builtin_ia32_vcvtps2ph512_mask(pk_load_f32(from + i), 0, (pk_uh){0}, -1)",
    "aarch64": "__builtin_convertvector(pk_load_f32(from + i), pk_uh)",
    "sse2": "",
}

# The greater of two floats in each lane, by one instruction.
VECTOR_MAXIMA = {
    "avx2": "__builtin_ia32_maxps256(a, b)",
    "avx512": "__builtin_ia32_maxps512_mask(a, b, a, -1, 4)",
    "sse2": "__builtin_ia32_maxps(a, b)",
}

# As many bytes as a vector has words, as words; the letter says whether with their sign.
BYTE_LOADS = {
    "avx2": "__builtin_ia32_pmov{}xbd256((pk_chars)(pk_longs){{*(const pk_long *)p, 0}})",
    "avx512": "__builtin_ia32_pmov{}xbd512_mask(*(const pk_chars *)p, (pk_words){{0}}, -1)",
}

PAIR_PRODUCTS = {
    "avx2": "(pk_vi32)__builtin_ia32_pmaddwd256((pk_wi8)pairs, w)",
    "avx512": "(pk_vi32)__builtin_ia32_pmaddwd256((pk_wi8)pairs, w)",
    "sse2": "(pk_vi32)__builtin_ia32_pmaddwd128((pk_wi8)pairs, w)",
    "aarch64": "pk_low(pairs) * pk_low((pk_vi32)w) + pk_high(pairs) * pk_high((pk_vi32)w)",
}
