"""Shows the progress of a command on stderr: a live line on a terminal, else lines with the time."""

from __future__ import annotations

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
LINE_SECONDS = 5.0
"""Seconds between two lines about the steps of a stage."""


@contextmanager
def shown_progress(*, quiet: bool = False) -> Iterator[Receiver]:
    """Yield what shows events. It raises KeyboardInterrupt after a signal: an interrupted command goes no further."""
    if quiet:
        yield _checked(_Warnings())
    elif sys.stderr.isatty():
        from rich.console import Console

        console, start = Console(stderr=True, highlight=False), time.monotonic()
        with _bar(console) as bar:
            yield _checked(_Live(bar))
        console.print(f"done in {time.monotonic() - start:.1f} s")
    else:
        yield _checked(_Lines())


def _checked(show: Receiver) -> Receiver:
    def receive(event: Event) -> None:
        interruption.check()
        show(event)

    return receive


class _Warnings:
    """Shows warnings alone."""

    def __call__(self, event: Event) -> None:
        if event.warning:
            print(event, file=sys.stderr, flush=True)


class _Lines:
    """A line for each stage, and for its steps one every few seconds. Called by several threads."""

    def __init__(self) -> None:
        self._start = time.monotonic()
        self._last = 0.0
        self._lock = threading.Lock()

    def __call__(self, event: Event) -> None:
        with self._lock:
            now = time.monotonic() - self._start
            if event.done and now - self._last < LINE_SECONDS:
                return
            self._last = now
            print(f"[{now:5.1f} s] {event}", file=sys.stderr, flush=True)


class _Live:
    """One line that is drawn again: what runs, a bar if its steps are counted, the time it takes, and what is left."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._stage: tuple[str, TaskID] | None = None

    def __call__(self, event: Event) -> None:
        if event.warning:
            self._bar.console.print(str(event))
            return
        left = "" if event.seconds_left is None else f"about {duration(event.seconds_left)} left"
        steps = f"{event.done + 1} of {event.total}" if event.total else ""
        if self._stage is None or self._stage[0] != event.text:
            if self._stage is not None:
                self._bar.remove_task(self._stage[1])
            self._stage = event.text, self._bar.add_task(event.text, total=event.total or None, steps=steps, left=left)
        self._bar.update(self._stage[1], completed=event.done, steps=steps, left=left)


def _bar(console: Console) -> Progress:
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    return Progress(
        SpinnerColumn(),
        TextColumn("{task.description} {task.fields[steps]}"),
        BarColumn(bar_width=24),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
        console=console,
        transient=True,
    )
