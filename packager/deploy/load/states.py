"""The states of a session: tensors kept between runs, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from ctypes import byref, c_void_p
from typing import Any

from numpy.typing import NDArray

from packager.deploy.load import tensors
from packager.deploy.load.abi import Status, refuse
from packager.deploy.load.library import Library
from packager.errors import suggestion

# Locks an open session; yields its handle, and the GPU whose tensors it accepts.
Exclusive = Callable[[], AbstractContextManager[tuple[c_void_p, tensors.Gpu | None]]]


class States(Mapping[str, NDArray[Any]]):
    """The states by name. ``states["past_k"]`` returns a new array; ``states["past_k"] = value`` copies ``value``.

    Values are tensors as for ``Session.run``, of the state's type and shape. Raises RunError for other names and
    values, and if the session is running in another thread; UsageError after ``close``.
    """

    def __init__(self, library: Library, exclusive: Exclusive) -> None:
        self._library = library
        self._exclusive = exclusive
        self._numbers = {info.name: number for number, info in enumerate(library.states)}

    def __getitem__(self, name: str) -> NDArray[Any]:
        number = self._number(name)
        info = self._library.states[number]
        array = tensors.empty(name, info.dtype, info.max_shape)
        borrowed = tensors.borrow(array, name, info.dtype, writable=True)
        with self._exclusive() as (handle, _):
            status = self._library.table.session_get_state(handle, number, byref(borrowed.tensor))
            self._library.check(status, handle)
        return array

    def __setitem__(self, name: str, value: Any) -> None:
        number = self._number(name)
        info = self._library.states[number]
        with self._exclusive() as (handle, gpu):
            borrowed = tensors.borrow(value, name, info.dtype, writable=False, gpu=gpu)
            status = self._library.table.session_set_state(handle, number, byref(borrowed.tensor))
            self._library.check(status, handle)

    def __iter__(self) -> Iterator[str]:
        return iter(self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def __contains__(self, name: object) -> bool:
        return name in self._numbers

    def _number(self, name: str) -> int:
        if name not in self._numbers:
            near = suggestion(str(name), self._numbers)
            expected = f"the states are {', '.join(self._numbers) or 'none'}"
            raise refuse(Status.ARGUMENT, f"there is no state {name!r}{near}", expected)
        return self._numbers[name]
