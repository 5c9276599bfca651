"""TVM's descriptions of tensor core instructions, loaded in seconds instead of half a minute."""

from __future__ import annotations

import functools
import inspect
import sys
from types import FrameType


def _stack(_context: int = 1) -> list[inspect.FrameInfo]:
    """Return the frames of the callers, as ``inspect.stack`` does, but for the text of their source lines."""
    frame: FrameType | None = sys._getframe(1)
    found = []
    while frame is not None:
        code = frame.f_code
        found.append(inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None))
        frame = frame.f_back
    return found


@functools.cache
def load_tensor_intrinsics() -> None:
    """Import the descriptions, once.

    TVM parses some hundred functions and asks for the stack of callers each time, where looking up source lines takes
    nearly all the time; nothing uses the lines.
    """
    original = inspect.stack
    inspect.stack = _stack  # type: ignore[assignment]
    try:
        import tvm.s_tir.tensor_intrin.cuda  # noqa: F401
    finally:
        inspect.stack = original
