"""The vector unit that C is rendered for, the instructions that depend on it, and register tiles of GEMM."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Machine:
    """The vector registers of a CPU: their bytes, their number, and the instruction set.

    With ``quads`` there is an instruction for dot products of four bytes (AVX-512 VNNI).
    """

    vector_bytes: int
    registers: int
    name: str  # "sse2", "avx2", "avx512", "aarch64"
    quads: bool = False

    @property
    def embeds(self) -> bool:
        """Whether instructions broadcast a memory operand to all lanes."""
        return self.name == "avx512"


# C that loads float16 at p as floats, and stores floats as float16; empty without such an instruction.
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

# C for the maximum of two vectors of floats in one instruction, and for the minimum.
VECTOR_MAXIMA = {
    "avx2": "__builtin_ia32_maxps256(a, b)",
    "avx512": "__builtin_ia32_maxps512_mask(a, b, a, -1, 4)",
    "sse2": "__builtin_ia32_maxps(a, b)",
}

# The same of bytes; {0} is u for unsigned ones and s for signed ones, {1} their type.
BYTE_MAXIMA = {
    "avx2": "(pk_{1}_bytes)__builtin_ia32_pmax{0}b256((pk_any_bytes)a, (pk_any_bytes)b)",
    "avx512": "(pk_{1}_bytes)__builtin_ia32_pmax{0}b512_mask((pk_any_bytes)a, (pk_any_bytes)b, (pk_any_bytes)a, -1)",
    "sse2": "((pk_{1}_bytes)(a > b) & a) | (~(pk_{1}_bytes)(a > b) & b)",
    "aarch64": "((pk_{1}_bytes)(a > b) & a) | (~(pk_{1}_bytes)(a > b) & b)",
}

VECTOR_MINIMA = {machine: text.replace("max", "min") for machine, text in VECTOR_MAXIMA.items()}

# C that loads and stores the first n lanes of a vector of floats. Other machines go through memory; so do stores of
# AVX2, whose instruction for it takes longer on some CPUs.
SOME_LOADS = {
    "avx2": (
        "__builtin_ia32_blendvps256((pk_vf32){0} + other, __builtin_ia32_maskloadps256((const pk_vf32 *)p,"
        " (int32_t)n > (pk_nf32){0, 1, 2, 3, 4, 5, 6, 7}),"
        " (pk_vf32)((int32_t)n > (pk_nf32){0, 1, 2, 3, 4, 5, 6, 7}))"
    ),
    "avx512": "__builtin_ia32_loadups512_mask(p, (pk_vf32){0} + other, (uint16_t)((1u << n) - 1))",
}
# C that loads those lanes from ``at`` on that a line of ``n`` elements has, and zeros for the others.
WITHIN_LOADS = {
    "avx2": (
        "__builtin_ia32_maskloadps256((const pk_vf32 *)(line + at),"
        " ((pk_nf32){0, 1, 2, 3, 4, 5, 6, 7} + (int32_t)at >= 0)"
        " & ((pk_nf32){0, 1, 2, 3, 4, 5, 6, 7} + (int32_t)at < (int32_t)n))"
    ),
    "avx512": (
        "__builtin_ia32_loadups512_mask(line + at, (pk_vf32){0}, (uint16_t)((uint32_t)(at > -16 ? -1 : 0)"
        " << (at < 0 ? -at & 31 : 0) & (n - at < 16 ? (1u << (n > at ? n - at : 0)) - 1 : 0xffffu)))"
    ),
}
SOME_STORES = {"avx512": "__builtin_ia32_storeups512_mask(p, v, (uint16_t)((1u << n) - 1))"}

# C that widens bytes to a vector of words; {} is s for signed, z for unsigned bytes.
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

# C for pairs of products of unsigned and signed bytes, added up in 16 bits with saturation, and for the sums of pairs
# of 16 bits.
BYTE_PAIRS = {
    "avx2": "__builtin_ia32_pmaddubsw256((pk_byte_chars)weights, (pk_byte_chars)all)",
    "avx512": "__builtin_ia32_pmaddubsw512_mask((pk_byte_chars)weights, (pk_byte_chars)all, (pk_byte_shorts){0}, -1)",
}

HALVES_SUMS = {
    "avx2": "__builtin_ia32_pmaddwd256((pk_byte_shorts)halves, (pk_byte_shorts)ones)",
    "avx512": "__builtin_ia32_pmaddwd512_mask((pk_byte_shorts)halves, (pk_byte_shorts)ones, (pk_words){0}, -1)",
}

COLUMNS = 16  # of a panel of packed weights


@dataclass(frozen=True)
class Kind:
    """C types of data in memory and in tiles, of weights, and of accumulators; ``pair`` products are one step."""

    name: str
    stored: str
    data: str
    weight: str
    total: str
    pair: int = 1

    @property
    def unit(self) -> int:
        """Elements of data per step, in the type that tiles read."""
        return 1 if self.converts else self.pair

    @property
    def converts(self) -> bool:
        """Whether data is converted when rows are gathered."""
        return self.data != self.stored


KINDS = {
    "float32": Kind("f32", "float", "float", "float", "float"),
    "float16": Kind("f16", "uint16_t", "float", "uint16_t", "float"),
    "int32": Kind("i32", "int32_t", "int32_t", "uint32_t", "uint32_t"),
    "int8": Kind("i8", "int8_t", "int32_t", "int8_t", "uint32_t", pair=2),
    "uint8": Kind("u8", "uint8_t", "uint8_t", "int8_t", "uint32_t", pair=4),  # with weights of int8
}


@dataclass(frozen=True, order=True)
class Tile:
    """A tile function: rows x panels of 16 columns.

    A ``near`` one does not fetch weights ahead, which the cache has: prefetches of it cost as much as loads. A ``half``
    one computes eight columns of the last panel, where a product has no more.
    """

    kind: str
    rows: int
    panels: int
    vectors: int  # of a panel
    near: bool = False
    half: bool = False

    @property
    def columns(self) -> int:
        """The columns that it computes."""
        return self.panels * COLUMNS - self.half * COLUMNS // 2

    @property
    def name(self) -> str:
        """Its name in C."""
        return f"pk_tile_{self.kind}_{self.rows}x{self.columns}{'_near' if self.near else ''}"


@dataclass(frozen=True, order=True)
class Dots:
    """A function of float32 rows times ``columns`` columns, too few for a panel: vectors run along a row's elements."""

    columns: int

    @property
    def name(self) -> str:
        """Its name in C."""
        return f"pk_dots_{self.columns}"


@dataclass(frozen=True, order=True)
class Narrow:
    """A tile function of float32 rows times ``groups``, each of ``inner`` channels and ``outer`` columns."""

    inner: int
    outer: int
    groups: int
    rows: int

    @property
    def name(self) -> str:
        """Its name in C."""
        return f"pk_narrow_{self.inner}_{self.outer}_{self.groups}_{self.rows}"


@dataclass(frozen=True)
class Other:
    """A C function that computes all columns of a block, and what it is rendered from.

    Its sums have as many columns, or ``pitch`` if that is more, and a step has ``step`` elements of weights.
    """

    name: str
    step: int
    made_of: frozenset[Tile | Dots | Narrow]
    pitch: int = 0
