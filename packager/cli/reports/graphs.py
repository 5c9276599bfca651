"""Renders the parts of runs on a GPU that are not one CUDA graph as a whole."""

from __future__ import annotations

from packager.bundle.manifest import RunPart


def part_text(part: RunPart) -> str:
    """Return a part as text."""
    again = ", repeated by the host" if part.repeated else ""
    if part.kind == "wait":
        return f"the host waits for {', '.join(part.extents) or 'the condition of a loop'}{again}"
    calls = f"call {part.first}" if part.first == part.last else f"calls {part.first} to {part.last}"
    if part.kind == "launches":
        return f"{calls}: launched{again}"
    each = f", one for each value of {' and '.join(part.extents)}" if part.extents else ""
    return f"{calls}: a CUDA graph{each}{again}"
