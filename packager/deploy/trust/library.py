"""Imports the package that makes and checks signatures, and says how to install it."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from types import ModuleType

from packager.errors import ToolchainError


@contextlib.contextmanager
def model_signing() -> Iterator[ModuleType]:
    """Yield the package; what it prints goes to stderr. Raises ToolchainError if it is missing."""
    with contextlib.redirect_stdout(sys.stderr):
        try:
            import model_signing
            import model_signing.signing
            import model_signing.verifying
        except ImportError as error:
            raise ToolchainError(
                f"signatures require the package model-signing: {error}", hint="pip install 'packager[sign]'"
            ) from None
        yield model_signing
