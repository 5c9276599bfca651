"""Processes that answer lines of JSON, for work that may crash or hang."""

from __future__ import annotations

import json
import os
import resource
import select
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

START_SECONDS = 60.0
PATIENCE = 20


class Server:
    """A process that answers lines of JSON; it is started anew after a crash or a hang.

    An answer may take ``seconds`` of the CPU, and ``patience`` times as long by the clock.
    """

    def __init__(self, module: str, seconds: float, memory_bytes: int = 0, patience: int = PATIENCE) -> None:
        self.module, self.seconds, self.memory_bytes, self.patience = module, seconds, memory_bytes, patience
        self.process: subprocess.Popen[str] | None = None

    def ask(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return the answer, or a failure that says how the process ended."""
        process = self.process or self._start()
        assert process.stdin is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        line = _line(process, self.seconds, self.patience)
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        ended = f"{self.module} ended: {process.wait()}" if line is not None else f"no answer within {self.seconds} s"
        self.close()
        return {"status": "failed", "message": ended}

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", self.module]
        self.process = process = subprocess.Popen(
            command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        if self.memory_bytes:
            resource.prlimit(process.pid, resource.RLIMIT_AS, (self.memory_bytes, self.memory_bytes))
        assert _line(process, START_SECONDS, PATIENCE) == "ready\n", f"{self.module} does not start"
        return process

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.communicate()
            self.process = None


def serve(answer: Callable[[dict[str, Any]], dict[str, Any]]) -> None:
    """Be such a process until standard input ends. What others print goes to stderr."""
    answers, sys.stdout = sys.stdout, sys.stderr
    print("ready", file=answers, flush=True)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


def _line(process: subprocess.Popen[str], seconds: float, patience: int) -> str | None:
    """Return the next line of a process, "" at its end, None if it says nothing in time.

    The time is its own on the CPU, so that a machine with other work to do makes no difference; one that sleeps instead
    has ``patience`` times as long.
    """
    deadline, limit = time.monotonic() + patience * seconds, _cpu_seconds(process.pid) + seconds
    while time.monotonic() < deadline and _cpu_seconds(process.pid) < limit:
        ready, _, _ = select.select([process.stdout], [], [], 0.5)
        if ready and process.stdout is not None:
            return process.stdout.readline()
    return None


def _cpu_seconds(pid: int) -> float:
    """Return the time that a process and its children that have ended have had; proc(5), fields 14 to 17."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
