"""The forms of a partition's functions for several CPUs: all that packager is told of them is the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packager.errors import BackendError
from packager.ir.primitives import FunctionGroup


def require_equal_groups(
    first: Mapping[str, FunctionGroup | str], second: Mapping[str, FunctionGroup | str], one: str, other: str
) -> None:
    """Raise BackendError unless partitions have the same functions for two CPUs, or were given back for both.

    One plan calls them on either, with one arena and one set of packed constants.
    """
    for name, group in first.items():
        if _described(group) != _described(second[name]):
            raise BackendError(
                f"ccompiler: partition {name} has other functions, workspaces or constants for {other} than for {one}",
                hint="this is a bug of the backend: only the C text may depend on the CPU. -march names one for all",
                detail=f"{one}: {_described(group)}\n{other}: {_described(second[name])}",
            )


def _described(group: FunctionGroup | str) -> Any:
    """Return what can be compared: expressions by their text, packings by the names of their layouts."""
    if isinstance(group, str):
        return group
    functions = [(f.symbol, f.parameters, [str(s) for s in f.scalars], str(f.extent)) for f in group.functions]
    packings = [(packing.arguments, packing.layout) for packing in group.packings]
    return functions, [str(size) for size in group.workspaces], packings
