"""Code for several CPUs in one bundle: what its sections and functions are called.

The code that every session may run lies in ``.text``. What only sessions on a better CPU run lies in a section of its
own for each level, so that a reader of the file can tell which instructions are behind which check.
"""

from __future__ import annotations

import re

CODE_PREFIX = ".packager.code."
DISPATCHED_SECTION = ".packager.dispatched"
"""Code that asks the CPU itself before it uses what not every CPU has."""


def code_section(level: str) -> str:
    """Return the section of the code that only sessions of a level run."""
    return CODE_PREFIX + level


def form_name(symbol: str, level: str) -> str:
    """Return the name of a function's form for a level in the linked file; the least level, "", keeps the name."""
    return f"{symbol}__{level_identifier(level)}" if level else symbol


def level_identifier(level: str) -> str:
    """Return a level as part of a C identifier."""
    return re.sub(r"\W", "_", level)


# Each of these has all that the ones before it have.
LEVELS = ("x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4")

# The x86-64 psABI's microarchitecture levels, in the kernel's names of the features.
_V1 = frozenset({"cmov", "cx8", "fpu", "fxsr", "mmx", "syscall", "sse", "sse2"})

_V2 = _V1 | frozenset({"cx16", "lahf_lm", "popcnt", "pni", "sse4_1", "sse4_2", "ssse3"})

_V3 = _V2 | frozenset({"avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"})

_V4 = _V3 | frozenset({"avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"})

_LEVELS = {"x86-64-v1": _V1, "x86-64-v2": _V2, "x86-64-v3": _V3, "x86-64-v4": _V4}
