"""Kernels of 8 bits beside exact sums and torch: compiled here, checked and timed on a machine with a GPU.

    python -m benchmarks.cutlass.int8 build -o build/gpu_int8                       (packager[build,cutlass])
    python -m benchmarks.cutlass.int8 run build/gpu_int8 -o results.json [--check]     (an H100 or H200, torch)

``build`` compiles for sm_90a the first kernels that packager takes for each problem; they come from and go to the
user's build cache. ``run`` compares all results with sums in float64, which are exact: int32 has to be equal, and so
have integers of 8 bits but where a quotient is all but half way between two. Then it times what is no check alone in
CUDA graphs. torch has no products of int8 that are scaled and rounded, so that its ``_int_mm`` does less than ours.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks.cutlass.int8_problems import CHECKS, SETS, select

ROOT = Path(__file__).parents[2]


def run(folder: Path, output: Path, options: argparse.Namespace) -> int:
    """Check and measure the problems, and write all figures; 1 if a result is wrong."""
    try:
        described: dict[str, Any] = json.loads((folder / "kernels.json").read_text())
    except FileNotFoundError:
        raise SystemExit(f"error: {folder} has no kernels.json\nhint: make it with `build -o {folder}`") from None
    try:
        import torch
    except ImportError as error:
        raise SystemExit(f"error: run needs torch: {error}") from error
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        raise SystemExit("error: run needs a GPU for sm_90a: an H100 or H200")
    from benchmarks.cutlass.int8_run import Bench

    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    report: dict[str, Any] = {
        "schema_version": 1,
        "benchmark": "gpu_int8",
        "date": datetime.date.today().isoformat(),
        "gpu": subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip(),
        "versions": {"torch": torch.__version__, "cuda": torch.version.cuda, "build": described["versions"]},
        "problems": {},
    }
    bench = Bench(folder, rounds=options.rounds)
    bad = []
    output.parent.mkdir(parents=True, exist_ok=True)
    for group, problem in select(options.sets or (), options.only):
        kernels = described["kernels"].get(problem.name)
        if kernels is None:
            continue
        found: dict[str, Any] = {"group": group, "choice": kernels[0], "wrong": bench.check(problem, kernels)}
        right = [kernel for kernel, error in found["wrong"].items() if not error]
        bad += [f"{problem.name}: {kernel}: {error}" for kernel, error in found["wrong"].items() if error]
        if group not in CHECKS and not options.check and right:
            found |= bench.measure(problem, right)
        report["problems"][problem.name] = found
        print(_line(problem.name, found), flush=True)
        output.write_text(json.dumps(report, indent=1) + "\n")
    if not report["problems"]:
        raise SystemExit(f"error: {folder} has none of these problems\nhint: build with the same --set and --only")
    print("\n".join(["", *(f"WRONG {text}" for text in bad)]) if bad else "\nall results are right")
    return int(bool(bad))


def _line(name: str, found: dict[str, Any]) -> str:
    verdict = "WRONG" if any(found["wrong"].values()) else "ok"
    times = {key.removeprefix("pk_"): each["median"] for key, each in found.get("us", {}).items()}
    text = "; ".join(f"{key} {time:.2f} us" for key, time in times.items())
    missing = "".join(f"; no {key}: {why}" for key, why in found.get("unavailable", {}).items())
    return f"{verdict:5} {name:52} {text}{missing}"


def main() -> int:
    """Build or run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    builder, runner = commands.add_parser("build"), commands.add_parser("run")
    for command in (builder, runner):
        command.add_argument("--set", action="append", choices=tuple(SETS), dest="sets", help="default: all of them")
        command.add_argument("--only", default="", metavar="NAMES", help="patterns of problems' names: gemm_16x*")
    builder.add_argument("-o", "--output", type=Path, default=ROOT / "build" / "gpu_int8")
    builder.add_argument("--kernels", type=int, default=1, help="of each problem; default: the first alone")
    builder.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    runner.add_argument("folder", type=Path)
    runner.add_argument("-o", "--output", type=Path, required=True)
    runner.add_argument("--rounds", type=int, default=15, help="replays of each graph; default: 15")
    runner.add_argument("--check", action="store_true", help="time nothing")
    options = parser.parse_args()
    for name in ("rounds", "jobs", "kernels"):
        if getattr(options, name, 1) < 1:
            parser.error(f"--{name} must be 1 or more")
    try:
        problems = select(options.sets or (), options.only)
    except ValueError as error:
        parser.error(str(error))
    if options.command == "run":
        return run(options.folder, options.output, options)
    from benchmarks.cutlass.int8_build import build
    from packager.errors import PackagerError

    try:
        build(options.output, problems, kernels=options.kernels, jobs=options.jobs)
    except PackagerError as error:
        raise SystemExit(f"error: {error}\nhint: {error.hint}" if error.hint else f"error: {error}") from error
    return 0


if __name__ == "__main__":
    sys.exit(main())
