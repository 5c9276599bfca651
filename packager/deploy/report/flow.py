"""The graph of a run as a drawing: nodes are the calls that the bundle's choices take, inputs, outputs and states."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from packager.bundle.buckets import variant_label
from packager.bundle.graph.call_graph import COPY, CallGraph, GraphCall, GraphTensor, RunGraph
from packager.bundle.manifest import Entry, Manifest, Primitive, TensorSpec
from packager.deploy.report.layout import Box, Layout, lay_out
from packager.deploy.report.measurements import Measurement

NodeKind = Literal["call", "copy", "input", "output", "state"]
MOST_CALLS = 20_000
_LONGEST_LABEL = 34
_BOLD, _SMALL, _MARGIN, _HEIGHT, _NARROWEST = 9, 7, 30, 44, 110  # pixels: of a character, and of boxes


@dataclass(frozen=True)
class TensorView:
    """A tensor of a run: what it is, and where."""

    name: str
    space: str
    place: int
    bytes: int
    dtype: str
    shape: tuple[int | str, ...]


@dataclass(frozen=True)
class NodeView:
    """A node of the drawing. ``call`` is the number of a call in the run, ``us`` its time if known.

    ``reads`` and ``writes`` are numbers of the run's tensors.
    """

    kind: NodeKind
    label: str
    symbol: str
    backend: str
    call: int | None
    nodes: tuple[str, ...]
    reads: tuple[int, ...]
    writes: tuple[int, ...]
    us: float | None
    condition: str
    x: int
    y: int
    width: int
    height: int


@dataclass(frozen=True)
class EdgeView:
    """An edge of the drawing: the numbers of its nodes and of its tensor, and points as x and y in turn."""

    source: int
    target: int
    tensor: int
    points: tuple[int, ...]


@dataclass(frozen=True)
class Flow:
    """A run: its tensors and the drawing of its first ``calls`` calls; ``left_out`` are more than a page holds."""

    label: str
    tensors: tuple[TensorView, ...]
    nodes: tuple[NodeView, ...]
    edges: tuple[EdgeView, ...]
    width: int
    height: int
    calls: int
    left_out: int


@dataclass(frozen=True)
class _Draft:
    """A node before it is placed."""

    kind: NodeKind
    label: str
    symbol: str = ""
    backend: str = ""
    call: int | None = None
    nodes: tuple[str, ...] = ()
    reads: tuple[int, ...] = ()
    writes: tuple[int, ...] = ()
    condition: str = ""


def make_flows(manifest: Manifest, graph: CallGraph, measured: Measurement | None) -> tuple[Flow, ...]:
    """Return the drawings of all runs, the first measured one with its times."""
    entries = {entry.name: entry for entry in manifest.every_entry()}
    first = manifest.every_entry()[0]
    # A profile is of the first entry at the dims' maxima: with buckets, of its last variant.
    runs = [run for run in graph.runs if run.name == first.name]
    profiled = runs[-1] if runs else None
    return tuple(
        _flow(manifest, run, entries.get(run.name, first), measured if run is profiled else None) for run in graph.runs
    )


def taken_calls(manifest: Manifest, run: RunGraph) -> tuple[GraphCall, ...]:
    """Return the calls of a run without those of alternatives that are not chosen."""
    chosen = {choice.name: choice.chosen for choice in manifest.choices}
    return tuple(
        call for call in run.calls if all(chosen.get(subject, value) == value for subject, value in call.branch.items())
    )


def operators_text(primitive: Primitive) -> str:
    """Return the operators of a function, without the names of their dialects."""
    return " + ".join(op.rpartition(".")[2] for op in primitive.ops) or primitive.symbol


def _flow(manifest: Manifest, run: RunGraph, entry: Entry, measured: Measurement | None) -> Flow:
    calls = taken_calls(manifest, run)[:MOST_CALLS]
    primitives = {primitive.symbol: (kind, primitive) for kind, primitive in manifest.primitives()}
    drafts, edges = _Walk(run, entry, manifest, primitives).walk(calls)
    boxes = [Box(_width(draft, run), _HEIGHT) for draft in drafts]
    layout = lay_out(boxes, edges)
    times = _times_of_calls(calls, measured)
    return Flow(
        label=variant_label(run.name, run.sizes),
        tensors=tuple(_tensor_view(tensor, entry, manifest) for tensor in run.tensors),
        nodes=tuple(_node(draft, boxes[i], layout.corners[i], times) for i, draft in enumerate(drafts)),
        edges=_edge_views(layout, edges),
        width=layout.width,
        height=layout.height,
        calls=len(calls),
        left_out=len(taken_calls(manifest, run)) - len(calls),
    )


def _node(draft: _Draft, box: Box, corner: tuple[int, int], times: Sequence[float | None]) -> NodeView:
    return NodeView(
        draft.kind,
        _short(draft.label),
        draft.symbol,
        draft.backend,
        draft.call,
        draft.nodes,
        draft.reads,
        draft.writes,
        None if draft.call is None else times[draft.call],
        draft.condition,
        *corner,
        box.width,
        box.height,
    )


def _width(draft: _Draft, run: RunGraph) -> int:
    """Return the width of a node's two lines: its label; its time and backend, or the type of its tensor."""
    second = len(draft.backend) + 10
    if draft.call is None:
        tensor = run.tensors[(draft.writes or draft.reads)[0]]
        second = len(tensor.dtype) + sum(len(str(extent)) + 1 for extent in tensor.shape)
    return max(_NARROWEST, len(_short(draft.label)) * _BOLD + _MARGIN, second * _SMALL + _MARGIN)


def _edge_views(layout: Layout, tensors: Mapping[tuple[int, int], int]) -> tuple[EdgeView, ...]:
    return tuple(
        EdgeView(route.source, route.target, tensors[route.source, route.target], route.points)
        for route in layout.routes
    )


def _short(label: str) -> str:
    return label if len(label) <= _LONGEST_LABEL else label[: _LONGEST_LABEL - 1] + "…"


class _Walk:
    """Walks the calls in order and connects each with the last writers of what it reads."""

    def __init__(
        self, run: RunGraph, entry: Entry, manifest: Manifest, primitives: Mapping[str, tuple[str, Primitive]]
    ) -> None:
        self._run, self._entry, self._manifest, self._primitives = run, entry, manifest, primitives
        self._drafts: list[_Draft] = []
        self._edges: dict[tuple[int, int], int] = {}
        self._writers: dict[int, list[int]] = defaultdict(list)

    def walk(self, calls: Sequence[GraphCall]) -> tuple[list[_Draft], dict[tuple[int, int], int]]:
        """Return the nodes, and each edge with its tensor."""
        self._begin(calls)
        late: list[tuple[int, int]] = []  # what a call reads that a later one writes: in loops
        for number, call in enumerate(calls):
            node = self._call(number, call)
            for tensor in call.reads:
                for writer in self._writers[tensor]:
                    self._edges.setdefault((writer, node), tensor)
                if not self._writers[tensor]:
                    late.append((node, tensor))
            for tensor in call.writes:
                if tensor in call.reads or not call.branch:
                    self._writers[tensor] = [node]
                else:
                    self._writers[tensor].append(node)
        for node, tensor in late:
            for writer in self._writers[tensor]:
                if writer != node:
                    self._edges.setdefault((writer, node), tensor)
        self._end()
        return self._drafts, self._edges

    def _begin(self, calls: Sequence[GraphCall]) -> None:
        """Add the inputs, and the states that are read before they are written."""
        written: set[int] = set()
        for call in calls:
            for number in call.reads:
                tensor = self._run.tensors[number]
                if tensor.space in ("input", "state") and number not in written and not self._writers[number]:
                    kind: NodeKind = "input" if tensor.space == "input" else "state"
                    self._writers[number] = [len(self._drafts)]
                    name = tensor_name(tensor, self._entry, self._manifest)
                    self._drafts.append(_Draft(kind, name, writes=(number,)))
            written.update(call.writes)

    def _call(self, number: int, call: GraphCall) -> int:
        kind, primitive = self._primitives.get(call.symbol, ("", None))
        self._drafts.append(
            _Draft(
                kind="copy" if primitive is None else "call",
                label=COPY if primitive is None else operators_text(primitive),
                symbol=call.symbol,
                backend=kind,
                call=number,
                nodes=call.nodes,
                reads=call.reads,
                writes=call.writes,
                condition=", ".join(f"{subject} = {value}" for subject, value in call.branch.items()),
            )
        )
        return len(self._drafts) - 1

    def _end(self) -> None:
        """Add the outputs, and what states become."""
        for number, tensor in enumerate(self._run.tensors):
            writers = [w for w in self._writers[number] if self._drafts[w].kind in ("call", "copy")]
            if tensor.space not in ("output", "state") or not writers:
                continue
            kind: NodeKind = "output" if tensor.space == "output" else "state"
            name = tensor_name(tensor, self._entry, self._manifest)
            self._drafts.append(_Draft(kind, name, reads=(number,)))
            for writer in writers:
                self._edges.setdefault((writer, len(self._drafts) - 1), number)


def _times_of_calls(calls: Sequence[GraphCall], measured: Measurement | None) -> list[float | None]:
    """Return the time of each call: of the measured run if it has the same calls, else its symbol's share."""
    if measured is None:
        return [None] * len(calls)
    if [call.symbol for call in calls] == [item.symbol for item in measured.slices]:
        return [item.us for item in measured.slices]
    counts: dict[str, int] = defaultdict(int)
    for call in calls:
        counts[call.symbol] += 1
    return [
        measured.times[call.symbol] / counts[call.symbol] if call.symbol in measured.times else None for call in calls
    ]


def _tensor_view(tensor: GraphTensor, entry: Entry, manifest: Manifest) -> TensorView:
    name = tensor_name(tensor, entry, manifest)
    return TensorView(name, tensor.space, tensor.place, tensor.bytes, tensor.dtype, tensor.shape)


def tensor_name(tensor: GraphTensor, entry: Entry, manifest: Manifest) -> str:
    """Return the name of an input, output, state or constant; intermediate tensors have none."""
    match tensor.space:
        case "constant":
            return manifest.constants[tensor.place].name
        case "state":
            return next((state.name for state in manifest.states if state.offset == tensor.place), "state")
        case "input" | "output":
            specs: tuple[TensorSpec, ...] = entry.inputs if tensor.space == "input" else entry.outputs
            return specs[tensor.place].name if tensor.place < len(specs) else tensor.space
    return ""
