"""Renders the data sections of a bundle that the linker's input has as they are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from packager.codegen.templates import render


@dataclass(frozen=True)
class DataSection:
    """A data section; ``content`` is an assembler directive."""

    name: str
    flags: str
    symbols: tuple[str, ...]
    content: str


def render_data(sections: Sequence[DataSection]) -> str:
    """Return the assembly source of the data sections."""
    return render("entrypoint/data.S.j2", sections=sections)
