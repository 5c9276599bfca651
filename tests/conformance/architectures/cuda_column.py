"""The column of docs/models.md for CUDA, which is judged on another machine than the others."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_name("cuda.json")
HEADING = "`.pt2` on CUDA"
OTHER_COLUMNS = 4
_PARAGRAPH = re.compile(r"\nOn CUDA .*?\n\n", re.DOTALL)


def record(results: Mapping[str, Any], targets: Sequence[str]) -> dict[str, Any]:
    """Return what is kept of the results that ``gpu run`` has written: one verdict for all sizes of an architecture."""
    cuda = results["machine"]["cuda"]
    architectures: dict[str, dict[str, Any]] = {
        name: {"verdict": outcome["status"], "reason": outcome["message"]}
        for name, outcome in results["refused"].items()
    }
    for run, outcome in results["runs"].items():
        found = architectures.setdefault(run.partition("/")[0], {"verdict": "right", "error": 0.0})
        found["error"] = max(found["error"], outcome["error"] or 0.0)
        if outcome["status"] != "right":
            found |= {"verdict": outcome["status"], "reason": outcome["message"]}
    return {
        "targets": list(targets),
        "gpu": cuda["devices"][0]["name"],
        "driver": cuda["driver_version"],
        "architectures": architectures,
    }


def with_cuda(text: str, column: Mapping[str, Any]) -> str:
    """Return the document with the column, in place of the one that it may have."""
    architectures = column["architectures"]
    lines = [_with_cell(line, architectures) if line.startswith("|") else line for line in text.splitlines()]
    right = sum(found["verdict"] == "right" for found in architectures.values())
    targets = " ".join(f"-t {json.dumps(target) if ' ' in target else target}" for target in column["targets"])
    paragraph = (
        f"\nOn CUDA {right} of {len(architectures)} are right as `.pt2`, built with `{targets}` on a machine without\n"
        f"a GPU and run on an {column['gpu']}: `python -m tests.conformance.architectures.gpu`.\n\n"
    )
    document = _PARAGRAPH.sub("\n", "\n".join(lines) + "\n")
    return document.replace("\n| architecture |", f"{paragraph}| architecture |", 1)


def _with_cell(line: str, architectures: Mapping[str, Any]) -> str:
    """Return a row of the table with the last cell."""
    cells = [cell.strip() for cell in line.strip("|").split("|")][:OTHER_COLUMNS]
    if cells[0] == "architecture":
        return f"| {' | '.join([*cells, HEADING])} |"
    if cells[0].startswith("---"):
        return f"|{'|'.join([*cells, '---'])}|"
    found = architectures.get(cells[0].strip("`"))
    return f"| {' | '.join([*cells, _cell(found) if found else 'not tried'])} |"


def _cell(found: Mapping[str, Any]) -> str:
    if found["verdict"] != "right":
        return str(found["verdict"])
    return f"right ({found['error']:.0e})".replace("e-0", "e-")
