"""Handles SIGINT and SIGTERM: the first stops the work, later ones do not disturb the removal of temporary files."""

from __future__ import annotations

import signal
from types import FrameType

_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_arrived: list[int] = []


def install() -> None:
    """Let the first signal raise KeyboardInterrupt, and ignore later ones."""
    for number in _SIGNALS:
        if signal.getsignal(number) is not signal.SIG_IGN:  # as under nohup
            signal.signal(number, _interrupt)


def arrived() -> bool:
    """Whether a signal has arrived: TVM turns a KeyboardInterrupt in a callback into an error of its own."""
    return bool(_arrived)


def check() -> None:
    """Raise KeyboardInterrupt again if a signal has arrived and a library swallowed the first."""
    if _arrived:
        raise KeyboardInterrupt


def _interrupt(number: int, _frame: FrameType | None) -> None:
    for other in _SIGNALS:
        signal.signal(other, signal.SIG_IGN)
    _arrived.append(number)
    raise KeyboardInterrupt
