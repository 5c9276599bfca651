"""Run the architectures in all forms and write docs/models.md: ``python -m tests.conformance.architectures``."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

from .models import ARCHITECTURES
from .running import FORMS, Outcome, run
from .table import PATH, render, verdicts


def run_all(names: list[str], forms: list[str], targets: Sequence[str] = ()) -> list[Outcome]:
    """Return the outcomes, and print each when it is there."""
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    outcomes = []
    with tempfile.TemporaryDirectory() as folder:
        for name in names:
            example = ARCHITECTURES[name]()
            for form in forms:
                outcome = run(name, example, form, Path(folder), targets)
                print(f"{name:22} {form:5} {outcome.verdict:8} {outcome.error:.1e} {outcome.reason[:200]}", flush=True)
                outcomes.append(outcome)
    return outcomes


def main() -> int:
    """Return 1 if an outcome is wrong, or not as good as the document says."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.architectures", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=sorted(ARCHITECTURES), metavar="NAME", help="write no document")
    parser.add_argument("--form", nargs="+", choices=FORMS, help="write no document")
    parser.add_argument("-o", "--output", type=Path, default=PATH, help="the document")
    options = parser.parse_args()
    before = verdicts(PATH.read_text()) if PATH.exists() else {}
    names = options.only or list(ARCHITECTURES)
    outcomes = run_all(names, options.form or list(FORMS))
    if not options.only and not options.form:
        options.output.write_text(render(outcomes, {o.architecture: o.dynamic for o in outcomes}))
    return int(bool(complaints(outcomes, before)))


def complaints(outcomes: list[Outcome], before: dict[tuple[str, str], str]) -> list[str]:
    """Return what is wrong, and what was right ``before`` and is not any more."""
    return [
        f"{outcome.architecture} as {outcome.form}: {outcome.verdict}, error {outcome.error:.1e} {outcome.reason}"
        for outcome in outcomes
        if outcome.verdict == "wrong"
        or (outcome.verdict != "right" and before.get((outcome.architecture, outcome.form)) == "right")
    ]


if __name__ == "__main__":
    sys.exit(main())
