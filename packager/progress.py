"""What a long operation does: stages, and steps that are counted, as events for whoever waits for it.

Code reports from where the work is, without a receiver in its parameters: ``received`` sets it for the thread, through
a context variable, which pools made by ``codegen.timings.workers`` hand on. Without a receiver, events are lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import TypeVar

SHOWN_SECONDS = 10.0
"""Estimates below are not written out: a bar shows them as well."""
LONG_SECONDS = 60.0
"""A stage that will take longer says so at its start, by a line that stays."""
REPORTED_BYTES = 1 << 26
"""Bytes between two reports of how much was read. Less data takes no time worth a report."""

Data = TypeVar("Data", bytes, memoryview, bytes | memoryview)


@dataclass(frozen=True)
class Event:
    """What runs now: a stage, or its step ``done + 1`` of ``total``; ``done`` of ``total`` if these have a ``unit``.

    A ``warning`` or a ``note`` is no stage, and stays true. ``seconds_left`` is an estimate for the remaining steps;
    None if nothing is known of them.
    """

    text: str
    done: int = 0
    total: int = 0
    seconds_left: float | None = None
    warning: bool = False
    note: bool = False
    unit: str = ""

    @property
    def lasting(self) -> bool:
        """Whether it is no stage."""
        return self.warning or self.note

    @property
    def count(self) -> str:
        """Return how many of how many, or nothing if steps are not counted."""
        if not self.total:
            return ""
        step = self.done if self.unit else min(self.done + 1, self.total)
        return f"{step} of {self.total} {self.unit}".rstrip()

    def __str__(self) -> str:
        text = f"warning: {self.text}" if self.warning else f"note: {self.text}" if self.note else self.text
        if self.total:
            text += f" {self.count}"
        if self.seconds_left is not None and self.seconds_left >= SHOWN_SECONDS:
            text += f", about {duration(self.seconds_left)} left"
        return text


Receiver = Callable[[Event], None]
_RECEIVER: ContextVar[Receiver | None] = ContextVar("receiver", default=None)


def duration(seconds: float) -> str:
    """Return an estimated time as text: ``40 s``, ``3 min``, ``1 h 20 min``."""
    if seconds < 90:
        return f"{max(round(seconds), 1)} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


@contextmanager
def received(receiver: Receiver | None) -> Iterator[None]:
    """Send what the block reports to ``receiver``."""
    token = _RECEIVER.set(receiver)
    try:
        yield
    finally:
        _RECEIVER.reset(token)


def report(text: str, seconds_left: float | None = None) -> None:
    """Report that a stage begins, and how long it will be until the end, if that is known."""
    _send(Event(text, seconds_left=seconds_left))


def warn(text: str) -> None:
    """Report what the user should know about the result."""
    _send(Event(text, warning=True))


def note(text: str) -> None:
    """Report what was done otherwise than one might expect, and is no reason to worry."""
    _send(Event(text, note=True))


def _send(event: Event) -> None:
    receiver = _RECEIVER.get()
    if receiver is not None:
        receiver(event)


@dataclass
class Steps:
    """Counts the steps of a stage, which run on ``at_once`` threads, and estimates the time of those that remain.

    A step takes as long as those before it, the ones of earlier builds included, of which ``earlier`` knows the mean.
    """

    text: str
    total: int
    at_once: int = 1
    earlier: float | None = None
    unit: str = ""
    _done: int = 0
    _seconds: list[float] = field(default_factory=list)  # of single steps, those that were skipped excluded
    _announced: bool = False
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def step(self, count: int = 1) -> Iterator[None]:
        """Time a block that does ``count`` steps, and count them at its end."""
        self._announce()
        start = time.monotonic()
        yield
        self.count(count, time.monotonic() - start)

    def skip(self, count: int = 1) -> None:
        """Count steps that cost nothing: their results are known."""
        self.count(count, None)

    def count(self, count: int, seconds: float | None) -> None:
        """Count steps that took so many seconds together, None if they are no measure of others."""
        with self._lock:
            self._done += count
            if seconds is not None:
                self._seconds += [seconds / count] * count
            if self._done < self.total:
                self._report()

    def _announce(self) -> None:
        """Say before the first step how long all will take, if that is long."""
        with self._lock:
            left = None if self._announced else self._left()
            self._announced = True
        if left is not None and left >= LONG_SECONDS:
            note(f"{self.text}s takes about {duration(left)}")

    def _report(self) -> None:
        _send(Event(self.text, self._done, self.total, self._left(), unit=self.unit))

    def _left(self) -> float | None:
        known = self._seconds + ([] if self.earlier is None else [self.earlier])
        if not known:
            return None
        left = self.total - self._done
        return left * sum(known) / len(known) / min(self.at_once, left)

    @property
    def seconds(self) -> float | None:
        """Return the mean time of a step that was done, or None."""
        return sum(self._seconds) / len(self._seconds) if self._seconds else None


@contextmanager
def counted(text: str, total: int, *, at_once: int = 1, earlier: float | None = None) -> Iterator[Steps]:
    """Report a stage of so many steps, named as one of them: ``compiling kernel``. Other parameters as in ``Steps``."""
    steps = Steps(text, total, max(1, at_once), earlier)
    if total:
        steps._report()
    yield steps


@contextmanager
def counted_bytes(text: str, size: int) -> Iterator[Callable[[Iterable[Data]], Iterator[Data]]]:
    """Yield what passes on data, up to ``size`` bytes in all, and reports how much of it the block has used."""
    steps = Steps(text, size >> 20, unit="MiB")
    if size >= REPORTED_BYTES:
        steps._report()
    used, since = 0, time.monotonic()

    def passed_on(parts: Iterable[Data]) -> Iterator[Data]:
        nonlocal used, since
        for part in parts:
            yield part
            used += len(part)
            if used >= REPORTED_BYTES:
                now = time.monotonic()
                steps.count(used >> 20, now - since)
                used, since = used & ((1 << 20) - 1), now

    yield passed_on
