"""Excludes threads from a session that another thread uses."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from packager.deploy.load.abi import Status, refuse


@contextmanager
def exclusively(lock: threading.Lock, message: str) -> Iterator[None]:
    """Hold ``lock``; raise RunError with ``message`` if another thread holds it."""
    if not lock.acquire(blocking=False):
        raise refuse(Status.BUSY, message)
    try:
        yield
    finally:
        lock.release()
