"""``--constants``: replace constants of the model, by name, with data from a ``.safetensors`` or ``.npz`` file.

Frontends apply them right after reading the model, before constants are folded.
"""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from packager.bundle import safetensors
from packager.bundle.arrays import Array
from packager.bundle.dtypes import typed
from packager.errors import BundleError, UsageError, suggestion

SUFFIXES = (".safetensors", ".npz")


@dataclass(frozen=True)
class Overrides:
    """Arrays by the name of the constant that each replaces; ``path`` is for messages."""

    path: Path = Path()
    arrays: Mapping[str, Array] = field(default_factory=dict)

    def check_names(self, known: Iterable[str]) -> None:
        """Raise UsageError if an array names no constant of the model."""
        names = set(known)
        for name in self.arrays:
            if name not in names:
                raise UsageError(
                    f"--constants {self.path}: the model has no constant {name!r}{suggestion(name, names)}",
                    hint="use the names of the constants in the model file",
                )

    def find(self, name: str, dtype: str, shape: tuple[int, ...]) -> Array | None:
        """Return the contiguous array for constant ``name``, or None. Raises UsageError for a wrong type or shape."""
        array = self.arrays.get(name)
        if array is None:
            return None
        array = typed(array, dtype)
        if (array.dtype.name, array.shape) != (dtype, shape):
            given, wanted = _described(array.dtype.name, array.shape), _described(dtype, shape)
            raise UsageError(
                f"--constants {self.path}: {name!r} is {given}, in the model it is {wanted}",
                hint="use the shape and type of the model; arrays are neither cast nor reshaped",
            )
        return np.array(array, dtype=array.dtype.newbyteorder("="), order="C")


NO_OVERRIDES = Overrides()


def read_overrides(path: Path) -> Overrides:
    """Read a file of arrays by name. Raises UsageError."""
    if path.suffix not in SUFFIXES:
        raise UsageError(
            f"--constants {path}: the suffix {path.suffix!r} is neither .safetensors nor .npz",
            hint="write it with safetensors.numpy.save_file or numpy.savez",
        )
    try:
        return Overrides(path, _read_npz(path) if path.suffix == ".npz" else _read_safetensors(path))
    except BundleError as error:
        raise UsageError(f"--constants {path}: {error.message}", hint="is the file complete?") from None
    except OSError as error:
        raise UsageError(f"--constants {path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UsageError(f"--constants {path}: cannot be read: {error}", hint="is the file complete?") from None


def _read_npz(path: Path) -> dict[str, Array]:
    with path.open("rb") as stream:
        start = stream.read(len(np.lib.format.MAGIC_PREFIX))
    if start == np.lib.format.MAGIC_PREFIX:
        raise UsageError(
            f"--constants {path}: holds one array without a name", hint="write it with numpy.savez(file, name=array)"
        )
    if start[:2] != b"PK":  # numpy would report a pickle
        raise ValueError("it is not an .npz file")
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


def _read_safetensors(path: Path) -> dict[str, Array]:
    if path.stat().st_size == 0:
        raise ValueError("it is empty")
    return safetensors.decode(np.memmap(path, np.uint8, "r").data)


def _described(dtype: str, shape: tuple[int, ...]) -> str:
    return f"{dtype}[{', '.join(map(str, shape))}]"
