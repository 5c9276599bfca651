"""Backends, by Target kind."""

from __future__ import annotations

from packager.backends.base import Backend
from packager.backends.llvm import LlvmBackend

BACKENDS: dict[str, Backend] = {"llvm": LlvmBackend()}
