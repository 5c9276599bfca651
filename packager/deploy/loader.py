"""Loads a bundle into this process and runs it."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from ctypes import POINTER, c_char_p, c_int64, c_void_p, pointer
from pathlib import Path
from types import TracebackType
from typing import Any

from packager.deploy import tensors
from packager.deploy.abi import ARGUMENT, BUSY, CONSTANT, HINTS, DLTensor
from packager.deploy.inspect import inspect, read_manifest
from packager.deploy.library import ConstantInfo, Library, TensorInfo
from packager.errors import RunError, UsageError
from packager.manifest import Manifest
from packager.strict_json import suggestion

Tensors = Mapping[str, Any] | Sequence[Any]


def load(path: str | Path, threads: int = 0, verify: bool = False) -> Bundle:
    """Load a bundle for this process.

    Its manifest is checked before the dynamic linker sees the file; with ``verify`` so is every other byte, which
    takes longer the larger it is. ``threads`` counts the calling thread; 0 keeps what the bundle uses (1 at first).

    Raises BundleError if the file is not a bundle, is damaged, newer than this packager, or cannot be linked here;
    UsageError if it cannot be opened or is a static archive.
    """
    path = Path(path).absolute()  # dlopen searches the system's folders for a name without a slash
    if threads < 0:
        raise UsageError(f"threads must not be negative, is {threads}")
    if verify:
        inspect(path)
    manifest, text = read_manifest(path)
    if manifest.form == "static":
        raise UsageError(f"{path} is a static archive", hint="link it into a program, or build a shared library")
    bundle = Bundle(Library(path, manifest, text), manifest)
    if threads:
        bundle.set_threads(threads)
    return bundle


class Bundle:
    """A loaded bundle; use ``load``. Safe to use from several threads: each gets a session of its own in ``run``."""

    def __init__(self, library: Library, manifest: Manifest) -> None:
        self.path = library.path
        self.manifest = manifest
        self.inputs: tuple[TensorInfo, ...] = library.inputs
        self.outputs: tuple[TensorInfo, ...] = library.outputs
        self._library = library
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._local = threading.local()

    @property
    def constants(self) -> tuple[ConstantInfo, ...]:
        """The model's own constants; Session.set_constants swaps them. Raises UsageError after ``close``."""
        return self._library.constants

    @property
    def fixed_constants(self) -> Mapping[str, str]:
        """The model's other constants, each with why no session can swap it. Raises UsageError after ``close``."""
        return self._library.fixed_constants

    def session(self, threads: int = 0) -> Session:
        """Create a session: its own arena, for one thread at a time. ``threads`` limits its parallel loops.

        Raises RunError if the machine cannot run the bundle or lacks memory; UsageError after ``close``.
        """
        session = Session(self._library, threads)
        self._sessions.add(session)
        return session

    def run(self, inputs: Tensors, *, outputs: Tensors | None = None) -> dict[str, Any]:
        """Run the model once, with this thread's own session; see Session.run."""
        session: Session | None = getattr(self._local, "session", None)
        if session is None or session.closed:
            session = self._local.session = self.session()
        return session.run(inputs, outputs=outputs)

    def __call__(self, *inputs: Any) -> dict[str, Any]:
        """Run the model once with inputs in the order of ``inputs``."""
        return self.run(inputs)

    def set_threads(self, threads: int) -> None:
        """Set the size of the bundle's thread pool for this process, the calling thread included."""
        self._library.set_threads(threads)

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._library.closed

    def close(self) -> None:
        """Destroy all sessions and unload the bundle. Raises RunError, leaving it loaded, while one is running."""
        for session in list(self._sessions):
            session.close()
        self._library.close()

    def __enter__(self) -> Bundle:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "loaded"
        return f"<packager.Bundle {self.manifest.model.name!r}, {state} from {self.path}>"


class Session:
    """What one thread needs to run a bundle; use ``Bundle.session``. Closing is explicit, by ``with``, or by gc."""

    def __init__(self, library: Library, threads: int = 0) -> None:
        self._handle = c_void_p()
        # Held while running and never waited for: a second thread gets the error that the C ABI would give, and
        # close() cannot free the session under a run that is about to enter it.
        self._running = threading.Lock()
        self._setting = threading.Lock()  # held while setting constants, which may be at the same time as running
        self._library = library
        self._handle = library.create_session(threads)

    @property
    def closed(self) -> bool:
        """Whether the session was destroyed."""
        return not self._handle

    def run(self, inputs: Tensors, *, outputs: Tensors | None = None) -> dict[str, Any]:
        """Run the model once; return its outputs by name, new numpy arrays or the objects given in ``outputs``.

        ``inputs`` are numpy arrays or host tensors with ``__dlpack__`` (torch and others; not copied), by name or
        in order; ``outputs`` likewise, all or none, are written in place. Arrays with gaps are copied, other
        element types are refused.

        Raises RunError with the status of the C ABI for tensors that do not fit; UsageError after ``close``.
        """
        with _exclusive(self._running, "the session is running in another thread"):
            self._ensure_open()
            sources = _borrow(_ordered(inputs, self._library.inputs, "input"), self._library.inputs, writable=False)
            in_pointers = _pointers(sources)
            infos = self._library.outputs
            if outputs is None:
                results = [
                    tensors.empty(info.name, info.dtype, self._output_shape(index, info, in_pointers, len(sources)))
                    for index, info in enumerate(infos)
                ]
            else:
                results = _ordered(outputs, infos, "output")
            targets = _borrow(results, infos, writable=True)
            status = self._library.table.session_run(
                self._handle, in_pointers, len(sources), _pointers(targets), len(targets), None
            )
            self._library.check(status, self._handle)
            return {info.name: value for info, value in zip(infos, results, strict=True)}

    def _output_shape(self, index: int, info: TensorInfo, inputs: Any, count: int) -> tuple[int, ...]:
        if info.is_static:
            return info.max_shape
        shape = (c_int64 * max(len(info.shape), 1))()
        status = self._library.table.session_output_shape(self._handle, inputs, count, index, shape)
        self._library.check(status, self._handle)
        return tuple(shape[: len(info.shape)])

    def set_constants(self, values: Mapping[str, Any]) -> None:
        """Swap constants of this session, by name, for new data; None brings back the bundle's own.

        ``values`` are tensors as ``run`` takes them; their data are copied. All or nothing. It may be called while the
        session runs in another thread: the next run that begins has all the new values, this one has none.

        Raises RunError with the status of the C ABI for names and values that do not fit; UsageError after ``close``.
        """
        infos = {info.name: info for info in self._library.constants}
        borrowed: list[tensors.Borrowed | None] = []
        for name, value in values.items():
            if name in self._library.fixed_constants:
                reason = self._library.fixed_constants[name]
                raise tensors.refuse(CONSTANT, f"constant {name!r} cannot be swapped: {reason}")
            if name not in infos:
                near = suggestion(str(name), infos)
                hint = "bundle.constants lists them; single numbers of the model are part of the code: build again"
                raise tensors.refuse(ARGUMENT, f"there is no constant {name!r}{near}", hint)
            whole = None if value is None else tensors.borrow(value, name, infos[name].dtype, writable=False)
            borrowed.append(whole)
        names = (c_char_p * max(len(values), 1))(*(name.encode() for name in values))
        with _exclusive(self._setting, "another thread is setting constants of the session"):
            self._ensure_open()
            pointers = (POINTER(DLTensor) * max(len(values), 1))()
            for index, item in enumerate(borrowed):
                if item is not None:
                    pointers[index] = pointer(item.tensor)
            if borrowed:  # which a bundle without the function has no name for
                table = self._library.table
                self._library.check(table.session_set_constants(self._handle, names, pointers, len(borrowed)))

    def close(self) -> None:
        """Destroy the session. Raises RunError while another thread is running it or setting constants."""
        with (
            _exclusive(self._running, "the session is running in another thread"),
            _exclusive(self._setting, "another thread is setting constants of the session"),
        ):
            if self._handle:
                self._library.destroy_session(self._handle)
                self._handle = c_void_p()

    def _ensure_open(self) -> None:
        if not self._handle:
            self._library.ensure_open()
            raise UsageError("the session is closed", hint="create another one with bundle.session()")

    def __enter__(self) -> Session:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if self._handle and not sys.is_finalizing():
            self.close()


@contextmanager
def _exclusive(lock: threading.Lock, message: str) -> Iterator[None]:
    if not lock.acquire(blocking=False):
        raise RunError(message, status=BUSY, name="PACKAGER_ERROR_BUSY", hint=HINTS[BUSY])
    try:
        yield
    finally:
        lock.release()


def _borrow(values: list[Any], infos: tuple[TensorInfo, ...], *, writable: bool) -> list[tensors.Borrowed]:
    return [
        tensors.borrow(value, info.name, info.dtype, writable=writable)
        for value, info in zip(values, infos, strict=True)
    ]


def _pointers(borrowed: Sequence[tensors.Borrowed]) -> Any:
    kind = POINTER(DLTensor) * max(len(borrowed), 1)
    return kind(*(pointer(item.tensor) for item in borrowed))


def _ordered(given: Tensors, infos: tuple[TensorInfo, ...], kind: str) -> list[Any]:
    """Return tensors, given by name or in order, in the order of the bundle. Raises RunError."""
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
