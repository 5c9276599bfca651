"""Share among benchmarks on a GPU: the command line of build and run, files of results, relative errors.

Needs numpy alone: machines with a GPU get these files, the folder that ``build`` has made, and torch.
"""

from __future__ import annotations

import argparse
import functools
import json
import lzma
import math
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.measure import ROOT, provenance
from benchmarks.harness.pairs import Arrays, Pairs, load_pairs


def two_commands(
    doc: str | None, name: str, example: str = ""
) -> tuple[argparse.ArgumentParser, argparse.ArgumentParser, argparse.ArgumentParser]:
    """Return a parser and those of its commands: ``build -o FOLDER`` and ``run FOLDER -o FILE``.

    With an ``example`` both have ``--only``.
    """
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    builder, runner = commands.add_parser("build"), commands.add_parser("run")
    builder.add_argument("-o", "--output", type=Path, default=ROOT / "build" / name)
    builder.add_argument("--arch", default="sm_90a")
    runner.add_argument("folder", type=Path)
    runner.add_argument("-o", "--output", type=Path, required=True)
    for each in (builder, runner) if example else ():
        each.add_argument("--only", default="", metavar="NAMES", help=f"patterns of names, with commas: {example}")
    return parser, builder, runner


def obey(
    parser: argparse.ArgumentParser,
    build: Callable[..., None],
    run: Callable[..., None],
    **steps: Callable[[Path], Any],
) -> int:
    """Do what the command line of ``two_commands`` with an example says.

    ``steps`` are of a bundle, done in processes of their own: ``STEP BUNDLE`` prints what it finds as JSON.
    """
    if sys.argv[1:2] and (step := steps.get(sys.argv[1])) is not None:
        print(json.dumps(step(Path(sys.argv[2]))))
        return 0
    arguments = parser.parse_args()
    if arguments.command == "build":
        build(arguments.output, arguments.arch, arguments.only)
    else:
        run(arguments.folder, arguments.output, arguments.only)
    return 0


def matches(name: str, only: str) -> bool:
    """Return whether a name matches one of the shell's patterns, with commas between them; no pattern means all."""
    return not only or any(fnmatchcase(name, pattern) for pattern in only.split(","))


def described(folder: Path, file: str) -> dict[str, Any]:
    """Return what ``build`` has written of a folder. Exits with a hint where it has not."""
    try:
        found: dict[str, Any] = json.loads((folder / file).read_text())
    except FileNotFoundError:
        raise SystemExit(f"error: {folder} has no {file}\nhint: make it with `build -o {folder}`") from None
    return found


def header(benchmark: str) -> dict[str, Any]:
    """Return how a report begins."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    return {"schema_version": 1, "benchmark": benchmark, **provenance(), "gpu": gpu}


def text_of(report: dict[str, Any], rows: str) -> str:
    """Return a report as JSON, a line for each entry of ``rows``."""
    lines = [f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in report[rows].items()]
    whole = json.dumps(report | {rows: {}}, indent=1)
    return whole.replace(f'"{rows}": {{}}', f'"{rows}": {{\n' + ",\n".join(lines) + "\n }") + "\n"


def run_each(benchmark: str, cases: dict[str, Callable[[], dict[str, Any]]], output: Path) -> int:
    """Run the cases, print and write what each finds. Returns 1 if one fails or has not found "ok"."""
    report = header(benchmark) | {"cases": {}}
    for name, run in cases.items():
        try:
            found = run()
        except Exception as failure:  # one case that fails must not hide the others
            found = {"ok": False, "failed": f"{type(failure).__name__}: {failure}"}
        report["cases"][name] = found
        print("ok   " if found["ok"] else "WRONG", name, json.dumps(found), flush=True)
        output.write_text(text_of(report, "cases"))
    wrong = [name for name, found in report["cases"].items() if not found["ok"]]
    print(f"{len(cases) - len(wrong)} of {len(cases)} cases are right {' '.join(wrong)}")
    return int(bool(wrong))


def error(got: np.ndarray, want: np.ndarray) -> float:
    """Return the relative error in the Euclidean norm; NaN never passes a comparison."""
    got, want = got.astype(np.float64), want.astype(np.float64)
    return float(np.linalg.norm(got - want) / np.linalg.norm(want))


def worse(old: float, new: float) -> float:
    """Return the larger error; NaN, which compares with nothing, is the worst."""
    return old if math.isnan(old) or new <= old else new


def worst(results: Sequence[Arrays], pairs: Pairs) -> float:
    """Return the largest error of results; NaN if there is one."""
    errors = [error(got[name], want[name]) for got, (_, want) in zip(results, pairs, strict=True) for name in want]
    return functools.reduce(worse, errors, 0.0)


def bundles(folder: Path, names: str) -> list[str]:
    """Return the names of bundles, with commas between them; by default those of the folder."""
    return names.split(",") if names else sorted(path.name[:-6] for path in folder.glob("*.so.xz"))


def unpack(folder: Path, name: str, work: Path) -> tuple[Path, Pairs]:
    """Return a bundle that ``benchmarks.gpu.models`` has made, and pairs of inputs and the expected outputs."""
    path = work / f"{name}.so"
    work.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        with lzma.open(folder / f"{name}.so.xz") as source, path.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 24)
    return path, load_pairs(folder / f"{name}.npz")


def tuned(trial: Path, work: Path) -> Path:
    """Return the bundle that ``packager tune`` makes of one with all alternatives, in ``work``, beside its records."""
    bound, records = work / f"{trial.stem}_bound.so", work / f"{trial.stem}.records.json"
    command = [sys.executable, "-m", "packager", "tune", str(trial), "-o", str(records), "--bind", str(bound)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return bound
