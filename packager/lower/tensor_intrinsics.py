"""TVM's tensor core intrinsics, registered in two seconds and not in twenty-four.

Importing them parses some 250 functions. For each call the parser asks ``inspect.getmodule`` about frames, which for
code that is in no module's file (``<ast>``, ``<frozen importlib>``) looks through all modules of the process, again
and again. While the intrinsics are imported, the answer for a file is asked for once.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from types import CodeType, FrameType, ModuleType
from typing import Any


@functools.cache
def register_tensor_intrinsics() -> None:
    """Import them, once in a process."""
    slow = inspect.getmodule
    answers: dict[str, ModuleType | None] = {}

    def quick(thing: Any, filename: str | None = None) -> ModuleType | None:
        code = thing.f_code if isinstance(thing, FrameType) else thing
        if not isinstance(code, CodeType):
            return slow(thing, filename)
        if code.co_filename not in answers:
            answers[code.co_filename] = slow(thing, filename)
        return answers[code.co_filename]

    inspect.getmodule = quick
    try:
        importlib.import_module("tvm.s_tir.tensor_intrin.cuda")
    finally:
        inspect.getmodule = slow
