"""What ends the tools of a build that is given up."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import CancelledError, Future
from pathlib import Path

import pytest

from packager.codegen import toolchain
from packager.codegen.workers import Running, workers
from packager.errors import ToolchainError

SECONDS = 30  # that a tool takes which nobody ends


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


def compile_slowly(folder: Path, name: str) -> None:
    """Run a tool that, as nvcc does, waits for one of its own, which waits for another."""
    inner = f"sleep {SECONDS} & echo $! > {name}.inner; wait"
    outer = f"sh -c '{inner}' & echo $! > {name}.outer; wait"
    toolchain.run(["/bin/sh", "-c", outer], cwd=folder)


def alive(path: Path) -> bool:
    """Whether the process that a file names runs; one that nobody has waited for does not."""
    try:
        return Path(f"/proc/{int(path.read_text())}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def have_ended(*paths: Path) -> bool:
    """Whether processes end long before they would by themselves: one that is killed runs for a moment."""
    end = time.monotonic() + SECONDS / 3
    while any(map(alive, paths)) and time.monotonic() < end:
        time.sleep(0.01)
    return not any(map(alive, paths))


def wait_for(*paths: Path) -> None:
    end = time.monotonic() + SECONDS
    while not all(path.exists() and path.read_text().strip() for path in paths):
        assert time.monotonic() < end
        time.sleep(0.01)


@pytest.mark.parametrize("error", [KeyboardInterrupt, ToolchainError])
def test_tools_end_with_all_that_they_have_started(error: type[BaseException], tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.{level}" for name in "ab" for level in ("inner", "outer")]
    futures: list[Future[None]] = []

    def give_up() -> None:
        with workers(2) as pool:
            futures.extend(pool.submit(compile_slowly, tmp_path, name) for name in "abc")
            wait_for(*files)
            assert all(map(alive, files))
            raise error("given up")

    with pytest.raises(error):
        give_up()
    assert have_ended(*files)
    assert not list(tmp_path.glob("c.*"))
    for future in futures[:2]:
        assert "killed by signal 9" in str(future.exception())
    assert futures[2].cancelled()


def test_a_tool_outside_of_a_pool_ends_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_process: object) -> None:
        wait_for(tmp_path / "a.inner", tmp_path / "a.outer")
        raise KeyboardInterrupt

    monkeypatch.setattr("subprocess.Popen.communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        compile_slowly(tmp_path, "a")
    assert have_ended(tmp_path / "a.inner", tmp_path / "a.outer")


def test_pools_within_pools_have_their_own_tools(tmp_path: Path) -> None:
    """The failure of an inner one leaves what the outer one runs."""
    go_on, done = threading.Event(), []

    def other() -> None:
        go_on.wait(SECONDS)
        toolchain.run([sys.executable, "-c", "pass"], cwd=tmp_path)
        done.append(True)

    with workers(1) as pool:
        future = pool.submit(other)
        with pytest.raises(ToolchainError), workers(1) as inner:
            inner.submit(toolchain.run, ["/bin/false"], cwd=tmp_path).result()
        go_on.set()
        future.result()
    assert done == [True]


def test_no_tool_begins_once_the_work_is_given_up(tmp_path: Path) -> None:
    go_on = threading.Event()
    futures: list[Future[None]] = []

    def late() -> None:
        go_on.wait(SECONDS)
        time.sleep(0.1)
        compile_slowly(tmp_path, "a")

    def give_up() -> None:
        with workers(1) as pool:
            futures.append(pool.submit(late))
            go_on.set()
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        give_up()
    assert isinstance(futures[0].exception(), CancelledError)
    assert list(tmp_path.iterdir()) == []
