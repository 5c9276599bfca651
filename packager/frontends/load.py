"""Load a model with the frontend of its file format."""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from packager.errors import ModelError, PackagerError, UsageError, last_line
from packager.frontends.dims import DimRequest
from packager.ir.model import ImportedModel

if TYPE_CHECKING:
    from packager.bundle.arrays import Array
    from packager.custom_ops.library import OpLibrary
    from packager.frontends.overrides import Overrides

SUFFIXES = (".onnx", ".pt2", ".json")


def load_model(
    path: Path,
    dims: Mapping[str, DimRequest],
    name: str | None,
    op_libraries: Sequence[OpLibrary] = (),
    entry: str | None = None,
    overrides: Overrides | None = None,
    frozen: Mapping[str, Array] | None = None,
) -> ImportedModel:
    """Read a model file by its suffix. ``op_libraries`` implement ONNX operators of other domains.

    ``entry`` names the function of a Relax module to import (default ``main``). ``overrides`` replace constants of the
    model. ``frozen`` are inputs of an ONNX model that become constants.

    Raises UsageError for a missing file, an unknown suffix, a wrong ``--dim`` or overrides of the wrong type or shape;
    ModelError for a file that cannot be read; UnsupportedOperatorsError.
    """
    from packager.frontends.overrides import NO_OVERRIDES

    check_suffix(path)
    overrides = overrides or NO_OVERRIDES
    name = name or path.stem
    if entry is not None and path.suffix != ".json":
        raise UsageError(f"{path}: --entry {entry} names a function of a Relax module, but this is not one")
    if path.suffix == ".onnx":
        from packager.frontends.onnx import load as onnx_file

        with _blamed(path):
            return onnx_file.load(path, dims, name, op_libraries, overrides, frozen or {})
    if frozen:
        raise UsageError(
            f"{path}: --freeze is for inputs of ONNX models, but this is not one",
            hint="make it a constant in the export",
        )
    if op_libraries:
        raise UsageError(
            f"{path}: operator libraries implement operators of ONNX models, but this is not one",
            hint="export the model to ONNX, or leave out --op-library",
        )
    if path.suffix == ".pt2":
        from packager.frontends.torch import load as torch_export

        with _blamed(path):
            return torch_export.load(path, dims, name, overrides)
    from packager.frontends import relax as relax_json

    return relax_json.load(path, dims, name, entry or relax_json.MAIN, overrides)


_TORCH = "torch makes one of a model: torch.export.save(torch.export.export(model, (example,)), 'model.pt2')"
_TENSORFLOW = "tf2onnx writes .onnx files of TensorFlow's models"
_OTHERS = {
    **dict.fromkeys((".pt", ".pth", ".ckpt", ".bin", ".safetensors"), _TORCH),
    **dict.fromkeys((".pb", ".h5", ".keras", ".tflite"), _TENSORFLOW),
    **dict.fromkeys((".pkl", ".joblib"), "skl2onnx writes .onnx files of scikit-learn's models"),
}
"""How models in files of others get into one that is read."""


@contextmanager
def _blamed(path: Path) -> Iterator[None]:
    """Turn what an importer raises about a file that it did not expect into a ModelError."""
    try:
        yield
    except PackagerError:
        raise
    except Exception as error:
        frame = traceback.extract_tb(error.__traceback__)[-1]
        raise ModelError(
            f"{path}: cannot be imported: {type(error).__name__}: {last_line(error)}",
            detail=f"at {Path(frame.filename).name}:{frame.lineno}, in {frame.name}",
            hint="if other runtimes read this file, please report it",
        ) from error


def check_suffix(path: Path) -> None:
    """Raise UsageError unless ``path`` is a file of a known suffix."""
    if path.suffix not in SUFFIXES:
        hint = "models are .onnx, .pt2 (torch.export.save) or .json (tvm.ir.save_json of a Relax module)"
        if other := _OTHERS.get(path.suffix.lower()):
            hint += f"; {other}"
        raise UsageError(f"{path}: the suffix {path.suffix!r} is not a model format", hint=hint)
    if not path.exists():
        raise UsageError(f"{path}: no such file", hint="give the path of a model")
    if not path.is_file():
        raise UsageError(f"{path}: not a file", hint="give the path of a model")
