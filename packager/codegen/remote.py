"""Other machines that compile for a build."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol


class Remote(Protocol):
    """Calls functions on other machines, which have packager too. Used by several threads."""

    @property
    def at_once(self) -> int:
        """The calls that have a core each."""

    def call(self, function: Callable[..., Any], *arguments: Any, megabytes: float) -> Any:
        """Return what a function of packager's returns there, with so much memory; None if no machine could.

        Raises the PackagerError that it raises.
        """

    def stop(self) -> None:
        """Cancel all calls: the build is interrupted."""
