"""SHA-256 of values, files and folders."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any


def digest(value: Any) -> str:
    """Return the SHA-256 of a JSON-serialisable value."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def digest_of_folder(folder: Path, pattern: str) -> str:
    """Return the SHA-256 of the names and contents of all files that match ``pattern`` below a folder."""
    total = hashlib.sha256()
    for path in sorted(folder.rglob(pattern)):
        if path.is_file() and "__pycache__" not in path.parts:
            content = path.read_bytes()
            total.update(f"{path.relative_to(folder)}\0{len(content)}\0".encode())
            total.update(content)
    return total.hexdigest()
