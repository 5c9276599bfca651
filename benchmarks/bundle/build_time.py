"""Time of `packager build`: cold, without any cache, and unchanged, from the cache; each in a fresh process.

    python -m benchmarks.bundle.build_time

Wall time of the whole command, start of Python included. Stages are those that the command reports, cold. Beside it
the time of TVM's own compilation and export of the same model in a fresh process. onnxruntime compiles nothing ahead of
time; its work at session creation is in bundle/load.py.
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.cpu.engines import compile_tvm, run_packager
from benchmarks.cpu.models import MODELS, make
from benchmarks.harness.measure import Report, Spread, Threshold, finish, make_parser
from benchmarks.harness.turns import EngineError

COLD_LIMIT_S = 15
UNCHANGED_LIMIT_S = 3
LIMITED = "resnet50"
STAGE = re.compile(r"^\[ *([\d.]+) s\] (.+)$", re.MULTILINE)


def main() -> int:
    """Measure and report."""
    parser = make_parser("build_time", "Time of packager build.")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[LIMITED, "minilm"], metavar="MODEL")
    parser.add_argument("--runs", type=int, default=5, help="default: 5")
    arguments = parser.parse_args()
    workdir: Path = arguments.workdir
    figures: dict[str, Any] = {}
    for name in arguments.models:
        try:
            figures[name] = _measure(name, workdir, arguments.runs)
        except EngineError as error:
            print(f"{name} is left out: {error}", file=sys.stderr)
    thresholds = []
    if LIMITED in figures:
        thresholds.append(Threshold(f"{LIMITED} built cold", figures[LIMITED]["cold_s"].median, COLD_LIMIT_S, "s"))
        thresholds.append(
            Threshold(f"{LIMITED} unchanged", figures[LIMITED]["unchanged_s"].median, UNCHANGED_LIMIT_S, "s")
        )
    report = Report(
        title=f"packager build, {arguments.runs} fresh processes each, s, median (quartiles)",
        header=("model", "cold", "unchanged", "TVM compile", "cold stages"),
        rows=[
            (
                name,
                *(str(values[key]) for key in ("cold_s", "unchanged_s", "tvm_s")),
                ", ".join(f"{stage} {spread.median:.1f}" for stage, spread in values["stages_s"].items()),
            )
            for name, values in figures.items()
        ],
        figures=figures,
        thresholds=thresholds,
    )
    return finish(report, arguments)


def _measure(name: str, workdir: Path, runs: int) -> dict[str, Any]:
    model = make(name, 1, workdir / "models")
    output = workdir / "timed.so"
    command = ("build", model.path, "-o", output)
    run_packager(workdir, *command)  # fills the cache
    seconds: dict[str, list[float]] = {"cold_s": [], "unchanged_s": [], "tvm_s": []}
    stages: dict[str, list[float]] = {}

    def timed(what: str, run: Callable[..., Any], *arguments: Any) -> Any:
        start = time.perf_counter()
        result = run(*arguments)
        seconds[what].append(time.perf_counter() - start)
        return result

    for _ in range(runs):
        messages = timed("cold_s", run_packager, workdir, *command, "--no-cache")
        for stage, each in _stages(messages, seconds["cold_s"][-1]).items():
            stages.setdefault(stage, []).append(each)
        if "found in the cache" not in timed("unchanged_s", run_packager, workdir, *command):
            raise EngineError(f"{name} was not found in the cache")
        timed("tvm_s", compile_tvm, model, output.with_suffix(".tvm.so"))
    output.unlink()
    return {
        **{what: Spread.of(values) for what, values in seconds.items()},
        "stages_s": {stage: Spread.of(values) for stage, values in stages.items()},
    }


def _stages(stderr: str, total: float) -> dict[str, float]:
    """Return the seconds of each stage; what comes before the first is the start of the process."""
    begins = [(re.sub(r"\d+ ", "", stage), float(seconds)) for seconds, stage in STAGE.findall(stderr)]
    if not begins:
        raise EngineError(f"packager build reports no stages\n{stderr}")
    # The clock of the stages starts after the imports; the last stage ends with the process.
    ends = [*(seconds for _, seconds in begins[1:]), None]
    known = {stage: end - begin for (stage, begin), end in zip(begins, ends, strict=True) if end is not None}
    last, begin = begins[-1]
    known[f"{last} and process"] = total - begin
    return known


if __name__ == "__main__":
    sys.exit(main())
