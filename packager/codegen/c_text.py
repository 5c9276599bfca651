"""Escape names and strings for C."""

from __future__ import annotations

import re


def macro(name: str) -> str:
    """Return ``name`` as an upper-case C identifier."""
    text = re.sub(r"\W", "_", name, flags=re.ASCII).upper()
    return text if not text[:1].isdigit() else f"M{text}"


def comment_text(text: str) -> str:
    """Escape ``text`` so that it neither ends a C comment nor starts one."""
    return text.replace("*/", "* /").replace("/*", "/ *")


def c_string(text: str) -> str:
    """Return a C string literal."""
    escaped = "".join(
        chr(byte) if 32 <= byte < 127 and byte not in b'"\\?' else f"\\{byte:03o}" for byte in text.encode()
    )
    return f'"{escaped}"'
