"""The interface values of backends: partitions in; primitive functions, libraries and constants out.

All are frozen. TVM's types appear only in annotations, so this module imports without TVM.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from packager.bundle.manifest import License

if TYPE_CHECKING:
    from packager.bundle.arrays import Array


@dataclass(frozen=True)
class Cost:
    """FLOPs and bytes of one call, with the dims at their maxima. Each operand counts once, however often it is
    loaded."""

    flops: int
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True)
class Parameter:
    """The role of a pointer parameter of a primitive function.

    ``argument``: argument ``index`` of the call; results follow the inputs. ``workspace``: workspace ``index`` of its
    group, in the arena. ``packed``: packing ``index`` of its group. ``constant``: the backend's constant ``name``.
    """

    kind: Literal["argument", "workspace", "packed", "constant"]
    index: int = 0
    written: bool = False
    name: str = ""


@dataclass(frozen=True)
class Candidates:
    """Alternative implementations of a primitive function that differ only in speed; each run uses one.

    ``names`` identify the implementations, ``chosen`` is the index of the default. ``problem`` describes the
    computation, with everything that the time depends on except the device; it is the key of measurements. They are
    valid for one ``revision`` of the code.
    """

    problem: str
    names: tuple[str, ...]
    revision: str
    chosen: int = 0


@dataclass(frozen=True)
class PrimitiveFunction:
    """C function ``int32_t symbol(pointers..., int64_t scalars..., [int64_t begin, int64_t end])``; 0 is success.

    On the GPU the first parameter is a ``pk_cuda_t *`` (``packager_cuda.h``), and there is no range.

    ``extent`` is the extent of its parallel loop, of which one call runs iterations [begin, end), possibly concurrently
    with others; None if the function takes no range. ``scalars`` and ``extent`` are integers or ``tirx`` expressions
    over the shape variables of the function that it implements. With ``candidates`` an ``int64_t`` follows the scalars:
    the index of the candidate to run.
    """

    symbol: str
    parameters: tuple[Parameter, ...]
    scalars: tuple[Any, ...] = ()
    extent: Any | None = None
    candidates: Candidates | None = None


@dataclass(frozen=True)
class Kernel(PrimitiveFunction):
    """A primitive function to be compiled by a code generator from ``primfunc``, a scheduled ``tirx.PrimFunc``.

    With ``members`` instead it is one launch of all of them, on a GPU: each has a run of its blocks, and its parameters
    follow those of the one before. None accesses what another writes.
    """

    primfunc: Any = None
    members: tuple[Kernel, ...] = ()


@dataclass(frozen=True)
class Packing:
    """A constant argument repacked to a backend's layout: ``pack`` is called at build time, once per content.

    The packed constant is named ``<name of the constant>:<layout>``. If ``pack`` returns a view (numpy's reshape,
    transpose), sessions can still swap the constant. If ``argument`` lists several, ``pack`` gets all arrays and packs
    them into one constant, named after the first.
    """

    argument: int | tuple[int, ...]
    layout: str
    pack: Callable[..., Array]

    @property
    def arguments(self) -> tuple[int, ...]:
        """The indices of the packed arguments, in the order of ``pack``'s parameters."""
        return (self.argument,) if isinstance(self.argument, int) else self.argument


@dataclass(frozen=True)
class FunctionGroup:
    """The primitive functions that implement one PrimFunc or partition, in call order.

    ``parameters`` are the shapes of its arguments, results last: a tuple of extents for a tensor, a variable for a
    scalar. ``workspaces`` are sizes in bytes. Both, like the functions' scalars, use the same shape variables. For
    partitions packager fills in ``parameters``, ``composite`` and ``cost``; a kernel's cost is computed from its
    PrimFunc. ``libraries`` are the ``symbol``s of the loaded libraries that its functions call. ``pending``: something
    of its code is still to be added to the bundle (``packager finalize``), so nothing uses it yet.
    """

    functions: tuple[PrimitiveFunction, ...]
    parameters: tuple[Any, ...] = ()
    workspaces: tuple[Any, ...] = ()
    packings: tuple[Packing, ...] = ()
    composite: str | None = None
    cost: Cost | None = None
    libraries: tuple[str, ...] = ()
    pending: bool = False


@dataclass(frozen=True)
class Composite:
    """A match of one of a backend's patterns: the pattern's name, its operators in order (``nn.conv2d``), its problem.

    The problem describes the match, as a value of the backend's own: None, or a frozen dataclass of plain facts, Relax
    variables, extents, and tuples and dataclasses of these. Variables and extents refer to the partition's function:
    those that the match reads or binds, and those in the shapes of these. Facts compare with ``==``.
    """

    name: str
    ops: tuple[str, ...]
    problem: Any = None


@dataclass(frozen=True)
class CallSite:
    """One call of a partition: source nodes, and argument index -> name of its constant arguments."""

    nodes: tuple[str, ...]
    constants: Mapping[int, str]


@dataclass(frozen=True)
class Partition:
    """A subgraph that one backend compiles; equal subgraphs are one partition with several call sites.

    Subgraphs are equal if they have the same structure, composite names and facts in their problems.

    ``function`` is a Relax function whose parameters are the arguments, in order, and whose body is one dataflow block;
    it returns a tensor, or a tuple of them. Arguments ``constant_arguments`` are constants at every site.

    ``bounds`` are the least and the greatest value, at any site, of each of its shape variables, in the order in which
    these first appear in the shapes of its parameters.
    """

    name: str
    composites: tuple[Composite, ...]
    function: Any
    constant_arguments: frozenset[int]
    sites: tuple[CallSite, ...]
    cost: Cost
    bounds: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class CudaModule:
    """A ``pk_cuda_module_t`` (``packager_cuda.h``) with ``kernels`` kernels, which a library defines as ``symbol``.

    The library may use ``<symbol>_first``, the bundle-wide index of its first kernel.
    """

    symbol: str
    kernels: int


@dataclass(frozen=True)
class LoadedLibrary:
    """A shared library that a session opens on the target machine, for a ``pk_library_t`` (``packager_library.h``).

    A static library defines that as ``symbol``; its array gets ``functions``, in order. ``sonames`` are tried in order;
    their major versions are the ABI. The version that the library states itself must be ``least`` (``"12.3"``) or
    newer. ``chosen_with`` is the exact version that decisions in the code were made with, such as recorded algorithms;
    a session that finds another one says so in its log. One that is ``embedded`` is in the code, as the ``image`` of
    the ``pk_library_t``; sessions need no file.
    """

    symbol: str
    sonames: tuple[str, ...]
    functions: tuple[str, ...]
    least: str
    chosen_with: str | None = None
    embedded: bool = False


@dataclass(frozen=True)
class KnownLibrary:
    """A library that a backend's code may open, as far as it is known before anything is built.

    ``version_function`` returns its version as major * 10000 + minor * 100 + patch, a ``size_t``. ``opens`` are the
    sonames of what the library itself opens, of its own folder; not every version has all.
    """

    sonames: tuple[str, ...]
    version_function: str
    opens: tuple[str, ...] = ()


@dataclass(frozen=True)
class StaticLibrary:
    """Objects and archives that together define ``symbols``; all other names become local.

    ``files`` are linked in order: whole objects, and needed archive members. ``dispatched_features`` are CPU features
    that the code uses only behind its own run-time check, so the bundle does not require them. Bundles run no
    constructors: ``unneeded_constructors`` are those that the code works without.

    ``level`` is the CPU of the base Target (``Target.cpus``) that the code is compiled for; empty means the lowest.
    Libraries for higher levels may provide clones of the lowest level's functions, with the same parameters and
    results; a session uses the clones of the highest level that its CPU supports. Code that calls
    ``loaded_libraries`` is compiled for the lowest alone.
    """

    name: str
    files: tuple[Path, ...]
    symbols: tuple[str, ...]
    dispatched_features: tuple[str, ...] = ()
    unneeded_constructors: tuple[str, ...] = ()
    cuda_modules: tuple[CudaModule, ...] = ()
    level: str = ""
    loaded_libraries: tuple[LoadedLibrary, ...] = ()


@dataclass(frozen=True)
class SystemLibrary:
    """A system library that a backend's code requires: ``link_name`` as in ``-lpthread``, and its soname."""

    link_name: str
    soname: str


@dataclass(frozen=True)
class BackendOutput:
    """One backend's result for all its partitions.

    ``groups`` implement the compiled partitions; a partition without a group is listed in ``given_back``, with the
    reason; ``left_out`` has, for some of these, the indices of the composites that cannot be compiled: the others are
    offered again, in partitions around them. ``constants`` is const_name_to_ndarray for its functions' ``constant``
    parameters. ``warnings`` are shown to the user.
    """

    kind: str
    static_libraries: tuple[StaticLibrary, ...] = ()
    groups: Mapping[str, FunctionGroup] = field(default_factory=dict)
    given_back: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Array] = field(default_factory=dict)
    requires: tuple[SystemLibrary, ...] = ()
    licenses: tuple[License, ...] = ()
    toolchain: Mapping[str, str] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    left_out: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
