"""Render the partition table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packager.placement.table import COLUMNS, _align, _nodes


def render_table(table: Mapping[str, Any]) -> str:
    """Return the table as text."""
    rows = [
        (
            row["partition"],
            row["backend"],
            row["composite"],
            str(len(row["sites"])),
            str(len(row["operators"])),
            f"{row['flops'] / 1e6:.3f}",
            _nodes([node for site in row["sites"] for node in site["nodes"]]),
        )
        for row in table["partitions"]
        if row["undone"] is None
    ]
    lines = _align([COLUMNS, *rows]) if rows else ["no backend takes a part of this model"]
    undone = [row for row in table["partitions"] if row["undone"] is not None]
    lines += [f"undone: {row['partition']} ({row['composite']}): {row['undone']}" for row in undone]
    rest = ", ".join(f"{count} {operator}" for operator, count in table["rest"].items())
    lines.append(f"{table['generator']} compiles the rest: {rest or 'nothing'}")
    return "\n".join(lines)
