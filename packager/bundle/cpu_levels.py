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
