"""Progress: what is counted and estimated, and what later builds remember of it."""

from __future__ import annotations

import hashlib
import json
import re
import signal
import time
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path

import pytest

from packager.bundle.hashing import sha256_of_file
from packager.cli import interruption
from packager.cli.progress import shown_progress
from packager.codegen.cache import Cache
from packager.codegen.costs import FILE, estimated
from packager.codegen.workers import workers
from packager.progress import Event, Steps, counted, counted_bytes, duration, note, received, report, warn


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
    steps.count(4, 16.0)  # 4 seconds each
    assert steps._left() == pytest.approx(6 * (4 * 4 + 8) / 5 / 2)
    steps.count(5, None)
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
                steps.count(3, 300.0)
    assert [event.seconds_left for event in events] == [90.0, 300.0]
    assert json.loads((cache.folder / FILE).read_text()) == {"compiling kernel": 100.0}
    with estimated("compiling kernel", 1, cache) as steps:
        steps.count(1, 50.0)
    assert json.loads((cache.folder / FILE).read_text()) == {"compiling kernel": 75.0}


@pytest.mark.parametrize("text", ["", "[]", "{", '{"compiling": "long", "linking": -1, "planning": 1e30}'])
def test_a_damaged_file_of_costs_is_replaced(tmp_path: Path, text: str) -> None:
    cache = Cache(tmp_path)
    (tmp_path / FILE).write_text(text)
    with estimated("compiling", 2, cache) as steps:
        assert steps.earlier is None
        steps.count(2, 4.0)
    assert json.loads((tmp_path / FILE).read_text()) == {"compiling": 2.0}


def test_without_a_cache_nothing_is_remembered(tmp_path: Path) -> None:
    cache = Cache(tmp_path / "cache", enabled=False)
    with estimated("compiling", 1, cache) as steps:
        steps.count(1, 4.0)
    assert not cache.folder.exists()


def test_amounts_are_reported_in_their_unit() -> None:
    events: list[Event] = []
    part = memoryview(bytes(1 << 20))
    with received(events.append), counted_bytes("hashing weights", 200 << 20) as used:
        assert sum(map(len, used(part for _ in range(120)))) == 120 << 20
        assert sum(map(len, used(part for _ in range(80)))) == 80 << 20
    assert [(event.done, event.total) for event in events] == [(0, 200), (64, 200), (128, 200), (192, 200)]
    assert str(events[1]) == "hashing weights 64 of 200 MiB"
    assert events[1].seconds_left is not None


def test_little_data_is_not_reported(tmp_path: Path) -> None:
    events: list[Event] = []
    (tmp_path / "weights").write_bytes(bytes(1000))
    with received(events.append):
        assert sha256_of_file(tmp_path / "weights") == hashlib.sha256(bytes(1000)).hexdigest()
        with counted_bytes("hashing", 0) as used:
            assert list(used([])) == []
    assert not events


def test_hashing_a_large_file_is_reported(tmp_path: Path) -> None:
    events: list[Event] = []
    large = tmp_path / "model.safetensors"
    with large.open("wb") as file:
        file.truncate(130 << 20)
    with received(events.append):
        sha256_of_file(large)
    assert [event.text for event in events] == ["hashing model.safetensors"] * 3


def test_a_note_is_no_stage() -> None:
    events: list[Event] = []
    with received(events.append):
        note("some are left out")
        report("measuring", 125.0)
    assert [str(event) for event in events] == ["note: some are left out", "measuring, about 2 min left"]
    assert [event.lasting for event in events] == [True, False]


def test_short_commands_show_no_stage(capfd: pytest.CaptureFixture[str]) -> None:
    with shown_progress(after=600) as show:
        show(Event("reading the code"))
        show(Event("left out", note=True))
    assert re.fullmatch(r"\[ *\d+\.\d s\] note: left out\n", capfd.readouterr().err)


def test_long_commands_show_the_stage_that_they_are_at() -> None:
    with redirect_stderr(StringIO()) as errors, shown_progress(after=0.05) as show:
        show(Event("hashing"))
        show(Event("reading the code"))
        while not errors.getvalue():  # a timer's thread writes it
            time.sleep(0.01)
        show(Event("running 1 golden pairs"))
    assert [line.partition("] ")[2] for line in errors.getvalue().splitlines()] == [
        "reading the code",
        "running 1 golden pairs",
    ]


def test_an_interrupted_command_goes_no_further_but_may_say_why(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interruption, "_arrived", [signal.SIGINT])
    with shown_progress() as show:
        with pytest.raises(KeyboardInterrupt):
            show(Event("measuring"))
        show(Event("7 measurements are kept", note=True))
    assert capfd.readouterr().err.endswith("note: 7 measurements are kept\n")


def test_measured_runs_are_counted_now_and_then() -> None:
    from packager.deploy.measure.bench import _time_runs

    events: list[Event] = []
    with received(events.append):
        times = _time_runs(lambda: time.sleep(0.1), 8, 0.1)
        quick = _time_runs(lambda: None, 1000, 1e-6)
    assert times.min() >= 0.1
    counted = [event.count for event in events]
    assert counted[0] == "1 of 8"
    assert "2 of 8" < counted[1] < "9 of 8"  # not each, and not all at the end
    assert "1 of 1000" in counted
    assert len(quick) == 1000


def test_what_will_take_long_says_so_at_its_start_once() -> None:
    for earlier, said in ((15.0, ["note: compiling kernels takes about 75 s"]), (1.0, []), (None, [])):
        events: list[Event] = []
        with received(events.append), counted("compiling kernel", 6, earlier=earlier) as steps:
            steps.skip()
            for _ in range(5):
                with steps.step():
                    pass
        assert [str(event) for event in events if event.note] == said
        assert not said or events[2].note
