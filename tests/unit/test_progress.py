"""Progress: what is counted and estimated, and what later builds remember of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from packager.codegen.cache import Cache
from packager.codegen.costs import FILE, estimated
from packager.codegen.timings import workers
from packager.progress import Event, Steps, counted, duration, received, report, warn


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "1 s"), (40.4, "40 s"), (89, "89 s"), (91, "2 min"), (200, "3 min"), (4800, "80 min"), (6000, "1 h 40 min")],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("event", "text"),
    [
        (Event("planning"), "planning"),
        (Event("no choices", warning=True), "warning: no choices"),
        (Event("compiling kernel", 3, 11, 170.0), "compiling kernel 4 of 11, about 3 min left"),
        (Event("compiling kernel", 3, 11, 9.0), "compiling kernel 4 of 11"),
        (Event("compiling kernel", 11, 11), "compiling kernel 11 of 11"),
    ],
)
def test_events_as_lines(event: Event, text: str) -> None:
    assert str(event) == text


def test_events_reach_the_receiver_of_the_block_alone() -> None:
    outer: list[Event] = []
    inner: list[Event] = []
    report("lost")
    with received(outer.append):
        report("first")
        with received(inner.append):
            warn("second")
        with received(None):
            report("lost")
    report("lost")
    assert (outer, inner) == ([Event("first")], [Event("second", warning=True)])


def test_steps_of_threads_are_counted_once_each() -> None:
    events: list[Event] = []
    with received(events.append), counted("compiling", 40, at_once=4) as steps, workers(4) as pool:

        def compile_one(index: int) -> None:
            if index % 4:
                with steps.step():
                    pass
            else:
                steps.skip()

        list(pool.map(compile_one, range(40)))
    assert [event.done for event in events] == list(range(40))  # the last step ends the stage, and is not reported
    assert {event.total for event in events} == {40}


def test_the_time_left_is_that_of_the_steps_before() -> None:
    steps = Steps("compiling", 10, at_once=2, earlier=8.0)
    assert steps._left() == 40.0
    steps._count(4, 16.0)  # 4 seconds each
    assert steps._left() == pytest.approx(6 * (4 * 4 + 8) / 5 / 2)
    steps._count(5, None)
    assert steps._left() == pytest.approx((4 * 4 + 8) / 5)  # one is left, which one thread does
    assert steps.seconds == 4.0
    assert Steps("compiling", 10)._left() is None


def test_a_step_that_fails_is_not_counted() -> None:
    events: list[Event] = []
    with received(events.append), pytest.raises(ZeroDivisionError), counted("dividing", 3) as steps, steps.step():
        raise ZeroDivisionError
    assert [event.done for event in events] == [0]
    assert steps.seconds is None


def test_later_builds_know_what_steps_took(tmp_path: Path) -> None:
    cache, events = Cache(tmp_path / "cache"), list[Event]()
    with received(events.append):
        for _ in range(2):
            with estimated("compiling kernel", 3, cache, typical=30.0) as steps:
                steps._count(3, 300.0)
    assert [event.seconds_left for event in events] == [90.0, 300.0]
    assert json.loads((cache.folder / FILE).read_text()) == {"compiling kernel": 100.0}
    with estimated("compiling kernel", 1, cache) as steps:
        steps._count(1, 50.0)
    assert json.loads((cache.folder / FILE).read_text()) == {"compiling kernel": 75.0}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"compiling": "long", "linking": -1, "planning": 1e30}'])
def test_a_damaged_file_of_costs_is_replaced(tmp_path: Path, text: str) -> None:
    cache = Cache(tmp_path)
    (tmp_path / FILE).write_text(text)
    with estimated("compiling", 2, cache) as steps:
        assert steps.earlier is None
        steps._count(2, 4.0)
    assert json.loads((tmp_path / FILE).read_text()) == {"compiling": 2.0}


def test_without_a_cache_nothing_is_remembered(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", enabled=False)
    with estimated("compiling", 1, cache) as steps:
        steps._count(1, 4.0)
    assert not cache.folder.exists()
