"""All that a backend's author imports, beside ``packager.errors`` and, for tests, ``packager.testing``.

What moves inside packager moves without breaking a backend that keeps to this module. It imports no TVM; ``Dataflow``,
which does, is loaded when it is asked for. See ``docs/writing-a-backend.md``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from packager.backends.base import (
    API_VERSION,
    Backend,
    CodeGenerator,
    Context,
    FileReader,
    Foreseeing,
    Found,
    LibraryKnower,
    LibraryUser,
    Match,
    OperatorSource,
    PartitionBackend,
    PartitionOptions,
    Pattern,
    Preparing,
    Search,
    Target,
    Unavailable,
    attribute,
)
from packager.bundle.dtypes import DTYPES
from packager.bundle.isa.cpu import Cpu, this_cpu
from packager.bundle.manifest import License
from packager.bundle.tuning_records import Record, Records, read_records
from packager.codegen.cache import Cache
from packager.codegen.toolchain import Toolchain, run
from packager.ir.preparation import Preparation
from packager.ir.primitives import (
    BackendOutput,
    CallSite,
    Candidates,
    Composite,
    Cost,
    CudaModule,
    FunctionGroup,
    Kernel,
    KnownLibrary,
    LoadedLibrary,
    Packing,
    Parameter,
    Partition,
    PrimitiveFunction,
    StaticLibrary,
    SystemLibrary,
)

if TYPE_CHECKING:
    from packager.graph.dataflow import Dataflow

__all__ = [
    "API_VERSION",
    "DTYPES",
    "Backend",
    "BackendOutput",
    "Cache",
    "CallSite",
    "Candidates",
    "CodeGenerator",
    "Composite",
    "Context",
    "Cost",
    "Cpu",
    "CudaModule",
    "Dataflow",
    "FileReader",
    "Foreseeing",
    "Found",
    "FunctionGroup",
    "Kernel",
    "KnownLibrary",
    "LibraryKnower",
    "LibraryUser",
    "License",
    "LoadedLibrary",
    "Match",
    "OperatorSource",
    "Packing",
    "Parameter",
    "Partition",
    "PartitionBackend",
    "PartitionOptions",
    "Pattern",
    "Preparation",
    "Preparing",
    "PrimitiveFunction",
    "Record",
    "Records",
    "Search",
    "StaticLibrary",
    "SystemLibrary",
    "Target",
    "Toolchain",
    "Unavailable",
    "attribute",
    "read_records",
    "run",
    "this_cpu",
]


def __getattr__(name: str) -> Any:
    if name == "Dataflow":
        from packager.graph.dataflow import Dataflow

        return Dataflow
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
