"""The backends by Target kind: packager's own, and those that other distributions register.

A distribution registers a backend by an entry point of the group ``packager.backends``, named as the kind, whose value
is the backend or a callable without parameters that returns it. A module is imported when its kind is asked for.
"""

from __future__ import annotations

import functools
import importlib
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from packager.errors import BackendError, PackagerError, UsageError, valid_names

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from packager.backends.base import Backend
    from packager.ir.primitives import KnownLibrary

GROUP = "packager.backends"

BUILT_IN = {
    "llvm": "packager.backends.llvm.backend:BACKEND",
    "cuda": "packager.backends.cuda.backend:BACKEND",
    "cutlass": "packager.backends.cutlass.backend:BACKEND",
    "cublas": "packager.backends.cublas.backend:BACKEND",
    "cudnn": "packager.backends.cudnn.backend:BACKEND",
    "tensorrt": "packager.backends.tensorrt.backend:BACKEND",
    "ccompiler": "packager.backends.ccompiler.backend:BACKEND",
    "external": "packager.backends.external.backend:BACKEND",
}


@dataclass(frozen=True)
class Registered:
    """A backend that is installed, or why it cannot be had. ``origin`` is ``packager``, or a distribution, version."""

    kind: str
    origin: str
    backend: Backend | None
    problem: PackagerError | None


def find_backend(kind: str) -> Backend:
    """Return the backend of a kind.

    Raises UsageError for a kind that is not known, that two distributions claim, or whose backend is written for
    another version of the interface; BackendError if its distribution is broken.
    """
    claims = _third_party().get(kind, ())
    if kind not in BUILT_IN and not claims:
        raise UsageError(f"unknown Target kind {kind!r}", hint=valid_names(kind, known_kinds(), "kinds"))
    if len(claims) + (kind in BUILT_IN) > 1:
        raise _collision(kind)
    return _load_third_party(claims[0]) if claims else _load_built_in(kind)


def known_kinds() -> list[str]:
    """Return all kinds that a distribution claims, sorted. Imports no backend."""
    return sorted({*BUILT_IN, *_third_party()})


def all_backends() -> list[Registered]:
    """Return every backend that is installed, packager's own first; what is wrong with one is its ``problem``."""
    found = []
    for kind, origin in [
        *((kind, "packager") for kind in BUILT_IN),
        *third_parties(),
    ]:
        try:
            found.append(Registered(kind, origin, find_backend(kind), None))
        except PackagerError as problem:
            found.append(Registered(kind, origin, None, problem))
    return found


def known_libraries() -> list[KnownLibrary]:
    """Return the libraries that code of installed backends may open."""
    from packager.backends.base import LibraryKnower

    backends = [registered.backend for registered in all_backends()]
    return [
        library for backend in backends if isinstance(backend, LibraryKnower) for library in backend.known_libraries
    ]


def own_backends() -> list[Backend]:
    """Return packager's own backends. Where nobody has asked for a third party's, its code is not imported."""
    return [_load_built_in(kind) for kind in BUILT_IN]


def third_parties() -> list[tuple[str, str]]:
    """Return (kind, distribution and version) of all backends of third parties. Imports none."""
    return [(kind, _origin(point)) for kind, claims in sorted(_third_party().items()) for point in claims]


def distribution(kind: str) -> str | None:
    """Return ``name==version`` of the distribution that a third party's backend is from; None for packager's own."""
    claims = _third_party().get(kind, ())
    return None if kind in BUILT_IN or not claims else "{}=={}".format(*_name_and_version(claims[0]))


def origin(kind: str) -> str:
    """Return ``packager``, or the name and version of the distribution that a third party's backend is from."""
    claims = _third_party().get(kind, ())
    return "packager" if kind in BUILT_IN or not claims else _origin(claims[0])


@contextmanager
def blamed(kind: str) -> Iterator[None]:
    """Turn any exception that is not packager's own, raised by a third party's backend, into a BackendError.

    One of packager's own backends is not excused: its exceptions are bugs of packager.
    """
    try:
        yield
    except PackagerError:
        raise
    except Exception as error:
        claims = _third_party().get(kind, ())
        if kind in BUILT_IN or not claims:
            raise
        raise _broken(claims[0], "it failed", error) from error


@functools.cache
def _third_party() -> dict[str, tuple[EntryPoint, ...]]:
    """Return all entry points by kind. What is installed does not change while a process runs."""
    from importlib.metadata import entry_points

    found: dict[str, tuple[EntryPoint, ...]] = {}
    for point in sorted(entry_points(group=GROUP), key=_origin):
        found[point.name] = (*found.get(point.name, ()), point)
    return found


def _name_and_version(point: EntryPoint) -> tuple[str, str]:
    source = point.dist
    return (source.name or "unnamed", source.version or "unknown") if source else ("unnamed", "unknown")


def _origin(point: EntryPoint) -> str:
    return " ".join(_name_and_version(point))


def _collision(kind: str) -> UsageError:
    owners = (["packager"] if kind in BUILT_IN else []) + [_origin(point) for point in _third_party()[kind]]
    surplus = [_name_and_version(point)[0] for point in _third_party()[kind]]
    return UsageError(
        f"{len(owners)} distributions have a backend of kind {kind!r}: {', '.join(owners)}",
        hint=f"uninstall {' or '.join(surplus)}",
    )


@functools.cache
def _load_built_in(kind: str) -> Backend:
    module, _, name = BUILT_IN[kind].partition(":")
    backend: Backend = getattr(importlib.import_module(module), name)
    return backend


@functools.cache
def _load_third_party(point: EntryPoint) -> Backend:
    from packager.backends.contract import violation

    try:
        found: Any = point.load()
        # A class has what its instances have, so it is asked for first.
        if isinstance(found, type) or (callable(found) and not hasattr(found, "api_version")):
            found = found()
    except Exception as error:
        raise _broken(point, "it cannot be imported", error) from error
    _check_api_version(point, getattr(found, "api_version", None))
    if problem := violation(found, point.name):
        raise _broken(point, problem, None)
    backend: Backend = found
    return backend


def _check_api_version(point: EntryPoint, theirs: object) -> None:
    from packager.backends.base import API_VERSION

    if theirs == API_VERSION:
        return
    name, _ = _name_and_version(point)
    newer = isinstance(theirs, int) and theirs > API_VERSION
    raise UsageError(
        f"the backend {point.name!r} of {_origin(point)} is written for version {theirs} of the backend interface,"
        f" and this packager has version {API_VERSION}",
        hint=f"upgrade packager, or install an older {name}" if newer else f"install a newer {name}, or uninstall it",
    )


def _place(point: EntryPoint, cause: Exception) -> str:
    """Return the line of the backend's own code that an exception passed through last: its author needs it."""
    top = point.value.partition(":")[0].partition(".")[0]
    frames = list(traceback.walk_tb(cause.__traceback__))
    own = [(frame, line) for frame, line in frames if str(frame.f_globals.get("__name__")).partition(".")[0] == top]
    if not own:
        return ""
    frame, line = own[-1]
    return f"\nat {frame.f_code.co_filename}:{line}, in {frame.f_code.co_name}"


def _broken(point: EntryPoint, problem: str, cause: Exception | None) -> BackendError:
    return BackendError(
        f"the backend {point.name!r} of {_origin(point)} cannot be used: {problem}",
        detail=f"{type(cause).__name__}: {cause}{_place(point, cause)}" if cause else None,
        hint=f"upgrade or uninstall {_name_and_version(point)[0]}; its authors can repair it",
    )
