"""How long the stages of a build take, and each run of a compiler, assembler or linker.

A build has a ``Timings`` of its own. ``toolchain.run`` finds it through a context variable.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class ToolCall:
    """One run of a ``tool``, and the file that it made; both are names without folders."""

    tool: str
    output: str
    seconds: float


@dataclass
class Timings:
    """What one build has taken so far: seconds by stage, in order, and the runs of tools as they ended.

    Tools run at the same time: their seconds may be more than those of the stage. What the cache had was not run.
    """

    stages: dict[str, float] = field(default_factory=dict)
    calls: list[ToolCall] = field(default_factory=list)  # appended to by several threads
    total: float = 0.0

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Count the time of a block for a stage; also of one that fails."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.stages[name] = self.stages.get(name, 0.0) + time.perf_counter() - start

    def to_json(self) -> dict[str, Any]:
        """Return the contents of ``timings.json``."""
        return {
            "schema_version": SCHEMA_VERSION,
            "stages": [{"stage": name, "seconds": round(seconds, 6)} for name, seconds in self.stages.items()],
            "calls": [
                {"tool": call.tool, "output": call.output, "seconds": round(call.seconds, 6)} for call in self.calls
            ],
        }


_CURRENT: ContextVar[Timings | None] = ContextVar("timings", default=None)


@contextmanager
def recorded() -> Iterator[Timings]:
    """Yield new timings, which the tools that the block runs are added to; in the end ``total`` is the block's time."""
    timings = Timings()
    token = _CURRENT.set(timings)
    start = time.perf_counter()
    try:
        yield timings
    finally:
        timings.total = time.perf_counter() - start
        _CURRENT.reset(token)


@contextmanager
def tool_call(argv: Sequence[str]) -> Iterator[None]:
    """Add the time of a block that runs ``argv`` to the timings of the build that it belongs to, if there is one."""
    start = time.perf_counter()
    try:
        yield
    finally:
        timings = _CURRENT.get()
        if timings is not None:
            call = ToolCall(PurePath(argv[0]).name, _output(argv), time.perf_counter() - start)
            timings.calls.append(call)


def _output(argv: Sequence[str]) -> str:
    """Return the name of the file after ``-o``; ``ar``, ``objcopy`` and questions as ``--version`` end with theirs."""
    path = argv[argv.index("-o") + 1] if "-o" in argv[:-1] else argv[-1]
    return PurePath(path).name
