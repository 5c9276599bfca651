"""Run steps of a benchmark in processes of their own, which are ended when their time is over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass

SAID = 600
"""How many of the last characters of an error are told."""


@dataclass(frozen=True)
class Step:
    """How a step ended: ``why`` it failed, if it did, seconds that it took, and what it printed."""

    why: str
    seconds: float
    printed: str

    def __str__(self) -> str:
        return f"{self.seconds:.0f} s" + (f": {self.why}" if self.why else "")


def step(arguments: Sequence[str], end: float) -> Step:
    """Run this benchmark's command; when ``end`` of the monotonic clock comes, end all that it has started."""
    start = time.monotonic()
    if start >= end:
        return Step("no time left", 0.0, "")
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gpu.placement", *arguments],
        start_new_session=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        printed, said = process.communicate(timeout=end - start)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        return Step("time was over", time.monotonic() - start, "")
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        raise
    why = f"FAILED {said[-SAID:]}" if process.returncode else ""
    return Step(why, time.monotonic() - start, printed)
