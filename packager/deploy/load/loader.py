"""Loads a bundle into this process and runs it."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from packager.bundle.manifest import Manifest
from packager.bundle.reader import inspect, read_manifest
from packager.deploy.load.binding import Tensors
from packager.deploy.load.library import ConstantInfo, EntryInfo, Library, TensorInfo, on_cuda
from packager.deploy.load.session import Session
from packager.errors import UsageError

__all__ = ["Bundle", "Session", "load"]


def load(path: str | Path, threads: int = 0, verify: bool = False, device: int = 0) -> Bundle:
    """Load a bundle for this process.

    Its manifest is checked before the dynamic linker sees the file; with ``verify`` so is every other byte, which
    takes longer the larger it is. ``threads`` counts the calling thread; 0 keeps what the bundle uses (1 at first).
    ``device`` is the GPU that sessions of a CUDA bundle run on if they name none, as the driver counts them. The driver
    is not touched before the first session.

    Raises BundleError if the file is not a bundle, is damaged, newer than this packager, or cannot be linked here;
    UsageError if it cannot be opened or is a static archive, or for a device that a CPU bundle does not have.
    """
    path = Path(path).absolute()  # dlopen searches the system's folders for a name without a slash
    if threads < 0:
        raise UsageError(f"threads must not be negative, is {threads}")
    if device < 0:
        raise UsageError(f"device must not be negative, is {device}")
    if verify:
        inspect(path)
    manifest, text = read_manifest(path)
    if manifest.form == "static":
        raise UsageError(f"{path} is a static archive", hint="link it into a program, or build a shared library")
    if device and not on_cuda(manifest):
        raise UsageError(
            f"device {device}: {path} has no CUDA code", hint="omit the device, or build for a cuda Target"
        )
    bundle = Bundle(Library(path, manifest, text), manifest, device)
    if threads:
        bundle.set_threads(threads)
    return bundle


class Bundle:
    """A loaded bundle; use ``load``. Safe to use from several threads: each gets a session of its own in ``run``."""

    def __init__(self, library: Library, manifest: Manifest, device: int = 0) -> None:
        self.path = library.path
        self.manifest = manifest
        first = library.entry(None)
        self.inputs: tuple[TensorInfo, ...] = first.inputs
        self.outputs: tuple[TensorInfo, ...] = first.outputs
        self.states: tuple[TensorInfo, ...] = library.states
        self._library = library
        self._device = device
        self._sessions: weakref.WeakSet[Session] = weakref.WeakSet()
        self._local = threading.local()

    @property
    def entries(self) -> Mapping[str, EntryInfo]:
        """The models of the bundle by name; ``inputs`` and ``outputs`` of the bundle are those of the first."""
        return dict(self._library.entries)

    @property
    def constants(self) -> tuple[ConstantInfo, ...]:
        """The model's own constants; Session.set_constants swaps them. Raises UsageError after ``close``."""
        return self._library.constants

    @property
    def fixed_constants(self) -> Mapping[str, str]:
        """The model's other constants, each with why no session can swap it. Raises UsageError after ``close``."""
        return self._library.fixed_constants

    @property
    def on_cuda(self) -> bool:
        """Whether the bundle runs on a GPU."""
        return self._library.on_cuda

    def session(
        self,
        threads: int = 0,
        *,
        device: int | None = None,
        graph: str = "auto",
        launch_blocking: bool = False,
        arena: Any = None,
        selection: Mapping[str, str] | None = None,
        cpu_level: str | None = None,
    ) -> Session:
        """Create a session: its own arena, for one thread at a time. ``threads`` limits its parallel loops.

        ``selection`` names the candidate to use of primitive functions, by symbol (``manifest.selection``); results do
        not depend on it. ``cpu_level`` names the level whose code to use (``manifest.requirements.cpu_levels``) in
        place of the best that this machine's CPU has.

        The others are of CUDA bundles. ``device`` is the index of the GPU. ``graph`` says whether runs are captured as
        a CUDA graph and replayed: "on", "off", or "auto", which captures when a shape comes a second time.
        ``launch_blocking`` waits for every primitive function, so that a fault tells which one. ``arena`` is memory on
        the device for intermediate tensors, any contiguous DLPack tensor of at least ``manifest.arena_bytes`` bytes; it
        belongs to the session until that is closed.

        Raises RunError if the machine cannot run the bundle or lacks memory; UsageError for options that the bundle
        does not have, and after ``close``.
        """
        device = self._device if device is None else device
        session = Session(self._library, threads, device, graph, launch_blocking, arena, selection, cpu_level)
        self._sessions.add(session)
        return session

    def run(
        self, inputs: Tensors, *, outputs: Tensors | None = None, stream: Any = None, entry: str | None = None
    ) -> dict[str, Any]:
        """Run the model once, with this thread's own session, whose states it moves on; see Session.run."""
        session: Session | None = getattr(self._local, "session", None)
        if session is None or session.closed:
            session = self._local.session = self.session()
        return session.run(inputs, outputs=outputs, stream=stream, entry=entry)

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
