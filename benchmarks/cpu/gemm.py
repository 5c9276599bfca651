"""Matrix products in a bundle, one thread, as shares of what the core's multiply-adds reach in the same run.

    python -m benchmarks.cpu.gemm
    python -m benchmarks.cpu.gemm --problems 1024x1024x1024 --rounds 31

Problems and the peak are those of harness/cpu_peak.py. The peak has a turn in each round, as packager and onnxruntime
have; shares are of turns of the same round.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from benchmarks.cpu.engines import Settings, compile_program, onnxruntime, packager
from benchmarks.cpu.models import parsed, random
from benchmarks.harness.cpu_peak import peak, peak_flops, product_flops, share
from benchmarks.harness.measure import Report, Spread, Threshold, add_turns, finish, make_parser
from benchmarks.harness.turns import Model, level, some_cores, started, take_turns

LIMITED, LIMIT = "1024x1024x1024", 85.0
# The products of BERT and ViT, and what ResNet-50's 1x1 convolutions and its last layer come down to.
PROBLEMS = (
    LIMITED, "128x768x768", "128x3072x768", "128x768x3072", "197x768x768", "197x3072x768", "128x384x384",
    "3136x64x256", "784x128x512", "196x256x1024", "49x512x2048", "1x1000x2048",
)  # fmt: skip
ENGINES = {"packager": packager, "onnxruntime": onnxruntime}


def make(problem: str, folder: Path) -> Model:
    """Return a model of one product."""
    m, n, k = map(int, problem.split("x"))
    rng = np.random.default_rng(0)
    x, w = random(rng, m, k), random(rng, k, n)
    model = parsed(f"gemm (float[{m},{k}] x) => (float[{m},{n}] y) {{ y = MatMul(x, w) }}", {"w": w})
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"gemm_{problem}.onnx"
    onnx.save(model, path)
    return Model(problem, 1, path, {"x": x}, {"y": x @ w})


def measure(problem: str, settings: Settings, rounds: int, block_s: float) -> dict[str, Any]:
    """Return GFLOP/s of the peak and of each engine, and the engines' shares of the peak in percent."""
    model = make(problem, settings.workdir / "models")
    starts = {name: partial(lambda engine: engine(model, 1, settings)(), engine) for name, engine in ENGINES.items()}
    failed: dict[str, str] = {}
    with started({"peak": peak(settings.workdir), **starts}, failed) as workers:
        times = take_turns(workers, some_cores(1), rounds, block_s)
    flops = {**dict.fromkeys(ENGINES, product_flops(problem)), "peak": peak_flops()}
    speeds = {name: Spread.of([flops[name] / seconds / 1e9 for seconds in times[name]]) for name in times}
    shares = {name: share(problem, times[name], times["peak"]) for name in ENGINES if name in times}
    return {
        "gflops": {name: asdict(spread) for name, spread in speeds.items()},
        "share": {name: asdict(spread) for name, spread in shares.items()},
        "failed": failed,
    }


def row(problem: str, found: dict[str, Any]) -> tuple[str, ...]:
    """Return a line of the table."""
    columns = [("gflops", name) for name in ("peak", *ENGINES)] + [("share", name) for name in ENGINES]
    return (problem, *(str(Spread(**found[key][name])) if name in found[key] else "failed" for key, name in columns))


def parse(argv: Sequence[str] | None = None) -> argparse.Namespace:
    """Return the options."""
    parser = make_parser("cpu_gemm", "Matrix products on one core, beside its peak.")
    parser.add_argument("--problems", nargs="+", default=PROBLEMS, metavar="MxNxK", help="default: all")
    parser.add_argument("--target", action="append", default=[], help="as of packager build; default: its own")
    add_turns(parser, rounds=15, block_s=0.1)
    return parser.parse_args(argv)


def main() -> int:
    """Measure and report."""
    arguments = parse()
    settings = Settings(arguments.workdir, tuple(arguments.target))
    compile_program(settings.workdir)
    figures = {}
    for problem in arguments.problems:
        figures[problem] = measure(problem, settings, arguments.rounds, arguments.block)
        if not arguments.json:
            print(" ".join(row(problem, figures[problem])), flush=True)
    report = Report(
        title=f"Matrix products on {level()}, GFLOP/s of one thread and % of the peak, median (quartiles)",
        header=("M x N x K", "peak", *ENGINES, *(f"{name}, %" for name in ENGINES)),
        rows=[row(problem, found) for problem, found in figures.items()],
        figures={"cpu_level": level(), "problems": figures},
        thresholds=[
            Threshold(f"share of the peak, {problem}", found["share"]["packager"]["median"], LIMIT, "%", True)
            for problem, found in figures.items()
            if problem == LIMITED and "packager" in found["share"]
        ],
        notes=[
            f"{problem}: {name} failed: {why}"
            for problem, found in figures.items()
            for name, why in found["failed"].items()
        ],
    )
    return finish(report, arguments)


if __name__ == "__main__":
    sys.exit(main())
