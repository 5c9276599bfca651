"""Binds the arguments of a run to the C ABI: tensors, given by name or in order, and CUDA streams."""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from ctypes import POINTER, c_int64, c_void_p, pointer
from typing import Any, NamedTuple

from packager.deploy.load import tensors
from packager.deploy.load.abi import DLTensor, Status, refuse
from packager.deploy.load.library import EntryTable, TensorInfo
from packager.errors import suggestion

Tensors = Mapping[str, Any] | Sequence[Any]
_LEGACY = 1  # CU_STREAM_LEGACY, also DLPack's number; NULL means the session's own stream
_PROTOCOL = 0  # version of __cuda_stream__


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
                raise refuse(Status.ARGUMENT, f"there is no {kind} {name!r}{near}", expected)
        for name in names:
            if name not in given:
                raise refuse(Status.ARGUMENT, f"{kind} {name!r} is missing", expected)
        return [given[name] for name in names]
    if not isinstance(given, (list, tuple)):
        raise refuse(Status.ARGUMENT, f"{kind}s must be a mapping by name, a list or a tuple", expected)
    if len(given) != len(names):
        raise refuse(Status.ARGUMENT, f"{len(given)} {kind}s given, {len(names)} needed", expected)
    return list(given)


def with_seeds(given: Tensors, infos: tuple[TensorInfo, ...], seeds: frozenset[str]) -> Tensors:
    """Return the inputs with a random number in place of each seed of random numbers that is left out."""
    if isinstance(given, Mapping):
        missing = [name for name in seeds if name not in given]
        return {**given, **{name: _seed() for name in missing}} if missing else given
    places = [index for index, info in enumerate(infos) if info.name in seeds]
    if isinstance(given, (list, tuple)) and places and len(given) == len(infos) - len(places):
        rest = iter(given)
        return [_seed() if index in places else next(rest) for index in range(len(infos))]
    return given


def _seed() -> Any:
    import numpy as np

    return np.asarray(secrets.randbits(63), np.int64)


def stream_handle(stream: Any) -> int:
    """Return the handle of a stream: an integer, a stream of torch or CuPy, or an object with ``__cuda_stream__``.

    The legacy default stream (handle 0) is returned as its alias 1; the per-thread default stream is 2. Raises
    RunError.
    """
    handle = stream
    if hasattr(stream, "__cuda_stream__"):  # (version, handle)
        version, handle = stream.__cuda_stream__()
        if version != _PROTOCOL:
            raise refuse(Status.ARGUMENT, f"stream: __cuda_stream__ of version {version}, expected {_PROTOCOL}")
    elif hasattr(stream, "cuda_stream"):  # torch.cuda.Stream
        handle = stream.cuda_stream
    elif hasattr(stream, "ptr"):  # cupy.cuda.Stream
        handle = stream.ptr
    if not isinstance(handle, int) or isinstance(handle, bool) or not 0 <= handle < 1 << 64:
        shown = handle if isinstance(handle, int) else type(handle).__name__
        hint = "give its handle, a torch.cuda.Stream, a cupy.cuda.Stream, or an object with __cuda_stream__"
        raise refuse(Status.ARGUMENT, f"stream is {shown}, which is not a CUDA stream", hint)
    return handle or _LEGACY


def output_shapes(
    model: EntryTable, session: c_void_p, inputs: Any, count: int, check: Callable[[int, c_void_p], None]
) -> list[tuple[int, ...]]:
    """Return the shapes of a model's outputs for ``count`` inputs; ``check`` raises for a status."""
    shapes = []
    for index, info in enumerate(model.outputs):
        shape = (c_int64 * max(len(info.shape), 1))(*info.max_shape)
        if not info.is_static:
            check(model.table.session_output_shape(session, inputs, count, index, shape), session)
        shapes.append(tuple(shape[: len(info.shape)]))
    return shapes


class Call(NamedTuple):
    """The arguments of one run, the owners of their memory, and the outputs by name."""

    arguments: tuple[Any, ...]
    keepers: tuple[Any, ...]
    results: dict[str, Any]

    def shaped(self, model: EntryTable) -> dict[str, Any]:
        """Return the outputs with the extents that the run has computed, as views of the given ones."""
        found = dict(self.results)
        for info, target in zip(model.outputs, self.keepers[1], strict=True):
            shape = tuple(target.tensor.shape[: len(info.shape)])
            if shape != tuple(found[info.name].shape):
                found[info.name] = found[info.name].reshape(-1)[: math.prod(shape)].reshape(shape)
        return found

    def with_room(self, model: EntryTable, again: Callable[[], None]) -> Callable[[], None]:
        """Return a function that gives the outputs the shapes again that they have now, and then runs ``again``."""
        targets = [target.tensor for target in self.keepers[1]]
        rooms = [tuple(t.shape[: len(info.shape)]) for t, info in zip(targets, model.outputs, strict=True)]

        def again_with_room() -> None:
            for tensor, room in zip(targets, rooms, strict=True):
                for axis, extent in enumerate(room):
                    tensor.shape[axis] = extent
            again()

        return again_with_room
