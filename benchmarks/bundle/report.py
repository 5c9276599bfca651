"""The page of ``packager report`` for BERT-base: its size, and how soon a browser shows it and answers.

    python -m benchmarks.bundle.report

Needs Chromium. Seconds are those of this machine from the click to what is drawn, in pages that are opened anew.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.cpu.engines import run_packager
from benchmarks.cpu.models import make
from benchmarks.harness.measure import ROOT, Report, Spread, Threshold, finish, make_parser

sys.path.insert(0, str(ROOT / "tests" / "report"))
LIMIT_MB, LIMIT_SECONDS = 3.0, 2.0


def main() -> int:
    """Measure and report."""
    parser = make_parser("report", "The report of a large model in a browser.")
    parser.add_argument("--model", default="bert")
    parser.add_argument("--runs", type=int, default=5, help="pages that are opened; default: 5")
    arguments = parser.parse_args()
    workdir: Path = arguments.workdir
    model, bundle, page = make(arguments.model, 1, workdir / "models"), workdir / "reported.so", workdir / "report.html"
    run_packager(workdir, "build", model.path, "-o", bundle)
    run_packager(workdir, "report", bundle, "--run", "-o", page)
    size = page.stat().st_size / 1e6
    with tempfile.TemporaryDirectory() as profile:
        taken = _open(page.resolve(), Path(profile), arguments.runs)
    spreads = {what: Spread.of(seconds) for what, seconds in taken.items()}
    report = Report(
        title=f"The report of {arguments.model}, {size:.2f} MB",
        header=("step", "seconds, median (quartiles)"),
        rows=[(what, str(spread)) for what, spread in spreads.items()],
        figures={"megabytes": size, "seconds": spreads},
        thresholds=[
            Threshold("size", size, LIMIT_MB, "MB"),
            *(Threshold(what, spread.median, LIMIT_SECONDS, "s") for what, spread in spreads.items()),
        ],
    )
    return finish(report, arguments)


def _open(page: Path, profile: Path, runs: int) -> dict[str, list[float]]:
    """Open a page so many times, and each of its tabs. Raises RuntimeError without a browser."""
    from browser import Browser, find_browser

    program = find_browser()
    if program is None:
        raise RuntimeError("no Chromium on PATH: apt install chromium")
    taken: dict[str, list[float]] = {}
    browser = Browser(program, profile)
    try:
        for _ in range(runs):
            _time(taken, "open", lambda: browser.open(page))
            for tab in browser.evaluate("[...document.querySelectorAll('[role=tab]')].map((tab) => tab.id.slice(4))"):
                _time(taken, tab, lambda tab=tab: _click(browser, tab))
            _time(taken, "search", lambda: _search(browser))
    finally:
        browser.close()
    if browser.problems:
        raise RuntimeError(f"the page has problems: {browser.problems}")
    return taken


def _time(taken: dict[str, list[float]], what: str, do: Callable[[], object]) -> None:
    start = time.perf_counter()
    do()
    taken.setdefault(what, []).append(time.perf_counter() - start)


def _click(browser: Any, tab: str) -> None:
    browser.click(f"#tab-{tab}")
    browser.settle()


def _search(browser: Any) -> None:
    browser.key("/", "/")
    browser.type("add")
    browser.wait("document.querySelectorAll('.node.found').length > 0")


if __name__ == "__main__":
    sys.exit(main())
