"""Frontends: one module per file format, each with ``load(path, dims, name) -> ImportedModel``."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

from packager.errors import UsageError
from packager.frontends.dims import DimRequest
from packager.ir import ImportedModel

SUFFIXES = (".onnx", ".pt2", ".json")


def load_model(path: Path, dims: Mapping[str, DimRequest], name: str | None) -> ImportedModel:
    """Read a model file; its suffix decides how.

    Raises UsageError for a missing file, an unknown suffix or a wrong ``--dim``; ModelError for a file that cannot
    be read, and UnsupportedOperatorsError.
    """
    check_suffix(path)
    name = name or path.stem
    if path.suffix == ".onnx":
        from packager.frontends import onnx_file

        return onnx_file.load(path, dims, name)
    if path.suffix == ".pt2":
        from packager.frontends import torch_export

        return torch_export.load(path, dims, name)
    from packager.frontends import relax_json

    return relax_json.load(path, dims, name)


def check_suffix(path: Path) -> None:
    """Raise UsageError unless ``path`` is a file of a known suffix."""
    if path.suffix not in SUFFIXES:
        raise UsageError(
            f"{path}: the suffix {path.suffix!r} is not a model format",
            hint="models are .onnx, .pt2 (torch.export.save) or .json (tvm.ir.save_json of a Relax module)",
        )
    if not path.exists():
        raise UsageError(f"{path}: no such file")
    if not path.is_file():
        raise UsageError(f"{path}: not a file")


def sha256_of_file(path: Path) -> str:
    """Return the hex SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
