"""Renders an explanation, and the partition table, as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packager.cli.reports.graphs import part_text
from packager.cli.reports.tables import aligned
from packager.errors import listed
from packager.pipeline.explain import ExplainedChoices, Explanation

COLUMNS = ("partition", "backend", "composite", "calls", "operators", "MFLOPs", "nodes")
SHOWN_NODES = 3


def assumptions(found: Explanation) -> list[str]:
    """Return a line for each dim that was given bounds here."""
    return [
        f"dim        {name} has no bounds: {low}:{high} assumed, a build wants --dim {name}=MIN:MAX"
        for name, (low, high) in (found.assumed or {}).items()
    ]


def render(found: Explanation) -> str:
    """Return an explanation as text."""
    lines = [f"model      {found.model} ({found.format})"]
    for spec in found.inputs:
        lines.append(f"input      {spec.name}  {spec.dtype}[{', '.join(map(str, spec.shape))}]")
    lines += [f"output     {name}" for name in found.outputs]
    if found.operators is not None:
        lines.append(f"constants  {found.constants}, {found.constant_bytes / 2**20:.2f} MiB")
        lines.append("operators  " + ", ".join(f"{count} {name}" for name, count in found.operators.items()))
    lines += [f"{'' if number else 'targets':10} {text}" for number, text in enumerate(found.targets)]
    lines += assumptions(found)
    for extent in found.extents:
        lines.append(f"extent     {extent.name}  0..{extent.bound}, read during a run from node {extent.node!r}")
    if found.extents and found.on_cuda:
        lines.append("           the host waits for the GPU to copy them, once for those that are known together")
    for entry, parts in found.parts.items():
        title = f"of {entry}: " if len(found.parts) > 1 else ""
        lines += [f"{'' if number else 'graphs':10} {title}{part_text(part)}" for number, part in enumerate(parts)]
    if found.table is not None:
        lines += ["", render_table(found.table)]
    lines += [] if found.choices is None else ["", *_choices(found.choices)]
    for left in found.leftovers:
        lines += [f"  {left.operator}: {kind} {reason}" for kind, reason in left.reasons.items()]
    lines.append("")
    if found.refusal is None:
        lines.append("supported: a build would compile all of it")
        return "\n".join(lines)
    lines.append(f"refused: {found.refusal.message}")
    lines += [f"  {line}" for line in found.refusal.detail]
    lines += [f"hint: {found.refusal.hint}"] if found.refusal.hint else []
    return "\n".join(lines)


def _choices(found: ExplainedChoices) -> list[str]:
    """Return the lines on what a trial would measure."""
    matches = ", ".join(f"{count} of {kind}" for kind, count in found.matches.items())
    several = [region for region in found.regions if len(region.alternatives) > 1]
    total = sum(region.count for region in found.regions)
    lines = [
        f"candidates {matches or 'none'}",
        f"plans      {', '.join(found.layouts)}",
        f"regions    {total} in {len(found.regions)} classes, {len(several)} with a choice",
    ]
    for region in several:
        times = f", {region.count} times" if region.count > 1 else ""
        lines.append(f"  {region.problem}{times} ({region.source})")
        lines += [f"    {'*' if name in region.linked else ' '} {name}" for name in region.alternatives]
    return lines


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
            listed((node for site in row["sites"] for node in site["nodes"]), SHOWN_NODES),
        )
        for row in table["partitions"]
        if row["undone"] is None
    ]
    lines = aligned([COLUMNS, *rows]) if rows else ["no backend takes a part of this model"]
    undone = [row for row in table["partitions"] if row["undone"] is not None]
    lines += [f"undone: {row['partition']} ({row['composite']}): {row['undone']}" for row in undone]
    rest = ", ".join(f"{count} {operator}" for operator, count in table["rest"].items())
    lines.append(f"{table['generator']} compiles the rest: {rest or 'nothing'}")
    return "\n".join(lines)
