"""Writes the files that commands are asked for, whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import IO

from packager.errors import UsageError


def write_whole(path: Path, write: Callable[[IO[bytes]], object]) -> None:
    """Have ``write`` fill a file beside ``path`` and rename it, so that it is never half there. Raises UsageError."""
    temporary = None
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as stream:
            temporary = Path(stream.name)
            write(stream)
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
        temporary = None
    except OSError as error:
        raise UsageError(f"cannot write {path}: {error.strerror}") from None
    finally:
        if temporary:
            temporary.unlink(missing_ok=True)
