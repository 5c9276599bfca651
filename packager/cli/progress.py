"""Shows the progress of a command on stderr: a live line on a terminal, else lines with the time."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from packager.cli import interruption
from packager.progress import Event, Receiver, duration

if TYPE_CHECKING:
    from rich.console import Console
    from rich.progress import Progress, TaskID

Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print errors and warnings alone, no progress.")]
SHORT_SECONDS = 2.0
"""Commands that are usually done in less show no progress until then."""
LINE_SECONDS = 5.0
"""Seconds between two lines about the steps of a stage."""
LATE_SECONDS = 3.0
"""What takes so much longer than was estimated is said to."""
NARROW = 72
"""Columns of a terminal below which a bar would leave no room for what it is about."""


@contextmanager
def shown_progress(*, quiet: bool = False, after: float = 0.0) -> Iterator[Receiver]:
    """Yield what shows events. It raises KeyboardInterrupt after a signal: an interrupted command goes no further.

    Of a command that is usually done at once nothing is shown unless it takes longer than ``after`` seconds.
    """
    if quiet:
        yield _checked(_Warnings())
    elif sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown"):  # these cannot draw a line again
        from rich.console import Console

        console, start = Console(stderr=True, highlight=False), time.monotonic()
        with _bar(console) as bar:
            yield _checked(_Live(bar))
        if time.monotonic() - start >= after:
            console.print(f"done in {time.monotonic() - start:.1f} s")
    else:
        lines = _Lines(after)
        try:
            yield _checked(lines)
        finally:
            lines.close()


def _checked(show: Receiver) -> Receiver:
    def receive(event: Event) -> None:
        if not event.lasting:  # what an interrupted command still has to say is shown
            interruption.check()
        show(event)

    return receive


class _Warnings:
    """Shows warnings alone."""

    def __call__(self, event: Event) -> None:
        if event.warning:
            print(event, file=sys.stderr, flush=True)


class _Lines:
    """A line for each stage, and for its steps one every few seconds. Called by several threads.

    The first stage that is shown is the one that runs after ``after`` seconds.
    """

    def __init__(self, after: float) -> None:
        self._start = time.monotonic()
        self._last = 0.0
        self._lock = threading.Lock()
        self._waiting: Event | None = None
        self._timer: threading.Timer | None = None
        if after:
            self._timer = threading.Timer(after, self._show_waiting)
            self._timer.daemon = True
            self._timer.start()

    def __call__(self, event: Event) -> None:
        with self._lock:
            if self._timer is not None and not event.lasting:
                self._waiting = event
                return
            now = time.monotonic() - self._start
            if event.done and now - self._last < LINE_SECONDS:
                return
            self._print(event, now)

    def _show_waiting(self) -> None:
        with self._lock:
            self._timer = None
            if self._waiting is not None:
                self._print(self._waiting, time.monotonic() - self._start)

    def _print(self, event: Event, now: float) -> None:
        self._last = now
        sys.stderr.write(f"[{now:5.1f} s] {event}\n")  # in one piece: compilers and nodes of a cluster write there too
        sys.stderr.flush()

    def close(self) -> None:
        """Show nothing that still waits."""
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            self._waiting = None


class _Live:
    """One line that is drawn again: what runs, a bar if its steps are counted, the time it takes, and what is left."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._stage: tuple[str, TaskID] | None = None

    def __call__(self, event: Event) -> None:
        if event.lasting:
            self._bar.console.print(str(event))
            return
        end = None if event.seconds_left is None else time.monotonic() + event.seconds_left
        if self._stage is None or self._stage[0] != event.text:
            if self._stage is not None:
                self._bar.remove_task(self._stage[1])
            self._stage = (
                event.text,
                self._bar.add_task(event.text, total=event.total or None, steps=event.count, end=end),
            )
        self._bar.update(self._stage[1], completed=event.done, steps=event.count, end=end)


def _left(end: float | None) -> str:
    """Return how long it still takes until ``end``, by the clock of ``time.monotonic``, as text."""
    if end is None:
        return ""
    seconds = end - time.monotonic()
    return f"about {duration(seconds)} left" if seconds > -LATE_SECONDS else "takes longer than it did before"


def _bar(console: Console) -> Progress:
    from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeElapsedColumn
    from rich.text import Text

    class Left(ProgressColumn):
        """The time that is left."""

        def render(self, task: Task) -> Text:
            return Text(_left(task.fields["end"]))

    what = TextColumn("{task.description} {task.fields[steps]}")
    columns: tuple[ProgressColumn, ...] = (SpinnerColumn(), what, BarColumn(bar_width=24), TimeElapsedColumn(), Left())
    if console.width < NARROW:  # what is said in words, and no bar
        columns = (what, Left())
    return Progress(
        *columns,
        console=console,
        transient=True,
        refresh_per_second=4,  # little enough to disturb no measurement that is shown
    )
