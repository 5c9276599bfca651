"""Exclusive use of a session by one thread."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from ctypes import c_void_p

from packager.deploy.load import tensors
from packager.deploy.load.abi import BUSY, HINTS
from packager.errors import RunError

# Locks an open session; yields its handle, and the GPU whose tensors it accepts.
Exclusive = Callable[[], AbstractContextManager[tuple[c_void_p, tensors.Gpu | None]]]


@contextmanager
def exclusively(lock: threading.Lock, message: str) -> Iterator[None]:
    """Hold ``lock``; raise RunError with ``message`` if another thread holds it."""
    if not lock.acquire(blocking=False):
        raise RunError(message, status=BUSY, name="PACKAGER_ERROR_BUSY", hint=HINTS[BUSY])
    try:
        yield
    finally:
        lock.release()
