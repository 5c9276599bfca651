"""Locates the files shipped beside the Python code: templates and the C runtime."""

from __future__ import annotations

from pathlib import Path

PACKAGE = Path(__file__).parent  # the Python code


def folder(name: str) -> Path:
    """Return the folder ``templates`` or ``runtime_stub``: inside an installed package, beside it in a checkout."""
    installed = PACKAGE / name
    return installed if installed.is_dir() else PACKAGE.parent / name
