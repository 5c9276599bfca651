"""One static library of a backend while it is checked and linked, and the errors that name it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packager.codegen.objects import ObjectFile, read_objects
from packager.codegen.sysroot import SystemSymbols
from packager.codegen.toolchain import Toolchain
from packager.errors import BackendError, BundleError
from packager.ir.primitives import StaticLibrary

# What the runtime of a CUDA bundle has for the code of backends (packager_cuda.h).
_CUDA_SERVICES = (
    "pk_cuda_copy",
    "pk_cuda_device",
    "pk_cuda_launch",
    "pk_cuda_launch_filled",
    "pk_tensor_map_encode",
    "pk_tensor_map_encode_im2col",
)
_SHOWN = 3
# Files that code came from; of archives, the members.
Linked = Mapping[Path, "frozenset[str] | None"]


@dataclass(frozen=True)
class Job:
    """One library of one backend; files of its own in ``workdir`` start with ``stem``."""

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
        return self.error(what, "define it, or take it out of the library's symbols")

    @property
    def data(self) -> tuple[str, ...]:
        """What the library provides that is no function."""
        return tuple(module.symbol for module in self.library.cuda_modules)

    @property
    def granted(self) -> frozenset[str]:
        """What it may leave undefined because the entrypoint or the runtime defines it."""
        return frozenset([*_CUDA_SERVICES, *(f"{name}_first" for name in self.data)] if self.data else [])

    def objects(self, linked: Linked) -> Iterator[ObjectFile]:
        """Yield objects of the library: of each file, the named members, or all of it."""
        for path, members in linked.items():
            try:
                yield from read_objects(path, members)
            except BundleError as error:
                raise self.error(f"{path.name}: {error.message}", "hand back ELF objects or archives of them") from None


def blame(job: Job, linked: Linked, guilty: Callable[[ObjectFile], bool]) -> str:
    """Return the names of the objects at fault."""
    return names([str(object_file) for object_file in job.objects(linked) if guilty(object_file)])


def names(names: Sequence[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(names[:_SHOWN]) + more


def lines(lines: Sequence[str]) -> str:
    return "\n".join([*lines[:_SHOWN], *([f"... {len(lines) - _SHOWN} more"] if len(lines) > _SHOWN else [])])
