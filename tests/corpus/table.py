"""The table of docs/exporters.md: written from outcomes, and read back to compare with what is committed."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .case import Case
    from .running import Outcome

PATH = Path(__file__).parents[2] / "docs" / "exporters.md"

INTRODUCTION = """# Exporters

ONNX files by the exporters that people use, built with the default Targets and compared with onnxruntime, which runs
them without fusions of its own, at several sizes of their dims. The models are small and have random weights;
[scripts](../tests/corpus/files.py) make them, and download nothing. Dims with bounds are dynamic. The number is the
largest difference, where 1 is an output's root mean square; quantized models may have 2% of elements a quantum apart,
and of models that draw random numbers the shapes are compared.

`python -m tests.corpus --table` makes all files for which the exporters are installed, and writes their rows anew.
Files that were not run since they were added have no row.

"""
ROW = re.compile(
    r"\| `(?P<model>[^`]+)` \| `(?P<exporter>[^`]+)` \| [^|]* "
    r"\| (?P<verdict>[a-z ]+?)(?: \(1e-?\d+\))?(?:: (?P<reason>[^|]*))? \|$"
)


def render(outcomes: Mapping[str, Outcome], cases: Mapping[str, Case], before: str = "") -> str:
    """Return the document: a row for each outcome, and the rows that were there for the cases that were not run."""
    rows = _rows(before)
    for name, outcome in outcomes.items():
        rows[name] = _row(cases[name], outcome)
    lines = [rows[name] for name in cases if name in rows]
    counts: dict[str, Counter[str]] = {}
    for line in lines:
        if match := ROW.match(line):
            counts.setdefault(match["exporter"], Counter())[match["verdict"]] += 1
    summary = [
        f"| `{exporter}` | {count['right']} | {sum(count.values()) - count['right']} |"
        for exporter, count in counts.items()
    ]
    return (
        INTRODUCTION
        + "\n".join(["| exporter or tool | right | other |", "|---|---|---|", *summary])
        + "\n\n"
        + "\n".join(["| model | exporter or tool | dims | outcome |", "|---|---|---|---|", *lines])
        + "\n"
    )


def verdicts(text: str) -> dict[str, str]:
    """Return the verdict of each file in a document."""
    return {name: match["verdict"] for name, line in _rows(text).items() if (match := ROW.match(line))}


def _rows(text: str) -> dict[str, str]:
    found = {}
    for line in text.splitlines():
        if match := ROW.match(line):
            found[f"{match['model']}.{match['exporter']}"] = line
    return found


def _row(case: Case, outcome: Outcome) -> str:
    dims = ", ".join(
        f"{name} {bounds}" if isinstance(bounds, int) else f"{name} {bounds[0]}:{bounds[1]}"
        for name, bounds in case.dims.items()
    )
    cell = outcome.verdict
    if cell == "right" and outcome.error:
        cell += f" (1e{math.ceil(math.log10(outcome.error))})"
    elif outcome.reason:
        reason = re.sub(r"\S*/(\S+\.onnx)", r"\1", outcome.reason).replace("|", "/")
        cell += ": " + re.sub(r"[`<>\[\]*\n]", "", reason)[:160].strip()
    return f"| `{case.model}` | `{case.exporter}` | {dims or 'none'} | {cell} |"
