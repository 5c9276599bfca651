"""The table of docs/models.md: written from outcomes, and read back to compare with what is committed."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from .compare import ATOL, RTOL
from .cuda_column import RESULTS, with_cuda
from .running import FORMS, Outcome

PATH = Path(__file__).parents[3] / "docs" / "models.md"
NAMES = {"pt2": "`.pt2`", "onnx": "ONNX"}

INTRODUCTION = f"""# Models

Architectures that are exported by torch in two forms, built with the default Targets, and compared with torch on the
CPU in float32: small configurations with random weights, as [the tests](../tests/conformance/architectures/models.py)
make them. `.pt2` is written by `torch.export.save`, ONNX by `torch.onnx.export(dynamo=True)`.

An output is right where it differs by at most {RTOL:g} of each element plus {ATOL:g} of the root mean square of the
whole tensor. The number is the largest difference, where 1 is that root mean square. A bundle with dynamic dims is
compared at two sizes of them.

`python -m tests.conformance.architectures` writes this table anew.

"""


def render(outcomes: Sequence[Outcome], dynamic: Mapping[str, Sequence[str]]) -> str:
    """Return the document. ``dynamic`` gives the dynamic dims of each architecture, in the order of the table."""
    cells = {(outcome.architecture, outcome.form): outcome for outcome in outcomes}
    lines = [
        f"| architecture | dynamic dims | {' | '.join(NAMES[form] for form in FORMS)} |",
        "|---" * (2 + len(FORMS)) + "|",
    ]
    for name, dims in dynamic.items():
        row = [f"`{name}`", ", ".join(dims) or "none", *(_cell(cells[name, form]) for form in FORMS)]
        lines.append(f"| {' | '.join(row)} |")
    counts = [
        f"{sum(cells[name, form].verdict == 'right' for name in dynamic)} of {len(dynamic)} are right as {NAMES[form]}"
        for form in FORMS
    ]
    reasons = [
        f"- `{outcome.architecture}` as {NAMES[outcome.form]}: {_plain(outcome.reason)}"
        for outcome in outcomes
        if outcome.verdict == "refused"
    ]
    refused = "\n## What is refused\n" + "\n".join(reasons) + "\n" if reasons else ""
    text = f"{INTRODUCTION}{', '.join(counts)}.\n\n" + "\n".join(lines) + "\n" + refused
    return with_cuda(text, json.loads(RESULTS.read_text()))


def verdicts(text: str) -> dict[tuple[str, str], str]:
    """Return the verdict of each architecture and form in a document."""
    found = {}
    for line in text.splitlines():
        match = re.match(r"\| `(\w+)` \| [^|]* \| (.*) \|$", line)
        if match:
            cells = match[2].split(" | ")[: len(FORMS)]
            found.update({(match[1], form): cell.split()[0] for form, cell in zip(FORMS, cells, strict=True)})
    return found


def _cell(outcome: Outcome) -> str:
    if outcome.verdict == "refused":
        return "refused"
    power = math.ceil(math.log10(outcome.error)) if outcome.error else -9
    return f"{outcome.verdict} (1e{power})"


def _plain(text: str) -> str:
    return re.sub(r"[|`<>\[\]*]", "", re.sub(r"\S*/(\S+\.(?:pt2|onnx))", r"\1", text))
