from __future__ import annotations

import pytest

from packager.pipeline.many.running import Running


def test_nothing_begins_after_a_stop() -> None:
    running: Running[str] = Running()
    with running.begun(lambda: "first") as first, running.begun(lambda: "second"):
        assert first == "first"
        assert sorted(running.stop()) == ["first", "second"]
        assert running.stopped
        assert running.stop() == [], "each is ended once"
    with running.begun(lambda: pytest.fail("it began")) as none:
        assert none is None


def test_what_has_ended_or_did_not_begin_is_not_running() -> None:
    running: Running[str] = Running()
    with running.begun(lambda: "first"):
        pass
    with pytest.raises(OSError, match="no"):
        failing(running)
    assert running.stop() == []


def failing(running: Running[str]) -> None:
    def begin() -> str:
        raise OSError("no")

    with running.begun(begin):
        pass
