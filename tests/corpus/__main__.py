"""Run the corpus, or the files whose names match the patterns given, and print a line for each."""

from __future__ import annotations

import argparse
import fnmatch
from collections.abc import Sequence
from pathlib import Path

from tests.one_cpu import targets_here

from .case import Case
from .files import CASES
from .processes import run_all
from .table import PATH, render


def chosen(patterns: Sequence[str]) -> list[Case]:
    """Return the cases whose name matches one of the patterns; all without any."""
    return [case for case in CASES.values() if not patterns or any(fnmatch.fnmatch(case.name, p) for p in patterns)]


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(prog="python -m tests.corpus", description=__doc__)
    parser.add_argument("patterns", nargs="*", help="names of files, such as 'bert*' or '*.tf2onnx'")
    parser.add_argument("--folder", type=Path, default=Path("build/corpus"), help="where files are made; kept")
    parser.add_argument("--make", action="store_true", help="write the files and build nothing")
    parser.add_argument("--table", action="store_true", help=f"put the outcomes into docs/{PATH.name}")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    outcomes = []
    for case in chosen(options.patterns):
        if options.make:
            try:
                case.make(options.folder / f"{case.name}.onnx")
                print(f"made {case.name}", flush=True)
            except Exception as error:
                print(f"not exported {case.name}: {type(error).__name__} {error}"[:300], flush=True)
            continue
        outcome = next(run_all([case], options.folder, targets_here()))
        outcomes.append(outcome)
        print(
            f"{outcome.verdict:9} {case.exporter} {case.model} {outcome.error:.0e} {outcome.seconds:.0f} s "
            f"{dict(case.dims)} {outcome.reason}",
            flush=True,
        )
    if options.table:
        before = PATH.read_text() if PATH.exists() else ""
        PATH.write_text(render({outcome.name: outcome for outcome in outcomes}, CASES, before))


if __name__ == "__main__":
    main()
