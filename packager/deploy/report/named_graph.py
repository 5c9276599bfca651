"""The graph of a bundle with a name for each value, as graph formats have it: a value is written once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from packager.bundle.buckets import variant_label
from packager.bundle.graph.call_graph import CallGraph, GraphTensor, RunGraph
from packager.bundle.manifest import Constant, Entry, Manifest, Primitive
from packager.deploy.report.flow import operators_text, taken_calls, tensor_name


@dataclass(frozen=True)
class NamedValue:
    """A tensor at some time of the run; one that is updated has several names. ``constant`` is its content."""

    name: str
    tensor: GraphTensor
    constant: Constant | None = None


@dataclass(frozen=True)
class NamedCall:
    """A call: what it computes as text, its function and backend, source nodes, and the names of its values.

    A copy has no ``primitive`` and no ``backend``.
    """

    label: str
    symbol: str
    backend: str
    primitive: Primitive | None
    nodes: tuple[str, ...]
    reads: tuple[str, ...]
    writes: tuple[str, ...]


@dataclass(frozen=True)
class NamedRun:
    """A run: what it is given, what it makes, its results, its constants, and the calls in order."""

    label: str
    inputs: tuple[NamedValue, ...]
    outputs: tuple[NamedValue, ...]
    constants: tuple[NamedValue, ...]
    values: tuple[NamedValue, ...]
    calls: tuple[NamedCall, ...]


def named_runs(manifest: Manifest, graph: CallGraph) -> tuple[NamedRun, ...]:
    """Return the runs of a bundle, with the calls that its choices take."""
    entries = {entry.name: entry for entry in manifest.every_entry()}
    first = manifest.every_entry()[0]
    used: set[str] = set()
    runs = []
    for run in graph.runs:
        label = variant_label(run.name, run.sizes)
        prefix = f"{label}/" if len(graph.runs) > 1 else ""
        runs.append(_Naming(manifest, run, entries.get(run.name, first), prefix, used).run(label))
    return tuple(runs)


class _Naming:
    def __init__(self, manifest: Manifest, run: RunGraph, entry: Entry, prefix: str, used: set[str]) -> None:
        self._manifest, self._run, self._entry, self._prefix, self._used = manifest, run, entry, prefix, used
        self._current: dict[int, NamedValue] = {}  # tensor -> its value now
        self._given: list[NamedValue] = []
        self._constants: list[NamedValue] = []
        self._values: list[NamedValue] = []

    def run(self, label: str) -> NamedRun:
        """Name all values of the run."""
        calls = tuple(self._calls())
        tensors = enumerate(self._run.tensors)
        results = [number for number, tensor in tensors if tensor.space in ("output", "state")]
        given = {value.name for value in self._given}
        outputs = [self._current[number] for number in results if number in self._current]
        return NamedRun(
            label,
            tuple(self._given),
            tuple(value for value in outputs if value.name not in given),
            tuple(self._constants),
            tuple(self._values),
            calls,
        )

    def _calls(self) -> Iterator[NamedCall]:
        primitives = {primitive.symbol: (kind, primitive) for kind, primitive in self._manifest.primitives()}
        for call in taken_calls(self._manifest, self._run):
            reads = tuple(self._read(number) for number in call.reads)
            writes = tuple(self._write(number) for number in call.writes)
            kind, primitive = primitives.get(call.symbol, ("", None))
            label = operators_text(primitive) if primitive else call.symbol
            yield NamedCall(label, call.symbol, kind, primitive, call.nodes, reads, writes)

    def _read(self, number: int) -> str:
        if number not in self._current:  # given to the run, a constant, or written later in a loop
            value = self._new(number)
            (self._constants if value.constant else self._given).append(value)
        return self._current[number].name

    def _write(self, number: int) -> str:
        value = self._new(number)
        self._values.append(value)
        return value.name

    def _new(self, number: int) -> NamedValue:
        tensor = self._run.tensors[number]
        wanted = self._prefix + (tensor_name(tensor, self._entry, self._manifest) or f"{tensor.space}.{number}")
        name, again = wanted, 1
        while name in self._used:
            name, again = f"{wanted}.{again}", again + 1
        self._used.add(name)
        constant = self._manifest.constants[tensor.place] if tensor.space == "constant" else None
        self._current[number] = NamedValue(name, tensor, constant)
        return self._current[number]
