"""What a backend is: a module that says which parts of a model it takes, and compiles all of them in one call.

See ``docs/writing-a-backend.md``. A backend reads no environment, no current folder and no globals of packager, keeps
nothing between calls, and writes only into its work folder. Equal partitions, Targets and versions give equal bytes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from packager.backends.attributes import spelled
from packager.codegen.cache import Cache
from packager.codegen.costs import estimated
from packager.codegen.remote import Remote
from packager.codegen.toolchain import Toolchain
from packager.ir.preparation import Preparation
from packager.progress import Steps
from packager.resources import folder

if TYPE_CHECKING:
    from packager.custom_ops.library import OpLibrary
    from packager.graph.dataflow import Dataflow
    from packager.ir.primitives import BackendOutput, Kernel, KnownLibrary, Partition


API_VERSION = 1
"""Of this interface. A third party's backend says which one it was written for."""


def attribute(
    default: Any,
    doc: str,
    *,
    choices: Sequence[Any] | None = None,
    minimum: int | None = None,
    is_path: bool = False,
) -> Any:
    """Declare one Target attribute of an options dataclass: its default, one line of documentation, valid values.

    The field's type is ``bool``, ``int``, ``float``, ``str`` or ``tuple[str, ...]``. Of one that ``is_path`` the
    manifest has the file's name alone: folders of the build machine are nobody's business.
    """
    metadata = {
        "doc": doc,
        "choices": tuple(choices) if choices is not None else None,
        "minimum": minimum,
        "is_path": is_path,
    }
    return dataclasses.field(default=default, metadata=metadata)


@dataclass(frozen=True)
class PartitionOptions:
    """The attributes that every backend that takes partitions has; their options derive from this class."""

    min_partition_flops: int = attribute(0, "Leave partitions of fewer floating-point operations a call", minimum=0)
    max_partition_depth: int = attribute(0, "Longest chain of operators in a partition; 0: no limit", minimum=0)


@dataclass(frozen=True)
class Unavailable:
    """Why a backend cannot be used here, and what to install."""

    reason: str
    hint: str


NO_CACHE = Cache(Path(), enabled=False)


@dataclass(frozen=True)
class Context:
    """What a backend gets beside its Target.

    ``base`` is the Target that compiles what no backend takes: it says for which machine and CPUs (``machine``,
    ``cpus``). ``workdir`` is the backend's own empty folder. ``cache`` keeps what is costly to make beyond this build,
    by a key that says everything it depends on; it may keep nothing. ``remote`` are other machines, if any.
    """

    workdir: Path
    toolchain: Toolchain
    base: Target
    jobs: int
    cache: Cache = NO_CACHE
    remote: Remote | None = None

    def counted(
        self, text: str, total: int, *, at_once: int = 1, typical: float | None = None
    ) -> AbstractContextManager[Steps]:
        """Report steps of the build as ``codegen.costs.estimated`` does: ``compiling kernel 3 of 11``."""
        return estimated(text, total, self.cache, at_once=at_once, typical=typical)

    @property
    def headers(self) -> Path:
        """The folder with the headers of the runtime for backends: packager_cuda.h, packager_library.h."""
        return folder("runtime_stub") / "include"


@dataclass(frozen=True)
class Match:
    """A part of the model that a pattern has matched, before its backend takes it.

    ``calls`` are its operators (``relax.Call``) in the model's order, the last the one that the pattern is rooted at,
    and ``variables`` what they are bound to. ``annotated`` are the expressions that named sub-patterns have matched.
    ``constants`` are the variables that hold constants.
    """

    calls: tuple[Any, ...]
    annotated: Mapping[str, Any]
    constants: Set[Any]
    variables: tuple[Any, ...] = ()

    def is_constant(self, expr: Any) -> bool:
        """Whether an operand is one of the model's constants, and not computed from its inputs."""
        return expr in self.constants


@dataclass(frozen=True)
class Pattern:
    """Something that a backend can take, under the name that composites get (``acme.conv2d_bias_relu``).

    ``pattern`` is a ``tvm.relax.dpl.DFPattern`` that is rooted at a call of an operator, ``annotations`` names parts
    of it for ``check``, which sees every match and may refuse it. ``problem`` returns what a match computes, as a value
    that ``compile`` gets with the composite (see Composite). With ``taps`` a match may have values that are used
    outside too: they become further results of the partition, before the last. Where matches merge, a partition holds
    one ``anchor`` at most: an operator with a loop nest of its own, around which others are fused.
    """

    name: str
    pattern: Any
    annotations: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    check: Callable[[Match], bool] = lambda _match: True
    problem: Callable[[Match], Any] = lambda _match: None
    taps: bool = False
    anchor: bool = False


@dataclass(frozen=True)
class Found:
    """What a search takes together: the variables whose bindings become one partition, and the ``problem`` of these,
    which is handed to ``compile`` with the composite (see Composite)."""

    variables: Sequence[Any]
    problem: Any = None


@dataclass(frozen=True)
class Search:
    """Something that a backend can take, found by Python: where operators are optional, or constants say what it is.

    ``find`` is shown every call of ``operator``, by the variable it is bound to, and yields what it takes together,
    best first; one variable may be used outside. ``merged``: only in partitions whose arguments say its extents.
    """

    name: str
    operator: str
    find: Callable[[Dataflow, Any], Iterable[Found]]
    anchor: bool = False
    merged: bool = False


@runtime_checkable
class Backend(Protocol):
    """What backends of both sorts have. Nothing here may import TVM at module level: listing Targets must be quick."""

    api_version: int
    kind: str  # the Target kind
    device: str  # "cpu" or "cuda"
    options: type[Any]  # frozen dataclass of ``attribute`` fields
    summary: str  # one line

    def canonical(self, options: Any, base: Target | None) -> Any:
        """Return options with defaults filled in that depend on this machine or on ``base``. Raises UsageError."""

    def probe(self, target: Target) -> Unavailable | None:
        """Return why this backend cannot compile for ``target`` here, or None if it can. Quick, no side effects."""


@runtime_checkable
class CodeGenerator(Backend, Protocol):
    """The backend of a least specialized Target: it compiles the kernels that are made of what no one else takes."""

    def generate(self, kernels: Sequence[Kernel], target: Target, context: Context) -> BackendOutput:
        """Compile all kernels. ``groups`` of the result stays empty. Raises BackendError, UsageError."""


@runtime_checkable
class PartitionBackend(Backend, Protocol):
    """A backend that takes parts of a model; its options derive from ``PartitionOptions``.

    With ``merges`` adjacent matches become one partition, as large as it can be; without, each match is one.
    """

    merges: bool

    def patterns(self, target: Target) -> Sequence[Pattern | Search]:
        """Return what it takes; where several match, more operators win, then what stands first."""

    def compile(self, partitions: Sequence[Partition], target: Target, context: Context) -> BackendOutput:
        """Compile all partitions of a model in one call, or give some back. Raises BackendError, UsageError."""


@runtime_checkable
class OperatorSource(PartitionBackend, Protocol):
    """A backend that brings operators of its own, which the frontends then import as calls of it."""

    def op_libraries(self, target: Target) -> Sequence[OpLibrary]:
        """Return the libraries that its Target names. Raises UsageError."""


@runtime_checkable
class Preparing(PartitionBackend, Protocol):
    """A backend that wants the model in another form than that of its file."""

    def preparation(self, target: Target) -> Preparation:
        """Return what it wants done for ``target``."""


@runtime_checkable
class Foreseeing(PartitionBackend, Protocol):
    """A backend that can tell what ``compile`` would give back: ``explain`` and a dry run ask it."""

    def would_give_back(self, partitions: Sequence[Partition], target: Target) -> Mapping[str, str]:
        """Return why which partitions would be given back, by their names. Quick: it runs no compiler."""


@runtime_checkable
class LibraryUser(PartitionBackend, Protocol):
    """A backend whose code may call a library that the target machine has to have (``LoadedLibrary``).

    Of what it takes with ``needs_library``, bundles have an alternative that the other backends compute, for machines
    without the library.
    """

    needs_library: bool


@runtime_checkable
class LibraryKnower(LibraryUser, Protocol):
    """A backend that says which libraries its code may call, for ``packager machine`` and ``--copy-libraries``."""

    known_libraries: Sequence[KnownLibrary]


@runtime_checkable
class FileReader(Backend, Protocol):
    """A backend whose Target names files: what a build gives depends on their content."""

    def inputs(self, target: Target) -> Sequence[Path]:
        """Return all files that it reads for ``target``, those that these name in turn included. Raises UsageError."""


@dataclass(frozen=True)
class Target:
    """One canonical Target: its kind and its options, an instance of the backend's options class."""

    kind: str
    options: Any

    def to_json(self) -> dict[str, Any]:
        """Return the kind and every attribute, as the cache key holds them."""
        return {"kind": self.kind, **dataclasses.asdict(self.options)}

    def to_text(self, *, paths: bool = True) -> str:
        """Return the kind and the attributes that differ from their defaults, as on a command line.

        Without ``paths`` attributes that name files are left out.
        """
        words = [self.kind]
        for field in dataclasses.fields(self.options):
            value = getattr(self.options, field.name)
            if value != field.default and (paths or not field.metadata.get("is_path")):
                words.append(f"-{field.name}={','.join(value) if isinstance(value, tuple) else spelled(value)}")
        return " ".join(words)

    def to_manifest(self) -> dict[str, Any]:
        """Return the form that the manifest holds: as ``to_json``, of paths the file names alone."""
        value = self.to_json()
        for field in dataclasses.fields(self.options):
            if field.metadata.get("is_path"):
                given = value[field.name]
                names = [Path(path).name for path in ([given] if isinstance(given, str) else given)]
                value[field.name] = names[0] if isinstance(given, str) else tuple(names)
        return value

    @property
    def machine(self) -> str:
        """Of a base Target of the CPU, the machine in the kernel's words: ``x86_64`` or ``aarch64``."""
        return str(self.options.mtriple).split("-", 1)[0]

    @property
    def cpus(self) -> tuple[str, ...]:
        """Of a base Target of the CPU, the CPUs that there is code for; the bundle runs on the first, the least."""
        named: str | tuple[str, ...] = self.options.mcpu
        return (named,) if isinstance(named, str) else named
