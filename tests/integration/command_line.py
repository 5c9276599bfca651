"""Running the command line as a process, and what is compared before and after."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

ROOT = Path(__file__).parents[2]
TIMEOUT = 120  # seconds, for a command
Cli = Callable[..., "subprocess.CompletedProcess[str]"]


def command(*arguments: object) -> list[str]:
    """Return the command line of ``packager ARGUMENTS``."""
    return [sys.executable, "-m", "packager", *map(str, arguments)]


def environment(changed: Mapping[str, str | None], tmpdir: Path) -> dict[str, str]:
    """Return this process's environment with changes; None unsets a variable."""
    tmpdir.mkdir(exist_ok=True)
    merged = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmpdir), **changed}
    return {name: value for name, value in merged.items() if value is not None}


def run(
    arguments: Sequence[object],
    tmp_path: Path,
    *,
    cwd: Path | None = None,
    env: Mapping[str, str | None] | None = None,
    wrap: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """Run ``packager ARGUMENTS`` in ``tmp_path/cwd`` unless told otherwise; ``wrap`` is a command that runs it."""
    (tmp_path / "cwd").mkdir(exist_ok=True)
    return subprocess.run(
        [*wrap, *command(*arguments)],
        cwd=cwd or tmp_path / "cwd",
        env=environment(env or {}, tmp_path / "tmp"),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIMEOUT,
    )


class ForkedCommands:
    """Runs commands as ``run`` does, in forks of one process that has imported TVM (fork_commands.py).

    For tests of what commands do with TVM: not of what they import, nor of signals.
    """

    def __init__(self, tmp_path: Path) -> None:
        self._folder = tmp_path
        self._server = self._start()

    def _start(self) -> subprocess.Popen[str]:
        argv = [sys.executable, str(Path(__file__).with_name("fork_commands.py"))]
        env = environment({}, self._folder / "tmp")
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        return subprocess.Popen(argv, env=env, text=True, start_new_session=True, **pipes)

    def run(
        self,
        arguments: Sequence[object],
        tmp_path: Path,
        *,
        cwd: Path | None = None,
        env: Mapping[str, str | None] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run ``packager ARGUMENTS`` in ``tmp_path/cwd`` unless told otherwise."""
        (tmp_path / "cwd").mkdir(exist_ok=True)
        outputs = [self._folder / name for name in ("stdout", "stderr")]
        for path in outputs:
            path.write_bytes(b"")
        request = {
            "arguments": list(map(str, arguments)),
            "cwd": str(cwd or tmp_path / "cwd"),
            "env": environment(env or {}, tmp_path / "tmp"),
            "outputs": list(map(str, outputs)),
        }
        assert self._server.stdin
        assert self._server.stdout
        self._server.stdin.write(json.dumps(request) + "\n")
        self._server.stdin.flush()
        if not select.select([self._server.stdout], [], [], TIMEOUT)[0]:
            os.killpg(self._server.pid, signal.SIGKILL)
            self._server.communicate()
            self._server = self._start()
            raise subprocess.TimeoutExpired(command(*arguments), TIMEOUT)
        code = int(self._server.stdout.readline())
        return subprocess.CompletedProcess(command(*arguments), code, *(path.read_text() for path in outputs))

    def close(self) -> None:
        """End the process."""
        self._server.communicate()


def tree(folder: Path) -> dict[str, bytes]:
    """Return every file below a folder with its content; folders count as files without content."""
    return {
        str(path.relative_to(folder)): b"" if path.is_dir() else path.read_bytes() for path in sorted(folder.rglob("*"))
    }


def assert_refused(done: subprocess.CompletedProcess[str], code: int, *parts: str, hint: str = "") -> None:
    """Check an error of the command line: its exit code, what it says, its hint; no data, no traceback."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    lines = [line for line in done.stderr.splitlines() if not line.startswith("[")]  # without progress
    assert lines[0].startswith("error: "), done.stderr
    assert "Traceback" not in done.stderr
    for part in parts:
        assert part in done.stderr
    if hint:
        assert hint in done.stderr.partition("\n\nhint: ")[2], done.stderr


def relu_input(rows: int = 2) -> dict[str, np.ndarray]:
    """Return an input of the mlp and the batched model."""
    return {"x": np.linspace(-1, 1, rows * 6, dtype=np.float32).reshape(rows, 6)}
