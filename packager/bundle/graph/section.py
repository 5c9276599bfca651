"""Reads the graph section of a bundle."""

from __future__ import annotations

from packager.bundle import strict_json
from packager.bundle.elf.tables import SHF_COMPRESSED
from packager.bundle.graph.call_graph import CallGraph, RunGraph
from packager.bundle.manifest import GRAPH_SECTION
from packager.bundle.reader import BundleFile, read_section
from packager.bundle.strict_json import MismatchError
from packager.errors import BundleError

LARGEST_TEXT = 1 << 25
"""Bytes; larger ones, of some hundred thousand calls, are not written."""


def read_call_graph(bundle: BundleFile) -> CallGraph | None:
    """Read the graph section; None if the bundle has none, such as those of before 0.1.0. Raises BundleError."""
    section = bundle.elf.sections.get(GRAPH_SECTION)
    if section is None:
        return None
    if section.type != 1 or section.flags & SHF_COMPRESSED or section.size > LARGEST_TEXT:
        raise BundleError(f"{bundle.path}: the section {GRAPH_SECTION} has no bytes in the file, or too many")
    try:
        graph = strict_json.read(CallGraph, strict_json.parse(read_section(bundle, GRAPH_SECTION)))
        for number, run in enumerate(graph.runs):
            _check(run, f"$.runs[{number}]", len(bundle.manifest.constants))
    except MismatchError as mismatch:
        raise BundleError(f"{bundle.path}: the section {GRAPH_SECTION} is damaged: {mismatch}") from None
    return graph


def _check(run: RunGraph, where: str, constants: int) -> None:
    for number, call in enumerate(run.calls):
        if any(tensor >= len(run.tensors) for tensor in (*call.reads, *call.writes)):
            raise MismatchError(f"{where}.calls[{number}]", "names a tensor that is not there")
    for number, tensor in enumerate(run.tensors):
        if tensor.space == "constant" and tensor.place >= constants:
            raise MismatchError(f"{where}.tensors[{number}]", "is no constant of the manifest")
