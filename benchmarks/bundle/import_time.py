"""How long the deploy side takes to import, in fresh processes: the median of N, interleaved."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.harness.measure import Report, Spread, Threshold, finish, make_parser

LIMIT_SECONDS = 0.3
STATEMENTS = (
    "import packager",
    "import packager; packager.verify",
    "import packager; packager.load",
    "import numpy",
)


def main() -> int:
    """Measure and report."""
    parser = make_parser("import_time", "Import time of the deploy side.")
    parser.add_argument("--runs", type=int, default=15, help="processes per statement; default: 15")
    arguments = parser.parse_args()
    samples: dict[str, list[float]] = {statement: [] for statement in STATEMENTS}
    for _ in range(arguments.runs):
        for statement in STATEMENTS:
            samples[statement].append(seconds(statement))
    spreads = {statement: Spread.of(values) for statement, values in samples.items()}
    report = Report(
        title="Seconds to import, in a fresh process that has its interpreter running already",
        header=("statement", "median (quartiles)"),
        rows=[(statement, str(spread)) for statement, spread in spreads.items()],
        figures=dict(spreads),
        thresholds=[Threshold("import packager", spreads["import packager"].median, LIMIT_SECONDS, "s")],
    )
    return finish(report, arguments)


def seconds(statement: str) -> float:
    """Return how long a new process takes for ``statement``."""
    script = f"import time; start = time.perf_counter(); {statement}; print(time.perf_counter() - start)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return float(done.stdout)


if __name__ == "__main__":
    sys.exit(main())
