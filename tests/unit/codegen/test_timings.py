"""What a build records of the time of its stages and tools."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from packager.cli.reports.timings import timing_tables
from packager.codegen.timings import Timings, ToolCall, recorded
from packager.codegen.toolchain import run
from packager.codegen.workers import workers
from packager.errors import ToolchainError

WAIT = 0.05


def sleep(output: str) -> None:
    run([sys.executable, "-c", f"import time; time.sleep({WAIT})", "-o", f"folder/{output}"], cwd=Path("/"))


def test_every_run_of_a_tool_is_recorded_by_names_without_folders() -> None:
    with recorded() as timings:
        sleep("a.o")
        with pytest.raises(ToolchainError):
            run([sys.executable, "-c", "raise SystemExit(1)", "last"], cwd=Path("/"))
    assert [(call.tool, call.output) for call in timings.calls] == [
        (Path(sys.executable).name, "a.o"),
        (Path(sys.executable).name, "last"),
    ]
    assert WAIT <= timings.calls[0].seconds <= timings.total


def test_nothing_is_recorded_outside_of_a_build() -> None:
    with recorded() as timings:
        pass
    sleep("a.o")
    assert timings.calls == []


def test_workers_record_for_the_build_that_started_them() -> None:
    """Two builds at the same time, each with threads of its own."""
    found: dict[str, Timings] = {}

    def build(name: str) -> None:
        with recorded() as timings, workers(4) as pool:
            list(pool.map(sleep, [f"{name}{index}" for index in range(8)]))
        found[name] = timings

    threads = [threading.Thread(target=build, args=(name,)) for name in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for name, timings in found.items():
        assert sorted(call.output for call in timings.calls) == [f"{name}{index}" for index in range(8)]


def test_a_stage_that_comes_again_or_fails_counts() -> None:
    timings = Timings()
    with timings.stage("link"):
        pass
    before = timings.stages["link"]
    with pytest.raises(KeyError), timings.stage("link"):
        raise KeyError
    assert list(timings.stages) == ["link"]
    assert timings.stages["link"] > before


def test_tables_are_sorted_and_have_totals() -> None:
    calls = [ToolCall("gcc", "a.o", 0.25), ToolCall("ld", "b.so", 1.5)]
    stages, tools = timing_tables(Timings({"import": 1.0, "link": 2.0}, calls, 3.5))
    assert [(name, float(seconds)) for name, seconds in stages.rows] == [
        ("link", 2.0),
        ("import", 1.0),
        ("other", 0.5),
        ("total", 3.5),
    ]
    assert [(tool, output, float(seconds)) for tool, output, seconds in tools.rows] == [
        ("ld", "b.so", 1.5),
        ("gcc", "a.o", 0.25),
        ("total", "2 runs", 1.75),
    ]
