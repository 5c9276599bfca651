"""The public API for running bundles: ``load`` and ``Bundle``."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from packager.bundle.manifest import Manifest
from packager.bundle.reader import inspect, read_manifest
from packager.deploy.load.binding import Tensors
from packager.deploy.load.folders import library_path
from packager.deploy.load.library import ConstantInfo, EntryInfo, Library, TensorInfo, on_cuda
from packager.deploy.load.session import Session
from packager.deploy.trust.check import require_trusted
from packager.deploy.trust.trust import Trust
from packager.errors import UsageError

__all__ = ["Bundle", "Session", "load"]


def load(
    path: str | Path,
    threads: int = 0,
    verify: bool = False,
    device: int = 0,
    *,
    trust: Trust | str | Path | None = None,
    signature: str | Path | None = None,
    libraries: Sequence[str | Path] | None = None,
) -> Bundle:
    """Load a bundle into this process.

    The manifest is checked before dlopen; ``verify`` also hashes the whole file, in time proportional to its size.
    ``threads`` includes the calling thread; 0 keeps the bundle's current number (initially 1). ``device`` is the
    default GPU index of sessions of a CUDA bundle, in the driver's order. The driver is first used by the first
    session. ``trust`` says whose signature the bundle must have, as for ``packager.verify``: it is checked before
    anything of the file is interpreted, and the external weights by the signed manifest.

    ``libraries`` are folders with shared libraries that the model calls (``manifest.requirements.libraries``); they are
    searched after what this process has open, and before the bundle's own folder. The default are those in which pip
    installs NVIDIA's, ``nvidia/*/lib`` and ``tensorrt*_libs`` of this interpreter. Sessions open libraries: one that is
    missing raises RunError there, or PackagerWarning if the model has slower alternatives without it.

    Raises BundleError if the file is not a bundle, is not signed by a trusted one, is damaged, is newer than this
    packager, or fails to link;
    UsageError if it cannot be opened or is a static archive, or for a ``device`` with a CPU bundle.
    """
    path = Path(path).absolute()  # dlopen searches the library path for a name without a slash
    if threads < 0:
        raise UsageError(f"threads must not be negative, is {threads}")
    if device < 0:
        raise UsageError(f"device must not be negative, is {device}")
    if trust is not None:
        require_trusted(path, trust, signature)
    if verify:
        inspect(path)
    manifest, text = read_manifest(path)
    if manifest.form == "static":
        raise UsageError(f"{path} is a static archive", hint="link it into a program, or build a shared library")
    if device and not on_cuda(manifest):
        raise UsageError(
            f"device {device}: {path} has no CUDA code", hint="omit the device, or build for a cuda Target"
        )
    folders = library_path(libraries)  # bundles of before loaded libraries refuse the option
    library = Library(path, manifest, text, folders if manifest.requirements.libraries else None)
    bundle = Bundle(library, manifest, device)
    if threads:
        bundle.set_threads(threads)
    return bundle


class Bundle:
    """A loaded bundle; use ``load``. Thread-safe: ``run`` uses one session per thread."""

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
        """The bundle's models by name; ``inputs`` and ``outputs`` are those of the first."""
        return dict(self._library.entries)

    @property
    def constants(self) -> tuple[ConstantInfo, ...]:
        """The constants that Session.set_constants can swap. Raises UsageError after ``close``."""
        return self._library.constants

    @property
    def fixed_constants(self) -> Mapping[str, str]:
        """The model's other constants, with the reason why each cannot be swapped. Raises UsageError after
        ``close``."""
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
        """Create a session: it owns an arena, and runs in one thread at a time. ``threads`` limits its parallel loops.

        ``selection`` names the candidate kernel of primitive functions, by symbol (``manifest.selection``); results do
        not depend on it. ``cpu_level`` (``manifest.requirements.cpu_levels``) overrides the highest level that the CPU
        supports.

        CUDA bundles only: ``device`` is the index of the GPU. ``graph`` controls CUDA graph capture and replay: "on",
        "off", or "auto", which captures on the second run with a shape. ``launch_blocking`` synchronizes after every
        primitive function, so that a fault is attributed to one. ``arena`` is device memory for intermediate tensors:
        any contiguous DLPack tensor of at least ``manifest.arena_bytes`` bytes, owned by the session until it is
        closed.

        Raises RunError if the machine cannot run the bundle or lacks memory; UsageError for options that the bundle
        does not support, and after ``close``.
        """
        device = self._device if device is None else device
        session = Session(self._library, threads, device, graph, launch_blocking, arena, selection, cpu_level)
        self._sessions.add(session)
        return session

    def run(
        self, inputs: Tensors, *, outputs: Tensors | None = None, stream: Any = None, entry: str | None = None
    ) -> dict[str, Any]:
        """Run the model once in this thread's session, updating its states; see Session.run."""
        session: Session | None = getattr(self._local, "session", None)
        if session is None or session.closed:
            session = self._local.session = self.session()
        return session.run(inputs, outputs=outputs, stream=stream, entry=entry)

    def __call__(self, *inputs: Any) -> dict[str, Any]:
        """Run the model once with inputs in the order of ``self.inputs``."""
        return self.run(inputs)

    def set_threads(self, threads: int) -> None:
        """Set the size of the bundle's thread pool for this process, the calling thread included."""
        self._library.set_threads(threads)

    @property
    def closed(self) -> bool:
        """Whether ``close`` was called."""
        return self._library.closed

    def close(self) -> None:
        """Destroy all sessions and unload the bundle. Raises RunError, and keeps it loaded, if one is running."""
        for session in list(self._sessions):
            session.close()
        self._library.close()

    def __enter__(self) -> Bundle:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "closed" if self.closed else "loaded"
        return f"<packager.Bundle {self.manifest.model.name!r}, {state} from {self.path}>"
