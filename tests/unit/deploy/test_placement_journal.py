"""A search that is interrupted goes on by its journal, and says what is wrong with one."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from test_placement_search import Simulated, coupled, space

from packager.deploy.measure.placement.effort import Effort
from packager.deploy.measure.placement.journal import Journal, Subject
from packager.deploy.measure.placement.search import Found, search
from packager.deploy.measure.placement.space import Vector
from packager.deploy.measure.placement.timing import Batch
from packager.errors import UsageError

SUBJECT = Subject("0" * 64, "a CPU", 2, 7)
SIZES = [3, 2, 4]


@dataclass
class Interrupted:
    """Stops as a signal does, after so many batches."""

    timer: Simulated
    left: int

    def time(self, vectors: Sequence[Vector], rounds: int) -> Batch:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        return self.timer.time(vectors, rounds)


def simulated() -> Simulated:
    return Simulated(coupled(SIZES, 4), 0.01)


def run(path: Path, timer: Simulated | Interrupted, subject: Subject = SUBJECT, effort: Effort = Effort()) -> Found:  # noqa: B008
    with Journal(path, subject, timer) as journal:
        return search(space(SIZES), journal, effort)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "records.json.journal"


@pytest.fixture
def interrupted(path: Path) -> Path:
    with pytest.raises(KeyboardInterrupt):
        run(path, Interrupted(simulated(), 4))
    return path


def test_a_search_goes_on_where_it_stopped(tmp_path: Path, path: Path) -> None:
    """Wherever that is, and however often: what it measures in all, and finds, is what it does at once."""
    whole = simulated()
    expected = run(tmp_path / "whole", whole)
    total = len(whole.batches)
    timer = simulated()
    for stop in range(total):
        with pytest.raises(KeyboardInterrupt):
            run(path, Interrupted(timer, 1 if stop else 0))
    assert run(path, timer) == expected
    assert timer.batches == whole.batches
    assert path.read_bytes() == (tmp_path / "whole").read_bytes()
    assert run(path, Interrupted(timer, 0)) == expected


def test_a_half_written_line_is_measured_again(interrupted: Path, tmp_path: Path) -> None:
    expected = run(tmp_path / "whole", simulated())
    content = interrupted.read_bytes()
    lines = content.splitlines(keepends=True)
    for cut in (1, 20, len(lines[-1]) - 1):
        interrupted.write_bytes(content[: len(content) - len(lines[-1])] + lines[-1][:cut])
        timer = simulated()
        timer.batches = [((), 0)] * 3  # as in the run that measured the three before
        assert run(interrupted, timer) == expected
        assert interrupted.read_bytes() == (tmp_path / "whole").read_bytes()


def test_a_half_written_header_is_written_again(path: Path, tmp_path: Path) -> None:
    expected = run(tmp_path / "whole", simulated())
    path.write_bytes((tmp_path / "whole").read_bytes()[:30])
    assert run(path, simulated()) == expected


def test_other_options_drop_what_they_do_not_need(interrupted: Path, tmp_path: Path) -> None:
    """Fewer rounds lead another way, after batches that both have."""
    effort = Effort(rounds=10)
    whole, other = simulated(), simulated()
    expected = run(tmp_path / "whole", whole, effort=effort)
    run(tmp_path / "other", other)
    pairs = zip(whole.batches, other.batches, strict=False)
    common = list(itertools.takewhile(lambda pair: pair[0] == pair[1], pairs))
    timer = simulated()
    timer.batches = [((), 0)] * min(len(common), 4)  # the interrupted run has four
    assert run(interrupted, timer, effort=effort) == expected
    assert interrupted.read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize(
    ("subject", "what"),
    [
        (replace(SUBJECT, bundle="1" * 64), "bundle"),
        (replace(SUBJECT, device="another CPU", threads=3), "device, threads"),
        (replace(SUBJECT, seed=8), "seed"),
    ],
)
def test_a_journal_of_another_run_is_refused(interrupted: Path, subject: Subject, what: str) -> None:
    before = interrupted.read_bytes()
    with pytest.raises(UsageError, match=f"differs in: {what}$") as refused:
        run(interrupted, simulated(), subject)
    assert refused.value.hint == "finish that one by its own command, or remove the file to start anew"
    assert interrupted.read_bytes() == before


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda lines: [b"{}", *lines[1:]], "damaged in line 1: .*lacks the key"),
        (lambda _: [b"no json"], "damaged in line 1: .*not valid JSON"),
        (
            lambda lines: [lines[0].replace(b'"journal_version":2', b'"journal_version":1')],
            "damaged in line 1: .*expected",
        ),
        (lambda lines: [lines[0], b"", *lines[1:]], "damaged in line 2: .*not valid JSON"),
        (
            lambda lines: [lines[0], lines[1].replace(b'"us":[[', b'"us":[[1.0,')],
            r"line 2: \$.us: has not a time for each",
        ),
        (lambda lines: [lines[0], lines[1].replace(b'"us":[[', b'"us":[[-')], "damaged in line 2: .*must be at least"),
    ],
)
def test_a_damaged_journal_is_refused(
    interrupted: Path, damage: Callable[[list[bytes]], list[bytes]], message: str
) -> None:
    interrupted.write_bytes(b"".join(line + b"\n" for line in damage(interrupted.read_bytes().splitlines())))
    before = interrupted.read_bytes()
    with pytest.raises(UsageError, match=message) as refused:
        run(interrupted, simulated())
    assert refused.value.hint == "remove the file to start anew"
    assert interrupted.read_bytes() == before


def test_a_file_of_something_else_is_not_overwritten(path: Path) -> None:
    path.write_bytes(b"a text without an end of line")
    with pytest.raises(UsageError, match="damaged in line 1"):
        run(path, simulated())
    assert path.read_bytes() == b"a text without an end of line"


def test_a_journal_in_use_is_refused(path: Path) -> None:
    with Journal(path, SUBJECT, simulated()), pytest.raises(UsageError, match="is in use"):
        Journal(path, SUBJECT, simulated())
    Journal(path, SUBJECT, simulated()).remove()
    assert not path.exists()


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"cannot write .*absent"):
        Journal(tmp_path / "absent" / "journal", SUBJECT, simulated())
