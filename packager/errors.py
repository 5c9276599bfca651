"""Defines every error that packager raises, with its exit code and hint.

The command line prints ``error: <message>``, the cause if there is one, a blank line and ``hint: <what to do>``
to stderr and exits with ``exit_code``. Nothing outside this module defines an exit code.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any


class PackagerError(Exception):
    """Base of all errors that are not bugs of packager itself (a bug is any other exception: exit code 70)."""

    exit_code = 70

    def __init__(self, message: str, *, hint: str | None = None, detail: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.detail = detail

    def __reduce__(self) -> tuple[Any, ...]:
        """Let processes hand errors on: what ``__init__`` takes differs, and by default gets the message alone."""
        return _restored, (type(self), self.args, self.__dict__)

    def render(self) -> str:
        """Return the text for a terminal: message, detail, hint."""
        text = f"error: {self.message}"
        if self.detail:
            text += "\n" + "\n".join(f"  {line}" for line in self.detail.rstrip().splitlines())
        if self.hint:
            text += f"\n\nhint: {self.hint}"
        return text


def _restored(kind: type[PackagerError], args: tuple[Any, ...], state: dict[str, Any]) -> PackagerError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(state)
    return error


class PackagerWarning(UserWarning):
    """What a user should know though it is no error, such as a session that does without a library."""


class UsageError(PackagerError):
    """A wrong argument, option, Target or input file name."""

    exit_code = 2


class UnboundedDimsError(UsageError):
    """Symbolic dims have no bounds; ``dims`` maps each to where it occurs."""

    def __init__(self, dims: Mapping[str, str]) -> None:
        self.dims = dict(dims)
        first = next(iter(dims))
        super().__init__(
            f"{len(dims)} symbolic dim{'s have' if len(dims) > 1 else ' has'} no bounds",
            detail="\n".join(f"{name}: {where}" for name, where in dims.items()),
            hint=f"give each a size or bounds, for example --dim {first}=1 or --dim {first}=1:32",
        )


class ModelError(PackagerError):
    """The model cannot be read, or uses something that packager cannot compile."""

    exit_code = 3


class UnsupportedOperatorsError(ModelError):
    """The model uses operators that cannot be compiled; lists each operator once with the nodes that use it."""

    def __init__(self, operators: Mapping[str, Sequence[str]], hint: str | None = None) -> None:
        self.operators = {name: tuple(nodes) for name, nodes in operators.items()}
        lines = []
        for name, nodes in sorted(self.operators.items()):
            lines.append(f"{name}: {listed(nodes, 5)}")
        plural = "operator is" if len(lines) == 1 else "operators are"
        super().__init__(
            f"{len(lines)} {plural} not supported",
            detail="\n".join(lines),
            hint=hint
            or "replace them in the model, or export it with another opset"
            + ("; --op-library takes implementations of your own" if any("::" in name for name in operators) else ""),
        )


class ToolchainError(PackagerError):
    """A compiler, assembler or linker is missing or failed; keeps its argv and stderr."""

    exit_code = 4

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        argv: Sequence[str] = (),
        stderr: str = "",
        workdir: Path | None = None,
    ) -> None:
        self.argv = tuple(argv)
        self.stderr = stderr
        self.workdir = workdir
        lines = []
        if argv:
            lines.append("command: " + " ".join(argv))
        lines += stderr.splitlines()[:40]
        if workdir:
            lines.append(f"work folder: {workdir}")
        super().__init__(message, hint=hint, detail="\n".join(lines) or None)


class BackendError(PackagerError):
    """A backend failed to compile its partitions, or its output violates the contract."""

    exit_code = 5


class BundleError(PackagerError):
    """A file is not a packager bundle, is damaged, or is of a format that this version does not read."""

    exit_code = 6


class RunError(PackagerError):
    """A loaded bundle refused a call; ``status`` is the negative code of the C ABI, ``name`` its name."""

    exit_code = 2

    def __init__(self, message: str, *, status: int, name: str, hint: str | None = None) -> None:
        super().__init__(message, hint=hint)
        self.status = status
        self.name = name


def listed(names: Iterable[str], limit: int = 8) -> str:
    """Return up to ``limit`` names for a message, and how many more there are."""
    every = list(names)
    shown = ", ".join(every[:limit])
    return f"{shown} and {len(every) - limit} more" if len(every) > limit else shown or "none"


def last_line(error: BaseException) -> str:
    """Return the last line of a foreign error's message, where TVM and torch put the cause."""
    lines = str(error).strip().splitlines()
    return lines[-1].strip() if lines else type(error).__name__


EXIT_CODES = {
    0: "success",
    1: "verify found something",
    2: "usage: wrong argument, option, Target or tensor",
    3: "the model cannot be read or uses something that is not supported",
    4: "a compiler or linker is missing or failed",
    5: "a backend failed",
    6: "not a bundle, damaged, or of a newer format",
    70: "a bug in packager",
    130: "interrupted",
}


def valid_names(name: object, valid: Iterable[object], what: str) -> str:
    """Return the hint ``did you mean 'x'? valid kinds: w, x``; ``what`` is the plural noun, ``kinds``."""
    names = [str(item) for item in valid]
    close = difflib.get_close_matches(str(name)[:100], names, n=1)
    listed = ", ".join(names) or "none"
    return (f"did you mean {close[0]!r}? " if close else "") + f"valid {what}: {listed}"


def suggestion(name: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the closest known name, or an empty string."""
    near = difflib.get_close_matches(name[:100], list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
