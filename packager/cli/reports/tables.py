"""Prints tables: with rich on a terminal, as aligned plain text when piped."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True)
class Table:
    """A titled table; empty ``columns`` have no header."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def facts(title: str, *rows: tuple[str, str]) -> Table:
    """Return a table of names and values, without a header."""
    return Table(title, ("", ""), rows)


def print_tables(tables: Iterable[Table], stream: TextIO | None = None) -> None:
    """Write tables to a stream (stdout): with rich on a terminal, else as plain text without escapes."""
    stream = stream or sys.stdout
    tables = [Table(printable(t.title), t.columns, tuple(tuple(map(printable, row)) for row in t.rows)) for t in tables]
    if stream.isatty():
        from rich.console import Console  # slow to import, not needed when piped
        from rich.table import Table as RichTable
        from rich.text import Text

        console = Console(file=stream)
        for table in tables:
            shown = RichTable(title=table.title, title_justify="left", show_header=any(table.columns), box=None)
            for column in table.columns:
                shown.add_column(column, overflow="fold")
            for row in table.rows:
                shown.add_row(*(Text(cell) for cell in row))  # Text: names must not be parsed as rich markup
            console.print(shown)
            console.print()
        return
    for table in tables:
        print(table.title, file=stream)
        for line in aligned([*([table.columns] if any(table.columns) else []), *table.rows]):
            print(f"  {line}", file=stream)
        print(file=stream)


def printable(text: str) -> str:
    """Escape what a terminal obeys and does not show: a file's names must neither forge rows nor move the cursor."""
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return rows as lines of left-aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(map(str.ljust, row, widths)).rstrip() for row in rows]
