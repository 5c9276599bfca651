"""A static library while it is checked and linked, and its errors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from packager.codegen.objects import ObjectFile, read_objects
from packager.codegen.sysroot import SystemSymbols
from packager.codegen.toolchain import Toolchain
from packager.errors import BackendError, BundleError
from packager.ir.primitives import StaticLibrary

# The runtime's functions for backends in a CUDA bundle (packager_cuda.h).
_CUDA_SERVICES = (
    "pk_cuda_copy",
    "pk_cuda_device",
    "pk_cuda_constants_number",
    "pk_cuda_counters",
    "pk_cuda_do_without",
    "pk_cuda_enqueue",
    "pk_cuda_explain",
    "pk_cuda_is_swapped",
    "pk_cuda_keep",
    "pk_cuda_keep_own",
    "pk_cuda_is_preparing",
    "pk_cuda_launch",
    "pk_cuda_launch_filled",
    "pk_cuda_read_constant",
    "pk_cuda_warm_up",
    "pk_tensor_map_encode",
    "pk_tensor_map_encode_im2col",
)
# Those for all that opens libraries (packager_library.h).
_LIBRARY_SERVICES = ("pk_own_file_map", "pk_own_file_unmap")
# Linked files; of archives, the members.
Linked = Mapping[Path, "frozenset[str] | None"]


@dataclass(frozen=True)
class Job:
    """One library of one backend; its files in ``workdir`` start with ``stem``."""

    kind: str
    library: StaticLibrary
    toolchain: Toolchain
    system: SystemSymbols
    workdir: Path
    stem: str
    static: bool

    def error(self, what: str, hint: str, detail: str | None = None) -> BackendError:
        return BackendError(f"{self.kind}: {what}", hint=hint, detail=detail)

    def missing(self, symbol: str) -> BackendError:
        files = ", ".join(path.name for path in self.library.files)
        lack = f"{files} does not define it" if files else "it has no files"
        what = f"{self.library.name} provides {symbol}, but {lack}"
        return self.error(what, "define it, or remove it from the library's symbols")

    @property
    def data(self) -> tuple[str, ...]:
        """The provided symbols that are not functions."""
        modules, loaded = self.library.cuda_modules, self.library.loaded_libraries
        return (*(module.symbol for module in modules), *(library.symbol for library in loaded))

    @property
    def granted(self) -> frozenset[str]:
        """The symbols that it may leave undefined: the entrypoint or the runtime defines them."""
        modules, loads = self.library.cuda_modules, self.library.loaded_libraries
        return frozenset(
            [
                *(_CUDA_SERVICES if modules or loads else ()),
                *(_LIBRARY_SERVICES if loads else ()),
                *(f"{module.symbol}_first" for module in modules),
            ]
        )

    def objects(self, linked: Linked) -> Iterator[ObjectFile]:
        """Yield the library's objects: each file, or of archives the listed members."""
        for path, members in linked.items():
            try:
                yield from read_objects(path, members)
            except BundleError as error:
                raise self.error(f"{path.name}: {error.message}", "return ELF objects or archives of them") from None
