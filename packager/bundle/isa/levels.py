"""Names of CPU levels, and of the sections and functions compiled for them.

Code for every session is in ``.text``. Code for sessions of a higher level has a section per level, so that a reader of
the file can tell which instructions are behind which check.
"""

from __future__ import annotations

import re

LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")
"""In increasing order: each level includes the features of the ones before."""
CODE_PREFIX = ".packager.code."
DISPATCHED_SECTION = ".packager.dispatched"
"""Code that checks the CPU itself before it uses optional instructions."""

# The x86-64 psABI's microarchitecture levels, with the kernel's feature names.
_V1 = frozenset({"cmov", "cx8", "fpu", "fxsr", "mmx", "syscall", "sse", "sse2"})
_V2 = _V1 | frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})
_V3 = _V2 | frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"})
_V4 = _V3 | frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})
LEVEL_FEATURES = {"x86-64-v1": _V1, "x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4}


def code_section(level: str) -> str:
    """Return the section of code that only sessions of a level run."""
    return CODE_PREFIX + level


def clone_symbol(symbol: str, level: str) -> str:
    """Return the symbol of a function's clone for a level; the lowest level, "", keeps the symbol."""
    return f"{symbol}__{level_identifier(level)}" if level else symbol


def level_identifier(level: str) -> str:
    """Return a level as part of a C identifier."""
    return re.sub(r"\W", "_", level)
