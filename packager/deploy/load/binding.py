"""Binds a call's tensors, given by name or in order, to a bundle's inputs or outputs as arrays of DLTensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from ctypes import POINTER, pointer
from typing import Any

from packager.bundle.suggestions import suggestion
from packager.deploy.load import tensors
from packager.deploy.load.abi import ARGUMENT, DLTensor
from packager.deploy.load.library import TensorInfo

Tensors = Mapping[str, Any] | Sequence[Any]


def borrow_all(
    values: list[Any], infos: tuple[TensorInfo, ...], gpu: tensors.Gpu | None, *, writable: bool
) -> list[tensors.Borrowed]:
    """Borrow tensors as inputs, or as outputs (``writable``); see ``tensors.borrow``."""
    return [
        tensors.borrow(value, info.name, info.dtype, writable=writable, gpu=gpu)
        for value, info in zip(values, infos, strict=True)
    ]


def pointers(borrowed: Sequence[tensors.Borrowed]) -> Any:
    """Return the ``DLTensor*`` array for the C ABI."""
    kind = POINTER(DLTensor) * max(len(borrowed), 1)
    return kind(*(pointer(item.tensor) for item in borrowed))


def ordered(given: Tensors, infos: tuple[TensorInfo, ...], kind: str) -> list[Any]:
    """Return tensors, given by name or in order, in the bundle's order. Raises RunError."""
    names = [info.name for info in infos]
    expected = f"the {kind}s are {', '.join(names) or 'none'}"
    if isinstance(given, Mapping):
        for name in given:
            if name not in names:
                near = suggestion(str(name), names)
                raise tensors.refuse(ARGUMENT, f"there is no {kind} {name!r}{near}", expected)
        for name in names:
            if name not in given:
                raise tensors.refuse(ARGUMENT, f"{kind} {name!r} is missing", expected)
        return [given[name] for name in names]
    if not isinstance(given, (list, tuple)):
        raise tensors.refuse(ARGUMENT, f"{kind}s must be a mapping by name, a list or a tuple", expected)
    if len(given) != len(names):
        raise tensors.refuse(ARGUMENT, f"{len(given)} {kind}s given, {len(names)} needed", expected)
    return list(given)
