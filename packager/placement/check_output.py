"""Validate the output of a backend before it is used."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvm import relax

from packager.errors import BackendError
from packager.ir.primitives import BackendOutput, Candidates, FunctionGroup, Partition

MAX_CANDIDATES = 255
"""Candidates of a primitive function; the bundle stores the selected one in a byte."""


def check_answer(kind: str, partitions: Sequence[Partition], output: BackendOutput) -> None:
    """Raise BackendError unless ``output`` has each partition once, and its references resolve."""
    by_name = {part.name: part for part in partitions}
    if not isinstance(output, BackendOutput):
        raise BackendError(f"{kind}: compile returned {type(output).__name__}, expected BackendOutput")
    if output.kind != kind:
        raise BackendError(f"{kind}: the backend answers as {output.kind!r}")
    both = set(output.groups) & set(output.given_back)
    if wrong := sorted(both | by_name.keys() ^ {*output.groups, *output.given_back}):
        raise BackendError(f"{kind}: the backend must compile each partition or give it back: {', '.join(wrong)}")
    for name, places in output.left_out.items():
        if name not in output.given_back or not places or not set(places) <= {*range(len(by_name[name].composites))}:
            raise BackendError(f"{kind}: left_out names what {name} has not, or what was not given back")
    for name, group in output.groups.items():
        _check_group(kind, by_name[name], group, output)
    _check_libraries(kind, output)


def _check_group(kind: str, part: Partition, group: FunctionGroup, output: BackendOutput) -> None:
    results = len(result_types(part))
    sizes = {
        "argument": len(part.function.params) + results,
        "workspace": len(group.workspaces),
        "packed": len(group.packings),
    }
    for function in group.functions:
        for p in function.parameters:
            exists = p.name in output.constants if p.kind == "constant" else 0 <= p.index < sizes[p.kind]
            if not exists:
                what = repr(p.name) if p.kind == "constant" else p.index
                raise BackendError(f"{kind}: {function.symbol} has a parameter that does not exist: {p.kind} {what}")
    if loose := sorted({index for packing in group.packings for index in packing.arguments} - part.constant_arguments):
        listed = ", ".join(map(str, loose))
        raise BackendError(f"{kind}: {part.name} packs arguments that are not constants: {listed}")
    for function in group.functions:
        if function.candidates is not None and (wrong := _wrong(function.candidates)):
            raise BackendError(f"{kind}: candidates of {function.symbol}: {wrong}")
    if not group.functions:
        raise BackendError(f"{kind}: {part.name} has no primitive function")


def _check_libraries(kind: str, output: BackendOutput) -> None:
    """Raise BackendError unless each loaded library is called by a group, and groups call declared ones: a session
    opens what groups name, and nothing else."""
    declared = {library.symbol for static in output.static_libraries for library in static.loaded_libraries}
    called = {symbol for group in output.groups.values() for symbol in group.libraries}
    if unknown := sorted(called - declared):
        raise BackendError(
            f"{kind}: functions call {', '.join(unknown)}, which is in no StaticLibrary's loaded_libraries",
            hint="FunctionGroup.libraries has the symbols of LoadedLibrary declarations",
        )
    if unused := sorted(declared - called):
        raise BackendError(
            f"{kind}: no function calls {', '.join(unused)}, which it declares as a loaded library",
            hint="list its symbol in the `libraries` of the FunctionGroups that call it, or leave it out",
        )


def _wrong(candidates: Candidates) -> str | None:
    names = candidates.names
    if not 0 < len(names) <= MAX_CANDIDATES or len(set(names)) != len(names) or not all(names):
        return f"expected from 1 to {MAX_CANDIDATES} names, all different"
    if not 0 <= candidates.chosen < len(names):
        return f"number {candidates.chosen} is chosen of {len(names)}"
    return None if candidates.problem and candidates.revision else "the problem and the revision must be texts"


def result_types(part: Partition) -> list[Any]:
    """Return the types of the tensors that a partition returns."""
    ty = part.function.ret_ty
    return list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]
