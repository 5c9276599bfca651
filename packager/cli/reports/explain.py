"""Render an explanation as text."""

from __future__ import annotations

from packager.pipeline.explain import Explanation


def assumptions(found: Explanation) -> list[str]:
    """Return a line for each dim that was given bounds here."""
    return [
        f"dim        {name} has no bounds: {low}:{high} assumed, a build wants --dim {name}=MIN:MAX"
        for name, (low, high) in (found.assumed or {}).items()
    ]


def render(found: Explanation) -> str:
    """Return an explanation as text."""
    from packager.cli.reports.placement import render_table

    lines = [f"model      {found.model} ({found.format})"]
    for spec in found.inputs:
        lines.append(f"input      {spec.name}  {spec.dtype}[{', '.join(map(str, spec.shape))}]")
    lines += [f"output     {name}" for name in found.outputs]
    if found.operators is not None:
        lines.append(f"constants  {found.constants}, {found.constant_bytes / 2**20:.2f} MiB")
        lines.append("operators  " + ", ".join(f"{count} {name}" for name, count in found.operators.items()))
    lines += assumptions(found)
    if found.table is not None:
        lines += ["", render_table(found.table)]
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
