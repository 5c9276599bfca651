"""Report measurements: samples with median and quartiles, thresholds, a table, a file of results."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import platform
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "benchmarks" / "results"
FOLDERS = ("--workdir", "--folder", "-o", "--output")  # options
PACKAGES = ("packager", "onnxruntime", "apache-tvm", "onnx", "numpy")


@dataclass(frozen=True)
class Spread:
    """Median and quartiles of ``count`` samples, in the unit of the samples."""

    median: float
    low: float
    high: float
    count: int

    @classmethod
    def of(cls, samples: Sequence[float]) -> Spread:
        """Summarize samples. Raises ValueError without any."""
        if not samples:
            raise ValueError("no samples")
        low, median, high = (float(value) for value in np.percentile(samples, (25, 50, 75)))
        return cls(median, low, high, len(samples))

    def __str__(self) -> str:
        return f"{_number(self.median)} ({_number(self.low)} to {_number(self.high)})"


@dataclass(frozen=True)
class Threshold:
    """A value that has to stay below a limit, or to reach it."""

    what: str
    value: float
    limit: float
    unit: str
    at_least: bool = False

    @property
    def met(self) -> bool:
        """Whether it does."""
        return self.value >= self.limit if self.at_least else self.value < self.limit

    def __str__(self) -> str:
        verdict = "met" if self.met else "MISSED"
        unit = f" {self.unit}" if self.unit else ""
        return f"{verdict}: {self.what}: {_number(self.value)}{unit}, the threshold is {_number(self.limit)}{unit}"


@dataclass(frozen=True)
class Report:
    """The outcome of one benchmark: a table for people, thresholds, and all figures for machines.

    Notes stand under the table. Versions of ``packages`` are named where these are installed, or else ``versions``.
    """

    title: str
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    figures: dict[str, Any]
    thresholds: list[Threshold] = field(default_factory=list)
    notes: Sequence[str] = ()
    packages: tuple[str, ...] = ()
    versions: dict[str, str] = field(default_factory=dict)


def make_parser(name: str, description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks have; ``name`` is that of the file of results."""
    parser = argparse.ArgumentParser(description=description)
    parser.set_defaults(benchmark=name)
    parser.add_argument(
        "--workdir",
        type=Path,
        default=ROOT / "build" / "benchmarks",
        help="models and bundles; default: build/benchmarks",
    )
    parser.add_argument(
        "-o", "--output", type=Path, default=RESULTS / f"{name}.json", help=f"default: benchmarks/results/{name}.json"
    )
    parser.add_argument("--json", action="store_true", help="print the JSON instead of the table")
    return parser


def add_turns(parser: argparse.ArgumentParser, rounds: int, block_s: float) -> None:
    """Add the options of benchmarks whose engines take turns."""
    parser.add_argument("--rounds", type=int, default=rounds, help=f"default: {rounds}")
    parser.add_argument("--block", type=float, default=block_s, help=f"seconds of a turn; default: {block_s}")


def finish(report: Report, arguments: argparse.Namespace) -> int:
    """Write and print a report. Returns the exit status: 1 if a threshold is missed."""
    text = write(report, arguments)
    if arguments.json:
        print(text, end="")
    else:
        print(f"{report.title}\n")
        print(format_table(report.header, report.rows))
        print("".join(f"\n{line}" for line in (*report.notes, *report.thresholds)))
    return 0 if all(each.met for each in report.thresholds) else 1


def write(report: Report, arguments: argparse.Namespace) -> str:
    """Write a report as JSON, and return the text."""
    value = {
        "schema_version": 1,
        "benchmark": arguments.benchmark,
        "title": report.title,
        **provenance(),
        "machine": _machine(),
        "versions": report.versions or versions(report.packages),
        "bars": [asdict(each) | {"met": each.met} for each in report.thresholds],
        "figures": report.figures,
    }
    text = json.dumps(value, indent=2, default=asdict) + "\n"
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(text)
    return text


def format_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table: first column to the left, the others to the right."""
    widths = [max(len(row[column]) for row in [header, *rows]) for column in range(len(header))]

    def line(cells: Sequence[str]) -> str:
        padded = [f"{cell:{'<' if index == 0 else '>'}{widths[index]}}" for index, cell in enumerate(cells)]
        return "| " + " | ".join(padded) + " |"

    rule = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    return "\n".join([line(header), line(rule), *map(line, rows)])


def _number(value: float) -> str:
    """Return three significant digits, and all of those before the point."""
    if value == 0 or not np.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - int(np.floor(np.log10(abs(value)))))
    return f"{value:,.{digits}f}"


def provenance() -> dict[str, str]:
    """Return the time in UTC, to the minute, and the command that runs, without folders."""
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%dT%H:%MZ")
    script = Path(sys.argv[0]).resolve().with_suffix("")
    module = ".".join(script.relative_to(ROOT).parts) if script.is_relative_to(ROOT) else script.name
    # Folders of the machine are nobody's business and change no figure.
    options, skip = [], False
    for argument in sys.argv[1:]:
        if not skip and argument not in FOLDERS:
            options.append(argument)
        skip = not skip and argument in FOLDERS
    return {"date": date, "command": shlex.join(["python", "-m", module, *options])}


def _machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {"cpu": names[0] if names else platform.machine(), "cores": len(names), "shared": True}


def versions(others: Sequence[str] = ()) -> dict[str, str]:
    """Return versions of what measures, and of those of the other packages that are installed."""
    done = subprocess.run(["gcc", "-dumpfullversion"], capture_output=True, text=True, check=True)
    found = {name: metadata.version(name) for name in PACKAGES}
    for name in others:
        with contextlib.suppress(metadata.PackageNotFoundError):
            found[name] = metadata.version(name)
    return {"python": platform.python_version(), "gcc": done.stdout.strip(), **found}
