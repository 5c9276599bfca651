"""Owns a dlopened bundle: its function table, and its lifetime."""

from __future__ import annotations

import _ctypes
import ctypes
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from ctypes import POINTER, byref, c_void_p
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from packager.bundle.manifest import ABI_VERSION, ENTRY_SYMBOL, Manifest
from packager.deploy.load.abi import (
    HINTS,
    LOG_WARNING,
    BundleTable,
    ConstantInfoStruct,
    Log,
    SessionOptions,
    TensorInfoStruct,
    dtype_name,
)
from packager.errors import BundleError, PackagerWarning, RunError, UsageError, valid_names

MAX_LISTED = 8  # names in a message


@dataclass(frozen=True)
class TensorInfo:
    """An input or output; dynamic extents are expressions, with their bounds."""

    name: str
    dtype: str
    shape: tuple[int | str, ...]
    min_shape: tuple[int, ...]
    max_shape: tuple[int, ...]

    @property
    def is_static(self) -> bool:
        """Whether all extents are integers."""
        return all(isinstance(extent, int) for extent in self.shape)


@dataclass(frozen=True)
class EntryInfo:
    """One of a bundle's models, which share constants, states and sessions."""

    name: str
    inputs: tuple[TensorInfo, ...]
    outputs: tuple[TensorInfo, ...]


@dataclass(frozen=True)
class EntryTable(EntryInfo):
    """An entry with its function table."""

    table: BundleTable


@dataclass(frozen=True)
class ConstantInfo:
    """A constant of the model that a session can swap."""

    name: str
    dtype: str
    shape: tuple[int, ...]


class Library:
    """Owns the dlopen handle. Unloads once it is closed or dropped, *and* its last session is destroyed.

    Sessions are counted because the garbage collector finalizes cycles in any order: code must not be unloaded before
    its sessions are destroyed.
    """

    def __init__(self, path: Path, manifest: Manifest, manifest_text: bytes, library_path: bytes | None = None) -> None:
        self.path = path
        self.library_path = library_path
        self.manifest = manifest
        self.on_cuda = on_cuda(manifest)
        self.closed = True
        self._lock = threading.RLock()  # a finalizer may run inside a locked region of the same thread
        self._sessions = 0
        try:
            self._library = ctypes.CDLL(str(path))
        except OSError as error:
            raise BundleError(
                f"{path}: the dynamic linker refuses the bundle: {error}",
                hint="`packager verify` says what this machine lacks",
            ) from None
        self.closed = False
        self.table = self._entry(manifest)
        self.with_extents = {entry.name for entry in manifest.every_entry() if entry.extents}
        self.entries = {entry.name: entry for entry in map(_entry_table, self._tables())}
        seeds = [{node.seed for node in entry.model.random if node.seed} for entry in manifest.every_entry()]
        self._seeds = dict(zip(self.entries, map(frozenset, seeds), strict=False))
        knows_states = self.table.struct_size > BundleTable.session_reset.offset  # older tables are shorter
        self.states = _infos(self.table.states, self.table.num_states) if knows_states else ()
        self._compare(manifest, manifest_text)

    def _entry(self, manifest: Manifest) -> BundleTable:
        symbol = next(iter(manifest.requirements.exports), ENTRY_SYMBOL)
        try:
            entry = self._library[symbol]
        except AttributeError:
            raise BundleError(f"{self.path}: there is no entrypoint {symbol}") from None
        entry.argtypes, entry.restype = (), POINTER(BundleTable)
        pointer = entry()
        if not pointer:
            raise BundleError(f"{self.path}: the entrypoint returned nothing")
        table: BundleTable = pointer.contents
        if table.abi_version != ABI_VERSION:
            raise BundleError(
                f"{self.path}: the bundle has ABI version {table.abi_version}; this packager reads {ABI_VERSION}",
                hint="use the packager that built the bundle, or a newer one",
            )
        if table.struct_size < BundleTable.session_stream.offset:
            raise BundleError(f"{self.path}: the table of the bundle is too short for ABI version {ABI_VERSION}")
        return table

    def _tables(self) -> list[BundleTable]:
        """Return the tables of all entries; a table too short to list entries is the only one."""
        table = self.table
        if table.struct_size <= BundleTable.entries.offset or table.num_entries <= 1:
            return [table]
        return [BundleTable.from_address(table.entries[index] or 0) for index in range(table.num_entries)]

    def seeds(self, entry: str) -> frozenset[str]:
        """Return the inputs of an entry that are seeds of random numbers."""
        return self._seeds.get(entry, frozenset())

    def entry(self, name: str | None) -> EntryTable:
        """Return an entry by name; None means the first. Raises UsageError for an unknown name."""
        if name is None:
            return next(iter(self.entries.values()))
        if name not in self.entries:
            raise UsageError(f"{self.path}: no entry {name!r}", hint=valid_names(name, self.entries, "entries"))
        return self.entries[name]

    def _compare(self, manifest: Manifest, manifest_text: bytes) -> None:
        """Compare the loaded code's own description with the manifest: buffer sizes depend on it."""
        text = ctypes.string_at(self.table.manifest, self.table.manifest_size).rstrip(b" ")
        declared, actual = [], []
        for entry in manifest.every_entry():
            declared += [(item.name, item.dtype, len(item.shape)) for item in (*entry.inputs, *entry.outputs)]
        for table in self.entries.values():
            actual += [(item.name, item.dtype, len(item.shape)) for item in (*table.inputs, *table.outputs)]
        names = len(self.entries) == 1 or list(self.entries) == [entry.name for entry in manifest.entries]
        arena = self.table.arena_bytes == manifest.arena_bytes
        declared += [(item.name, item.dtype, len(item.shape)) for item in manifest.states]
        actual += [(item.name, item.dtype, len(item.shape)) for item in self.states]
        if text != manifest_text or not arena or not names or declared != actual:
            raise BundleError(
                f"{self.path}: the manifest does not describe the code that was loaded",
                hint="was the file replaced while it was in use? Write a new file and rename it over the old one",
            )

    @cached_property
    def constants(self) -> tuple[ConstantInfo, ...]:
        """The constants that can be swapped, read on first use. Raises UsageError after ``close``."""
        self.ensure_open()
        return tuple(_constant_info(self.table.constants[index]) for index in range(self.table.num_constants))

    @cached_property
    def fixed_constants(self) -> Mapping[str, str]:
        """The model's other constants by name, with the reason why each cannot be swapped."""
        swappable = {info.name for info in self.constants}
        reasons: dict[str, str] = {}
        for constant in self.manifest.constants:
            for name in constant.sources:
                if name not in swappable and (len(constant.sources) > 1 or name != constant.name):
                    reasons.setdefault(
                        name, f"{constant.name} is computed from {_listed(constant.sources)} at build time"
                    )
        return reasons

    def check_level(self, wanted: str | None) -> bytes | None:
        """Return the name of a CPU level for the C ABI. Raises UsageError if the bundle has no code for it."""
        if wanted is None:
            return None
        names = [level.name for level in self.manifest.requirements.cpu_levels]
        if wanted not in names:
            hint = valid_names(wanted, names, "levels") if names else "the bundle has no CPU levels"
            raise UsageError(f"cpu_level={wanted!r}: {self.path} has no code for it", hint=hint)
        return wanted.encode()

    def create_session(self, options: SessionOptions) -> c_void_p:
        """Create a session and return its handle; what its log warns of is a PackagerWarning.

        Raises RunError, or UsageError after ``close``.
        """
        handle = c_void_p()
        said: list[str] = []

        def log(_: int | None, level: int, message: bytes) -> None:
            if level == LOG_WARNING:
                said.append(message.decode(errors="replace"))

        keep = Log(log)
        options.log = ctypes.cast(keep, c_void_p)
        options.library_path = self.library_path
        with self._lock:
            self.ensure_open()
            self.check(self.table.session_create(byref(options), byref(handle)))
            self._sessions += 1
        for message in said:
            warnings.warn(message, PackagerWarning, stacklevel=4)  # of the caller of Bundle.session
        return handle

    def destroy_session(self, handle: c_void_p) -> None:
        """Destroy a session, and unload if it was the last of a closed library. Raises RunError if it is running."""
        with self._lock:
            self.check(self.table.session_destroy(handle), handle)
            self._sessions -= 1
            self._unload_if_unused()

    def set_threads(self, threads: int) -> None:
        """Set the size of the bundle's thread pool. Raises RunError, or UsageError after ``close``."""
        with self._lock:
            self.ensure_open()
            self.check(self.table.set_threads(threads))

    def ensure_open(self) -> None:
        """Raise UsageError after ``close``."""
        if self.closed:
            raise UsageError(f"the bundle {self.path} is closed", hint="load it again")

    def check(self, status: int, session: c_void_p | None = None) -> None:
        """Raise RunError with the message of the session, or of this thread, unless the status is 0."""
        if status == 0:
            return
        table = self.table
        name = (table.status_name(status) or b"unknown status").decode(errors="replace")
        message = (table.session_error(session) if session else table.thread_error()) or b""
        text = message.decode(errors="replace") or f"the bundle returned {name}"
        raise RunError(text, status=status, name=name, hint=HINTS.get(status))

    def close(self) -> None:
        """Refuse new sessions, and unload once no session is left."""
        with self._lock:
            if not self.closed:
                self.closed = True
                self._unload_if_unused()

    def _unload_if_unused(self) -> None:
        if self.closed and self._sessions == 0:
            _ctypes.dlclose(self._library._handle)

    def __del__(self) -> None:
        if not sys.is_finalizing():  # at exit the operating system unloads it
            self.close()


def on_cuda(manifest: Manifest) -> bool:
    """Whether a bundle runs on a GPU."""
    return manifest.requirements.cuda is not None


def _entry_table(table: BundleTable) -> EntryTable:
    inputs, outputs = _infos(table.inputs, table.num_inputs), _infos(table.outputs, table.num_outputs)
    return EntryTable((table.name or b"").decode(), inputs, outputs, table)


def _infos(structs: Any, count: int) -> tuple[TensorInfo, ...]:
    return tuple(_info(structs[index]) for index in range(count))


def _info(struct: TensorInfoStruct) -> TensorInfo:
    extents = struct.shape[: struct.ndim]
    dims = struct.dims[: struct.ndim] if struct.dims else [None] * struct.ndim
    return TensorInfo(
        name=struct.name.decode(),
        dtype=dtype_name(struct.dtype),
        shape=tuple(dim.decode() if dim else extent for dim, extent in zip(dims, extents, strict=True)),
        min_shape=tuple(struct.min_shape[: struct.ndim]),
        max_shape=tuple(struct.max_shape[: struct.ndim]),
    )


def _constant_info(struct: ConstantInfoStruct) -> ConstantInfo:
    return ConstantInfo(struct.name.decode(), dtype_name(struct.dtype), tuple(struct.shape[: struct.ndim]))


def _listed(names: Sequence[str]) -> str:
    *first, last = names if len(names) <= MAX_LISTED else (*names[: MAX_LISTED - 1], "others")
    return f"{', '.join(first)} and {last}" if first else last
