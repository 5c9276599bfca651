"""Time of `packager build`: cold, without any cache, and unchanged, from the cache; each in a fresh process.

    python -m benchmarks.bundle.build_time

Wall time of the whole command, start of Python included. Stages are those that the command reports, cold. Beside it
the time of TVM's own compilation and export of the same model in a fresh process. onnxruntime compiles nothing ahead of
time; its work at session creation stands in bundle/load.py.
"""

from __future__ import annotations

import re
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.harness.measure import Bar, Report, Spread, finish, make_parser
from benchmarks.harness.models import MODEL_NAMES, build_arguments, build_bundle, build_tvm, run_packager

COLD_LIMIT_S = 15
UNCHANGED_LIMIT_S = 3
BARRED = "resnet50"
STAGE = re.compile(r"^\[ *([\d.]+) s\] (.+)$", re.MULTILINE)


def main() -> int:
    """Measure and report."""
    parser = make_parser("build_time", "Time of packager build.")
    parser.add_argument("--models", nargs="+", choices=MODEL_NAMES, default=[BARRED, "minilm"])
    parser.add_argument("--runs", type=int, default=5, help="default: 5")
    arguments = parser.parse_args()
    workdir: Path = arguments.workdir
    figures: dict[str, Any] = {}
    for name in arguments.models:
        try:
            figures[name] = _measure(name, workdir, arguments.runs)
        except RuntimeError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
            figures[name] = None
    measured = {name: values for name, values in figures.items() if values is not None}
    bars = []
    if BARRED in measured:
        bars.append(Bar(f"{BARRED} built cold", measured[BARRED]["cold_s"].median, COLD_LIMIT_S, "s"))
        bars.append(Bar(f"{BARRED} unchanged", measured[BARRED]["unchanged_s"].median, UNCHANGED_LIMIT_S, "s"))
    report = Report(
        title=f"packager build, {arguments.runs} fresh processes each, s, median (quartiles)",
        header=("model", "cold", "unchanged", "TVM compile", "cold stages"),
        rows=[
            (
                name,
                str(values["cold_s"]),
                str(values["unchanged_s"]),
                str(values["tvm_s"]),
                ", ".join(f"{stage} {spread.median:.1f}" for stage, spread in values["stages_s"].items()),
            )
            for name, values in measured.items()
        ],
        figures=figures,
        bars=bars,
    )
    return finish(report, arguments)


def _measure(name: str, workdir: Path, runs: int) -> dict[str, Any]:
    bundle = build_bundle(name, workdir)  # fills the cache
    output = workdir / "timed" / f"{name}.so"
    output.parent.mkdir(exist_ok=True)
    command = build_arguments(name, workdir, output)
    cold: list[float] = []
    unchanged: list[float] = []
    tvm: list[float] = []
    stages: dict[str, list[float]] = {}
    for _ in range(runs):
        start = time.perf_counter()
        done = run_packager(workdir, *command, "--no-cache")
        cold.append(time.perf_counter() - start)
        for stage, seconds in _stages(done.stderr, cold[-1]).items():
            stages.setdefault(stage, []).append(seconds)
        start = time.perf_counter()
        done = run_packager(workdir, *command)
        unchanged.append(time.perf_counter() - start)
        if "found in the cache" not in done.stderr:
            raise RuntimeError(f"{name} was not found in the cache")
        start = time.perf_counter()
        build_tvm(name, workdir, bundle, force=True)
        tvm.append(time.perf_counter() - start)
    output.unlink()
    return {
        "cold_s": Spread.of(cold),
        "unchanged_s": Spread.of(unchanged),
        "tvm_s": Spread.of(tvm),
        "stages_s": {stage: Spread.of(values) for stage, values in stages.items()},
    }


def _stages(stderr: str, total: float) -> dict[str, float]:
    """Return the seconds of each stage; what comes before the first is the start of the process."""
    begins = [(re.sub(r"\d+ ", "", stage), float(seconds)) for seconds, stage in STAGE.findall(stderr)]
    if not begins:
        raise RuntimeError(f"packager build reports no stages\n{stderr}")
    # The clock of the stages starts after the imports; the last stage ends with the process.
    ends = [*(seconds for _, seconds in begins[1:]), None]
    known = {stage: end - begin for (stage, begin), end in zip(begins, ends, strict=True) if end is not None}
    last, begin = begins[-1]
    known[f"{last} and process"] = total - begin
    return known


if __name__ == "__main__":
    sys.exit(main())
