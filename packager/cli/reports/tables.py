"""Prints tables: with rich on a terminal, as aligned plain text when piped."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TextIO


@dataclass(frozen=True)
class Table:
    """A titled table; ``columns`` may be empty strings for a list of facts."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def print_tables(tables: Iterable[Table], stream: TextIO | None = None) -> None:
    """Write tables to a stream (stdout): with rich on a terminal, else as plain text without escapes."""
    stream = stream or sys.stdout
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
        lines = ([table.columns] if any(table.columns) else []) + list(table.rows)
        widths = [max(len(line[column]) for line in lines) for column in range(len(table.columns))] if lines else []
        for line in lines:
            cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
            print("  " + "  ".join(cells).rstrip(), file=stream)
        print(file=stream)
