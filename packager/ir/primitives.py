"""What goes between packager and its backends: partitions in; primitive functions, libraries and constants out.

Every value is frozen. TVM's types appear only as annotations, so this module imports without TVM.
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
    """FLOPs and bytes of one call, at the maxima of the dims. Each operand counts once, however often it is loaded."""

    flops: int
    bytes_read: int
    bytes_written: int


@dataclass(frozen=True)
class Parameter:
    """What a pointer parameter of a primitive function is.

    ``argument``: argument ``index`` of the call; results are the arguments after the inputs. ``workspace``: workspace
    ``index`` of its group, in the arena. ``packed``: packing ``index`` of its group. ``constant``: the backend's own
    constant ``name``.
    """

    kind: Literal["argument", "workspace", "packed", "constant"]
    index: int = 0
    written: bool = False
    name: str = ""


@dataclass(frozen=True)
class Candidates:
    """Ways to compute a primitive function that differ in nothing but speed; each run takes one of them.

    ``names`` says which code each of them is, ``chosen`` which is taken unless measurements say otherwise. ``problem``
    is what they compute: all that their time depends on, but the GPU or CPU. Measurements are kept by it, and hold
    while ``revision`` is the same: what the code depends on beside its name.
    """

    problem: str
    names: tuple[str, ...]
    revision: str
    chosen: int = 0


@dataclass(frozen=True)
class PrimitiveFunction:
    """C function ``int32_t symbol(pointers..., int64_t scalars..., [int64_t begin, int64_t end])``; 0 is success.

    On the GPU its first parameter is a ``pk_cuda_t *`` (``packager_cuda.h``), and it takes no range.

    ``extent`` is the extent of its parallel loop, iterations [begin, end) of which one call runs, possibly at the same
    time as others; None when the function takes no range. ``scalars`` and ``extent`` are integers or ``tirx``
    expressions over the shape variables of the function that it implements. With ``candidates`` an ``int64_t`` follows
    the scalars: the number of the candidate that computes this call.
    """

    symbol: str
    parameters: tuple[Parameter, ...]
    scalars: tuple[Any, ...] = ()
    extent: Any | None = None
    candidates: Candidates | None = None


@dataclass(frozen=True)
class Kernel(PrimitiveFunction):
    """A primitive function that a code generator compiles from ``primfunc``, a scheduled ``tirx.PrimFunc``."""

    primfunc: Any = None


@dataclass(frozen=True)
class Packing:
    """A constant argument in a layout of the backend's own: ``pack`` is called at build time, once per content.

    The packed constant is named ``<name of the constant>:<layout>`` and keeps the link to it. Where ``pack`` returns a
    view (numpy's reshape, transpose), a session can still swap the constant for new data. Several arguments become one
    constant if ``argument`` names them all: ``pack`` gets as many arrays, and the first one's name is the constant's.
    """

    argument: int | tuple[int, ...]
    layout: str
    pack: Callable[..., Array]

    @property
    def arguments(self) -> tuple[int, ...]:
        """The arguments that are packed, in the order in which ``pack`` gets them."""
        return (self.argument,) if isinstance(self.argument, int) else self.argument


@dataclass(frozen=True)
class FunctionGroup:
    """The primitive functions that together compute one PrimFunc or partition, called in this order.

    ``parameters`` are the shapes of its arguments, results last: a tuple of extents for a tensor, a variable for a
    scalar. ``workspaces`` are sizes in bytes. Both, like the functions' scalars, are over the same shape variables.
    Of a partition's group packager fills in ``parameters``, ``composite`` and ``cost``; a kernel's cost follows from
    its PrimFunc.
    """

    functions: tuple[PrimitiveFunction, ...]
    parameters: tuple[Any, ...] = ()
    workspaces: tuple[Any, ...] = ()
    packings: tuple[Packing, ...] = ()
    composite: str | None = None
    cost: Cost | None = None


@dataclass(frozen=True)
class Composite:
    """A match of one of a backend's patterns: the pattern's name, its operators in order (``nn.conv2d``), its problem.

    The problem is what the pattern or search has found there, as a value of the backend's own: None, or a frozen
    dataclass of plain facts, Relax variables, extents, and tuples and dataclasses of these. Variables and extents, of
    the model when it was found, are those of the partition's function here: what the match reads and binds, and what
    the shapes of that have. Facts compare with ``==``.
    """

    name: str
    ops: tuple[str, ...]
    problem: Any = None


@dataclass(frozen=True)
class CallSite:
    """One call of a partition: source nodes, and the names of the constants among its arguments by their index."""

    nodes: tuple[str, ...]
    constants: Mapping[int, str]


@dataclass(frozen=True)
class Partition:
    """A part of the model that one backend compiles; equal parts are one partition with several sites.

    Equal are parts of the same structure whose composites have the same names and the same facts in their problems.

    ``function`` is a Relax function whose parameters are the arguments, in order, and whose body is one dataflow
    block; it returns a tensor, or a tuple of them. Arguments ``constant_arguments`` are constants at every site.
    """

    name: str
    composites: tuple[Composite, ...]
    function: Any
    constant_arguments: frozenset[int]
    sites: tuple[CallSite, ...]
    cost: Cost


@dataclass(frozen=True)
class CudaModule:
    """A ``pk_cuda_module_t`` (``packager_cuda.h``) that a library defines as ``symbol``, with so many kernels.

    The library may use ``<symbol>_first``, the number of its first kernel in the bundle.
    """

    symbol: str
    kernels: int


@dataclass(frozen=True)
class StaticLibrary:
    """Objects and archives that together define ``symbols``, which is all that the bundle sees of them.

    ``files`` are linked in order, objects whole and of archives the members that are needed; the private names of one
    library cannot clash with those of another. ``dispatched_features`` are CPU features that its code uses only after
    it has asked the CPU for them: the bundle does not need them. A bundle runs nothing when it is loaded or unloaded:
    ``unneeded_constructors`` are functions that the files would have run then, and work without.

    ``level`` is the CPU of the base Target (``Target.cpus``) that the code is for; empty: the least of them. What a
    library for the least provides may be provided once more for each of the others. These forms have the same
    parameters and compute the same; a session uses those of the last CPU on the list whose features its machine has.
    """

    name: str
    files: tuple[Path, ...]
    symbols: tuple[str, ...]
    dispatched_features: tuple[str, ...] = ()
    unneeded_constructors: tuple[str, ...] = ()
    cuda_modules: tuple[CudaModule, ...] = ()
    level: str = ""


@dataclass(frozen=True)
class SystemLibrary:
    """A library of the system that a backend's code needs: ``link_name`` as in ``-lpthread``, and its soname."""

    link_name: str
    soname: str


@dataclass(frozen=True)
class BackendOutput:
    """What one backend hands back for everything that it was given.

    ``groups`` says how each compiled partition is called; a partition without a group stands in ``given_back``, with
    the reason. ``constants`` is const_name_to_ndarray: what its functions' ``constant`` parameters refer to.
    ``warnings`` are for whoever builds.
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
