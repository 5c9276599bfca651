"""Runs requests on a pool of sessions; those that wait together may share a run, along a dim that counts rows."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

import packager

Arrays = dict[str, NDArray[Any]]


class BusyError(Exception):
    """So many requests wait that another one would wait too long."""


@dataclass(frozen=True)
class Waiting:
    """A request that waits for a run."""

    inputs: Arrays
    done: asyncio.Future[Arrays]

    @property
    def rows(self) -> int:
        """The rows that it adds to a run."""
        return next(iter(self.inputs.values())).shape[0]

    @property
    def kind(self) -> tuple[object, ...]:
        """Requests of one kind can be concatenated."""
        return tuple(sorted((name, array.dtype, array.shape[1:]) for name, array in self.inputs.items()))


class Pool:
    """Sessions of a bundle, each of which runs in one thread at a time; use as an asynchronous context.

    Sessions are independent: so many requests run at once. Each allocates its arena when it is created and nothing
    afterwards. ``batch`` is the dim along which requests may share a run: the first axis of every input and output.
    """

    def __init__(self, bundle: packager.Bundle, sessions: int, *, batch: str | None = None, waiting: int = 256) -> None:
        self._bundle = bundle
        self._sessions = sessions
        self._most_waiting = waiting
        self._most_rows = 0 if batch is None else _bound(bundle, batch)
        self._queue: deque[Waiting] = deque()
        self._arrived = threading.Condition()  # guards what is above and below
        self._closed = False
        self._threads: list[threading.Thread] = []
        self._sessions_open = ExitStack()

    async def __aenter__(self) -> Pool:
        loop = asyncio.get_running_loop()
        for _ in range(self._sessions):
            session = self._sessions_open.enter_context(self._bundle.session(threads=1))
            self._threads.append(threading.Thread(target=self._work, args=(session, loop), daemon=True))
        for thread in self._threads:
            thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        with self._arrived:
            self._closed = True
            waiting, self._queue = self._queue, deque()
            self._arrived.notify_all()
        for request in waiting:
            request.done.cancel()
        for thread in self._threads:
            await asyncio.to_thread(thread.join)
        self._sessions_open.close()

    async def run(self, inputs: Arrays) -> Arrays:
        """Run the model on one request. Raises BusyError, and packager.PackagerError for inputs that do not fit."""
        request = Waiting(inputs, asyncio.get_running_loop().create_future())
        with self._arrived:
            if self._closed or len(self._queue) >= self._most_waiting:
                raise BusyError
            self._queue.append(request)
            self._arrived.notify()
        return await request.done

    def _work(self, session: packager.Session, loop: asyncio.AbstractEventLoop) -> None:
        """Run requests until the pool is closed: the thread of a session."""
        while True:
            with self._arrived:
                self._arrived.wait_for(lambda: self._queue or self._closed)
                if self._closed:
                    return
                requests = self._take()
            results = _run(session, requests)
            loop.call_soon_threadsafe(_answer, requests, results)

    def _take(self) -> list[Waiting]:
        """Take the oldest request, and those right behind it that fit into its run."""
        requests = [self._queue.popleft()]
        if not self._most_rows or not _has_rows(requests[0]):
            return requests
        rows, kind = requests[0].rows, requests[0].kind
        while self._queue and _has_rows(self._queue[0]) and self._queue[0].kind == kind:
            rows += self._queue[0].rows
            if rows > self._most_rows:
                break
            requests.append(self._queue.popleft())
        return requests


def _answer(requests: list[Waiting], results: list[Arrays | Exception]) -> None:
    for request, result in zip(requests, results, strict=True):
        if request.done.done():  # its client has gone
            continue
        if isinstance(result, Exception):
            request.done.set_exception(result)
        else:
            request.done.set_result(result)


def _has_rows(request: Waiting) -> bool:
    """Whether all inputs have the same number of rows: else the run will say what is wrong, for this request alone."""
    return len({array.shape[:1] or None for array in request.inputs.values()} - {None}) == 1


def _run(session: packager.Session, requests: list[Waiting]) -> list[Arrays | Exception]:
    """Run requests together; if that fails, each by itself, so that one bad request does not fail the others."""
    try:
        if len(requests) == 1:
            return [session.run(requests[0].inputs)]
        names = requests[0].inputs
        outputs = session.run({name: np.concatenate([r.inputs[name] for r in requests]) for name in names})
    except packager.PackagerError as error:
        return [error] if len(requests) == 1 else [_run(session, [request])[0] for request in requests]
    ends = np.cumsum([request.rows for request in requests])[:-1]
    parts = {name: np.split(array, ends) for name, array in outputs.items()}
    return [{name: parts[name][index] for name in outputs} for index in range(len(requests))]


def _bound(bundle: packager.Bundle, batch: str) -> int:
    """Return the largest number of rows of a run. Raises ValueError if the dim does not count rows."""
    tensors = (*bundle.inputs, *bundle.outputs)
    if any(info.shape[:1] != (batch,) for info in tensors):
        raise ValueError(f"{batch!r} is not the first axis of every input and output of {bundle.path.name}")
    return bundle.inputs[0].max_shape[0]
