"""The ``external`` backend: operators of the user's own, in static libraries that were compiled elsewhere.

``--op-library acme.toml`` and ``-t "external -libraries=acme.toml"`` are the same; see ``docs/custom-operators.md``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packager.backends.base import (
    API_VERSION,
    Context,
    Match,
    PartitionOptions,
    Pattern,
    Unavailable,
    attribute,
)
from packager.custom_ops.library import OpLibrary, decode_call, load_op_libraries

if TYPE_CHECKING:
    from packager.backends.base import Target
    from packager.ir.primitives import BackendOutput, Partition


@dataclass(frozen=True)
class ExternalOptions(PartitionOptions):
    """Attributes of the ``external`` kind."""

    libraries: tuple[str, ...] = attribute(
        (), "Descriptions (TOML) of libraries of operators; see --op-library", is_path=True
    )


class ExternalBackend:
    """Calls the operators of libraries that are described by TOML files; each call is a partition of its own."""

    api_version = API_VERSION
    kind = "external"
    device = "cpu"
    options = ExternalOptions
    summary = "Operators of your own, in static libraries (--op-library)"
    merges = False

    def canonical(self, options: Any, base: Target | None) -> Any:  # noqa: ARG002
        """Return the options as they are, once every library could be read. Raises UsageError."""
        load_op_libraries([Path(path) for path in options.libraries])
        return options

    def probe(self, target: Target) -> Unavailable | None:  # noqa: ARG002
        """Return None: the C compiler, which every build needs, is all that this backend uses."""
        return None

    def op_libraries(self, target: Target) -> Sequence[OpLibrary]:
        """Return the libraries that the Target names. Raises UsageError."""
        return load_op_libraries([Path(path) for path in target.options.libraries])

    def inputs(self, target: Target) -> Sequence[Path]:
        """Return the descriptions and the archives that they name. Raises UsageError."""
        return [file for library in self.op_libraries(target) for file in library.files]

    def patterns(self, target: Target) -> Sequence[Pattern]:
        """Return a pattern for each operator of the libraries, under its ONNX name."""
        from tvm.relax.dpl import is_op, wildcard

        libraries = self.op_libraries(target)
        names = dict.fromkeys(operator.name for library in libraries for operator in library.operators)
        call = is_op("relax.call_dps_packed")(wildcard(), wildcard())
        return [Pattern(name, call, check=_calls(name, libraries)) for name in names]

    def compile(self, partitions: Sequence[Partition], target: Target, context: Context) -> BackendOutput:
        """Compile a function for each partition that calls its library. Raises BackendError for a library that is not
        what its description says, or that cannot become part of a bundle."""
        from packager.backends.external.build import build

        return build(partitions, self.op_libraries(target), context)


def _calls(name: str, libraries: Sequence[OpLibrary]) -> Any:
    """Return the check whether a match calls the operator of this name."""

    def check(match: Match) -> bool:
        callee = getattr(match.calls[-1].args[0], "global_symbol", "")
        call = decode_call(str(callee), libraries)
        return call is not None and call[1].name == name

    return check


BACKEND = ExternalBackend()
