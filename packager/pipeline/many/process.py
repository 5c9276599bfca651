"""One build of a matrix as a process of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from packager.bundle.hashing import sha256_of_file
from packager.codegen.workers import Running


@dataclass(frozen=True)
class Case:
    """A build: its name, the words after ``packager build``, the folder they are relative to, and the bundle."""

    name: str
    arguments: tuple[str, ...]
    folder: Path
    output: Path


@dataclass(frozen=True)
class Outcome:
    """What became of a build: the bundle's SHA-256, or the exit code and what the build said, without ``error:``."""

    name: str
    output: Path
    seconds: float
    sha256: str = ""
    code: int = 0
    error: str = ""


class Processes:
    """Runs builds with ``jobs`` compilers each, until it is stopped."""

    def __init__(self, jobs: int) -> None:
        self._jobs = jobs
        self._running: Running[subprocess.Popen[str]] = Running()

    def stop(self) -> None:
        """End the builds that run, and begin no more."""
        running = self._running.stop()
        for process in running:
            process.terminate()  # it removes its temporary files
        for process in running:
            process.wait()

    def build(self, case: Case) -> Outcome:
        """Build one, and return what became of it."""
        start = time.monotonic()
        with self._running.begun(lambda: self._begin(case)) as process:
            if process is None:
                return interrupted(case)
            _, said = process.communicate()
        seconds = time.monotonic() - start
        if process.returncode == 0:
            return Outcome(case.name, case.output, seconds, sha256=sha256_of_file(case.output))
        return Outcome(
            case.name, case.output, seconds, code=process.returncode, error=_reason(said, process.returncode)
        )

    def _begin(self, case: Case) -> subprocess.Popen[str]:
        words = [*case.arguments, "-o", str(case.output), "-j", str(self._jobs), "--quiet"]
        return subprocess.Popen(
            [sys.executable, "-m", "packager", "build", *words],
            cwd=case.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )


def interrupted(case: Case) -> Outcome:
    """Return the outcome of a build that did not begin."""
    return Outcome(case.name, case.output, 0.0, code=130, error="interrupted")


def _reason(said: str, code: int) -> str:
    """Return the error that a build printed last, with its details and hint."""
    _, found, text = said.rpartition("error: ")
    if found:
        return text.strip()
    return f"killed by signal {-code}" if code < 0 else said.strip() or f"exit code {code}"
