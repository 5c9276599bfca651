"""Reads the inputs of commands, and writes their results, whole or not at all."""

from __future__ import annotations

import json
import shlex
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from packager.bundle.staging import replacing
from packager.errors import UsageError

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Have ``write`` fill a file beside ``path`` and rename it, so that it is never half there. Raises UsageError."""
    try:
        with replacing(path) as temporary, temporary.open("wb") as stream:
            write(stream)
    except OSError as error:
        hint = "give another place"
        if not path.parent.is_dir():
            hint = f"make the folder first: mkdir -p {shlex.quote(str(path.parent))}"
        raise UsageError(f"cannot write {path}: {error.strerror}", hint=hint) from None


def write_json(path: Path, value: Any) -> None:
    """Write a JSON value, indented. Raises UsageError."""
    write_whole(path, lambda stream: stream.write((json.dumps(value, indent=2) + "\n").encode()))


def print_json(value: Any) -> None:
    """Print a JSON value, indented."""
    json.dump(value, sys.stdout, indent=2)
    print()


def read_inputs(single: list[str], archive: Path | None) -> dict[str, Any]:
    """Return the arrays of an .npz archive and of ``NAME=FILE.npy`` items, by name. Raises UsageError."""
    tensors: dict[str, Any] = {}
    if archive:
        content = _load_numpy(archive)
        if not hasattr(content, "files"):
            raise UsageError(f"--inputs {archive}: a single array, not an .npz file", hint="use --input NAME=FILE.npy")
        try:
            tensors |= {name: content[name] for name in content.files}
        except (OSError, ValueError, EOFError) as error:
            raise UsageError(f"cannot read {archive}: {error}") from None
    for item in single:
        name, _, file = item.partition("=")
        if not name or not file:
            raise UsageError(f"--input {item}: expected NAME=FILE.npy")
        if name in tensors:
            raise UsageError(f"the input {name!r} is given twice")
        tensors[name] = _load_numpy(Path(file))
        if hasattr(tensors[name], "files"):
            raise UsageError(f"--input {item}: an .npz file with several arrays", hint="use --inputs FILE.npz")
    return tensors


def _load_numpy(path: Path) -> Any:
    import numpy as np

    try:
        return np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        hint = "write it with numpy.save or numpy.savez"
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UsageError(f"cannot read {path}: {reason}", hint=hint) from None
