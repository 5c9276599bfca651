"""Kernels of the cutlass backend beside torch's libraries: compiled here, checked and timed on a machine with a GPU.

    python -m benchmarks.cutlass.fp16 build -o build/gpu_cutlass [--tiles heuristic]     (packager[build,cutlass])
    python -m benchmarks.cutlass.fp16 run build/gpu_cutlass -o results.json [--set gemm]    (an H100 or H200, torch)

``build`` compiles for sm_90a what packager itself takes for each problem, and with ``--tiles all`` also every other
kernel that it chooses from; kernels come from and go to the user's build cache. ``run`` compares each with torch in
float32 on random data, over memory that holds NaN, and times it and torch's own in CUDA graphs that are replayed in
turns: each of several calls on operands of its own, more of them than the L2 cache holds. A ratio is torch's time over
ours; above 1 ours is faster.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.cutlass.fp16_problems import SETS, Problem, select

ROOT = Path(__file__).parents[2]
COLUMNS = ("choice", "best")
# Of each group: which column's geometric mean or worst ratio is at least how large.
BARS = (
    ("linear", "choice", "geomean", 0.93),
    ("linear", "best", "geomean", 1.0),
    ("linear", "best", "worst", 0.85),
    ("bmm", "best", "worst", 0.9),
    ("attention", "choice", "worst", 0.9),
    ("conv", "best", "geomean", 0.95),
)


@dataclass(frozen=True)
class Bar:
    """A ratio of a group that has to reach a limit."""

    group: str
    column: str
    measure: str
    value: float
    limit: float

    @property
    def met(self) -> bool:
        """Whether it does; NaN does not."""
        return self.value >= self.limit

    def __str__(self) -> str:
        verdict = "met" if self.met else "MISSED"
        return f"{verdict}: {self.group}, {self.measure} of {self.column}: {self.value:.3f}, the bar is {self.limit}"


def ratios(found: dict[str, Any]) -> dict[str, float]:
    """Return torch's time over that of packager's choice and of the best kernel; NaN where one was not timed."""
    own = medians(found["ours"])
    rival = medians(found["torch"]).get(found["rival"], math.nan)
    choice, best = own.get(found["choice"], math.nan), min(own.values(), default=math.nan)
    return {"choice": round(rival / choice, 4), "best": round(rival / best, 4)}


def medians(measured: dict[str, Any]) -> dict[str, float]:
    """Return the median times, in microseconds, of what was timed."""
    return {name: each["us"]["median"] for name, each in measured.items() if "us" in each}


def summarize(results: dict[str, dict[str, Any]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return for each group and column the geometric mean and the worst of the ratios; NaN where one is."""
    groups: dict[str, dict[str, dict[str, float]]] = {}
    for group in dict.fromkeys(found["group"] for found in results.values()):
        every = [ratios(found) for found in results.values() if found["group"] == group]
        groups[group] = {}
        for column in COLUMNS:
            values = [each[column] for each in every]
            whole = not any(math.isnan(value) for value in values)
            mean = math.exp(sum(map(math.log, values)) / len(values)) if whole else math.nan
            groups[group][column] = {"geomean": mean, "worst": min(values) if whole else math.nan, "count": len(values)}
    return groups


def find_bars(summary: dict[str, dict[str, dict[str, float]]], *, every_tile: bool) -> list[Bar]:
    """Return the bars of those groups that were measured in full; of the best kernel only where all tiles were."""
    sizes = {group: sum(problem.group == group for name in SETS for problem in SETS[name]) for group in summary}
    return [
        Bar(group, column, measure, summary[group][column][measure], limit)
        for group, column, measure, limit in BARS
        if group in summary and summary[group][column]["count"] == sizes[group] and (every_tile or column == "choice")
    ]


def run(folder: Path, output: Path, problems: Sequence[Problem], options: argparse.Namespace) -> int:
    """Measure the problems, and write all figures after each; 1 if a kernel is wrong or a bar is missed."""
    described = _described(folder)
    plan = {entry["name"]: entry for entry in described["problems"]}
    problems = [problem for problem in problems if problem.name in plan]
    if not problems:
        raise SystemExit(f"error: {folder} has none of these problems\nhint: build with the same --set and --only")
    try:
        import torch
    except ImportError as error:
        raise SystemExit(f"error: run needs torch: {error}") from error
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0):
        raise SystemExit("error: run needs a GPU for sm_90a: an H100 or H200")
    from benchmarks.cutlass.fp16_run import Bench, rival_kernels

    output.parent.mkdir(parents=True, exist_ok=True)
    report = _header(torch, described, serial=options.serial)
    bench = Bench(folder, rounds=options.rounds, serial=options.serial)
    results: dict[str, dict[str, Any]] = report["problems"]
    for problem in problems:
        entry = plan[problem.name]
        try:
            found = bench.measure(problem, entry["kernels"], entry["choice"])
        except Exception as error:
            error.add_note(f"at {problem.name}")
            raise
        results[problem.name] = found | {"ratios": ratios(found)}
        print(_line(problem.name, results[problem.name]), flush=True)
        report["summary"] = summarize(results)
        bars = find_bars(report["summary"], every_tile=described["tiles"] == "all")
        report["bars"] = [asdict(bar) | {"met": bar.met} for bar in bars]
        output.write_text(_text(report))
    if options.kernels:
        for problem in problems:
            results[problem.name]["torch_kernels"] = rival_kernels(problem)
            output.write_text(_text(report))
    print("\n".join(["", *_closing(report["summary"]), *map(str, bars)]))
    wrong = [name for name, found in results.items() if not found["ok"]]
    if wrong:
        print(f"WRONG: {', '.join(wrong)}")
    return int(bool(wrong) or not all(bar.met for bar in bars))


def _described(folder: Path) -> dict[str, Any]:
    try:
        described: dict[str, Any] = json.loads((folder / "kernels.json").read_text())
    except FileNotFoundError:
        raise SystemExit(f"error: {folder} has no kernels.json\nhint: make it with `build -o {folder}`") from None
    if described.get("schema_version") != 1:
        raise SystemExit(f"error: {folder / 'kernels.json'} is of another version\nhint: build it anew")
    return described


def _header(torch: Any, described: dict[str, Any], *, serial: bool) -> dict[str, Any]:
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    return {
        "schema_version": 1,
        "benchmark": "gpu_cutlass",
        "date": datetime.date.today().isoformat(),
        "command": _command(sys.argv[1:]),
        "gpu": subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip(),
        "versions": {
            **{"torch": torch.__version__, "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()},
            **{"python": platform.python_version(), "build": described["versions"]},
        },
        "tiles": described["tiles"],
        "programmatic": not serial,
        "problems": {},
    }


def _command(arguments: Sequence[str]) -> str:
    """Return the command without the file of results, which changes no figure."""
    kept = list(arguments)
    for option in {"-o", "--output"} & set(kept):
        at = kept.index(option)
        del kept[at : at + 2]
    return " ".join(["python", "-m", "benchmarks.cutlass.fp16", *kept])


def _text(report: dict[str, Any]) -> str:
    """Return a report as JSON, a line for each problem."""
    lines = [f"  {json.dumps(name)}: {json.dumps(found)}" for name, found in report["problems"].items()]
    whole = json.dumps(report | {"problems": {}}, indent=1)
    return whole.replace('"problems": {}', '"problems": {\n' + ",\n".join(lines) + "\n }") + "\n"


def _line(name: str, found: dict[str, Any]) -> str:
    """Return what is printed of a problem: times in microseconds, ratios, and torch's other ways."""
    own, theirs, ratio = medians(found["ours"]), medians(found["torch"]), found["ratios"]
    text = f"{'ok   ' if found['ok'] else 'WRONG'} {name:34} torch {theirs.get(found['rival'], math.nan):8.2f} us"
    text += f"  choice {own.get(found['choice'], math.nan):8.2f} x{ratio['choice']:.2f}"
    if own:
        best = min(own, key=own.__getitem__)
        text += f"  best {own[best]:8.2f} x{ratio['best']:.2f} {best.removeprefix('pk_')}"
    others = [f"{key} {time:.2f}" for key, time in theirs.items() if key != found["rival"]]
    others += [f"no {key}" for key, each in found["torch"].items() if "unavailable" in each]
    if not found["ok"]:
        others += [f"{kernel} {each.get('errors', 'refuses')}" for kernel, each in found["ours"].items()]
    return text + "".join(f"; {other}" for other in others)


def _closing(summary: dict[str, dict[str, dict[str, float]]]) -> Iterator[str]:
    for group, columns in summary.items():
        parts = [f"{column} x{found['geomean']:.3f} (worst x{found['worst']:.2f})" for column, found in columns.items()]
        yield f"{group:10} {columns['choice']['count']:3} problems, geometric mean: {', '.join(parts)}"


def main() -> int:
    """Build or run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    builder, runner = commands.add_parser("build"), commands.add_parser("run")
    for command in (builder, runner):
        command.add_argument("--set", action="append", choices=tuple(SETS), dest="sets", help="default: all of them")
        command.add_argument(
            "--only", default="", metavar="NAMES", help="patterns of problems' names: linear_16x*,bmm_*"
        )
    builder.add_argument("-o", "--output", type=Path, default=ROOT / "build" / "gpu_cutlass")
    builder.add_argument("--tiles", choices=("all", "heuristic"), default="all")
    builder.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    runner.add_argument("folder", type=Path)
    runner.add_argument("-o", "--output", type=Path, required=True)
    runner.add_argument("--rounds", type=int, default=15, help="replays of each graph; default: 15")
    runner.add_argument("--serial", action="store_true", help="launches wait for the kernel before them to end")
    runner.add_argument("--kernels", action="store_true", help="also name the kernels that torch launches")
    options = parser.parse_args()
    for name in ("rounds", "jobs"):
        if getattr(options, name, 1) < 1:
            parser.error(f"--{name} must be 1 or more")
    try:
        problems = select(options.sets or (), options.only)
    except ValueError as error:
        parser.error(str(error))
    if options.command == "run":
        return run(options.folder, options.output, problems, options)
    from benchmarks.cutlass.fp16_build import build
    from packager.errors import PackagerError

    try:
        build(options.output, problems, every_tile=options.tiles == "all", jobs=options.jobs)
    except PackagerError as error:
        raise SystemExit(f"error: {error}\nhint: {error.hint}" if error.hint else f"error: {error}") from error
    return 0


if __name__ == "__main__":
    sys.exit(main())
