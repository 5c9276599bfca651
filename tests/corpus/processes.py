"""Run files of the corpus, each in a process of its own.

Not in ``__main__``: a spawned process imports the function that it runs by its module's name, and the name of a module
that ``python -m`` runs means another one there.
"""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path

from .case import Case
from .files import CASES
from .running import Outcome, run

LIMIT = 900


def run_all(cases: Sequence[Case], folder: Path, targets: Sequence[str] = ()) -> Iterator[Outcome]:
    """Yield the outcome of each case, which has a process of its own: exporters leave a lot of memory behind.

    It is not forked: torch's threads, if this process has any, would be missing in it, and waited for.
    """
    context = multiprocessing.get_context("spawn")
    for case in cases:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_child, args=(case.name, folder, targets, theirs))
        process.start()
        theirs.close()
        outcome = Outcome(case.name, "crashed", f"no answer in {LIMIT} s")
        if ours.poll(LIMIT):
            try:
                outcome = ours.recv()
            except EOFError:
                process.join()
                code = process.exitcode or 0
                outcome = Outcome(case.name, "crashed", signal.Signals(-code).name if code < 0 else f"exit code {code}")
        process.kill()
        process.join()
        yield outcome


def _child(name: str, folder: Path, targets: Sequence[str], answer: Connection) -> None:
    answer.send(run(CASES[name], folder, targets))
