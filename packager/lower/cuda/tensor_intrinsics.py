"""Import TVM's tensor core intrinsics in seconds instead of half a minute."""

from __future__ import annotations

import functools
import inspect
import sys
from types import FrameType


def _stack(_context: int = 1) -> list[inspect.FrameInfo]:
    """Return the caller frames as ``inspect.stack`` does, without source lines."""
    frame: FrameType | None = sys._getframe(1)
    found = []
    while frame is not None:
        code = frame.f_code
        found.append(inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None))
        frame = frame.f_back
    return found


@functools.cache
def load_tensor_intrinsics() -> None:
    """Import the intrinsics, once.

    TVM parses some hundred functions and inspects the call stack each time; looking up the source lines, which nothing
    uses, takes nearly all of the time.
    """
    original = inspect.stack
    inspect.stack = _stack  # type: ignore[assignment]
    try:
        import tvm.s_tir.tensor_intrin.cuda  # noqa: F401
    finally:
        inspect.stack = original
