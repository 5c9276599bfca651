"""Hides torch from TVM, which imports it if it is installed; that takes longer than importing TVM.

``tvm_ffi`` does so to get around a clash of symbols on Windows, ``tvm.relax`` to offer conversions; both work without
it. Only the command line does so: a program that uses packager may want both.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Finder(MetaPathFinder):
    """Hides torch while TVM is being imported."""

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] == "torch" and any(map(_is_being_imported, ("tvm_ffi", "tvm"))):
            raise ModuleNotFoundError("torch is kept out of this process", name=fullname)
        return None


def _is_being_imported(name: str) -> bool:
    spec = getattr(sys.modules.get(name), "__spec__", None)
    return bool(getattr(spec, "_initializing", False))


_FINDER = _Finder()


def install() -> None:
    """Hide torch from TVM."""
    sys.meta_path.insert(0, _FINDER)


def remove() -> None:
    """Let TVM import torch, for models that are torch programs. Does nothing if it is not hidden."""
    if _FINDER in sys.meta_path:
        sys.meta_path.remove(_FINDER)
