"""Layered layout of a graph: ranks by longest path, few crossings, straight edges (Sugiyama's method).

An edge over several ranks runs through virtual nodes. Those of one source share them: what all layers of a model read,
such as a mask, is one line with branches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

RANK_GAP, NODE_GAP, VIRTUAL_WIDTH = 38, 26, 14
_ORDER_SWEEPS, _PLACE_SWEEPS = 8, 12
_REAL = 8.0  # weight of nodes: long edges give way to them
_MOST_VIRTUAL = 50_000  # virtual nodes; the longest edges do without, or their sum would be quadratic in some graphs
_GRAVITY = 0.25  # how much nodes are drawn to the middle: a chain of lopsided blocks would drift sideways


@dataclass(frozen=True)
class Box:
    """A node's size."""

    width: int
    height: int


@dataclass(frozen=True)
class Route:
    """An edge between two nodes, and the points that it runs through: x and y in turn."""

    source: int
    target: int
    points: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """The left upper corners of the nodes, the edges, and the size of the whole."""

    corners: tuple[tuple[int, int], ...]
    routes: tuple[Route, ...]
    width: int
    height: int


@dataclass
class _Vertex:
    """A node of the layered graph, or a virtual one, which ``number`` -1 marks."""

    number: int
    rank: int
    width: float
    above: list[_Vertex] = field(default_factory=list)
    below: list[_Vertex] = field(default_factory=list)
    place: int = 0  # in its rank
    x: float = 0.0  # center

    @property
    def virtual(self) -> bool:
        return self.number < 0


def lay_out(boxes: Sequence[Box], edges: Iterable[tuple[int, int]]) -> Layout:
    """Place nodes, given in topological order; edges against that order, those of loops, do not count."""
    edges = list(dict.fromkeys(edges))
    forward = [(source, target) for source, target in edges if source < target]
    ranks = _ranks(len(boxes), forward)
    vertices = [_Vertex(number, ranks[number], box.width) for number, box in enumerate(boxes)]
    chains = _connect(vertices, forward)
    layers = _layers([*vertices, *(v for chain in chains.values() for v in chain)])
    _order(layers)
    _place(layers)
    left = min((v.x - v.width / 2 for layer in layers for v in layer), default=0.0)
    for layer in layers:
        for vertex in layer:
            vertex.x -= left
    tops, height = _tops(layers, boxes)
    corners = tuple((round(v.x - v.width / 2), tops[v.rank]) for v in vertices)
    width = round(max((v.x + v.width / 2 for layer in layers for v in layer), default=0.0))
    routes = _routes(vertices, chains, edges, boxes, corners, tops)
    return Layout(corners, tuple(routes), width, height)


def _ranks(count: int, edges: Sequence[tuple[int, int]]) -> list[int]:
    """Return the longest path to each node; what nothing leads to stands just above what first uses it."""
    ranks = [0] * count
    into: dict[int, list[int]] = defaultdict(list)
    out: dict[int, list[int]] = defaultdict(list)
    for source, target in edges:
        into[target].append(source)
        out[source].append(target)
    for node in range(count):
        ranks[node] = max((ranks[source] + 1 for source in into[node]), default=0)
    for node in reversed(range(count)):
        if not into[node] and out[node]:
            ranks[node] = min(ranks[target] for target in out[node]) - 1
    return ranks


def _connect(vertices: Sequence[_Vertex], edges: Sequence[tuple[int, int]]) -> dict[int, list[_Vertex]]:
    """Link the vertices of adjacent ranks; return the virtual ones below each source of long edges, shortest first."""
    targets: dict[int, list[int]] = defaultdict(list)
    for source, target in edges:
        targets[source].append(target)
    lowest = {source: max(vertices[target].rank for target in reached) for source, reached in targets.items()}
    left = _MOST_VIRTUAL
    chains: dict[int, list[_Vertex]] = {}
    for source in sorted(targets, key=lambda source: lowest[source] - vertices[source].rank):
        start = vertices[source]
        length = lowest[source] - start.rank - 1
        chain = [_Vertex(-1, start.rank + 1 + place, VIRTUAL_WIDTH) for place in range(length if length <= left else 0)]
        left -= len(chain)
        chains[source] = chain
        path = [start, *chain]
        for upper, lower in zip(path, chain, strict=False):
            _link(upper, lower)
        for target in targets[source]:
            before = vertices[target].rank - start.rank - 1
            if before < len(path):
                _link(path[before], vertices[target])
    return chains


def _link(upper: _Vertex, lower: _Vertex) -> None:
    upper.below.append(lower)
    lower.above.append(upper)


def _layers(vertices: Sequence[_Vertex]) -> list[list[_Vertex]]:
    layers: list[list[_Vertex]] = [[] for _ in range(max((v.rank for v in vertices), default=-1) + 1)]
    for vertex in vertices:
        layers[vertex.rank].append(vertex)
    for layer in layers:
        _number(layer)
    return layers


def _number(layer: list[_Vertex]) -> None:
    for place, vertex in enumerate(layer):
        vertex.place = place


def _order(layers: list[list[_Vertex]]) -> None:
    """Sort each layer by the mean place of its neighbors, downwards and upwards in turn; keep the best order."""
    best = _places(layers)
    fewest = _crossings(layers)
    for sweep in range(_ORDER_SWEEPS):
        if not fewest:
            break
        for layer in layers if sweep % 2 == 0 else reversed(layers):
            layer.sort(key=lambda vertex: _mean_place(vertex.above if sweep % 2 == 0 else vertex.below, vertex.place))
            _number(layer)
        crossings = _crossings(layers)
        if crossings < fewest:
            best, fewest = _places(layers), crossings
    for layer in layers:
        layer.sort(key=lambda vertex: best[id(vertex)])
        _number(layer)


def _places(layers: list[list[_Vertex]]) -> dict[int, int]:
    return {id(vertex): vertex.place for layer in layers for vertex in layer}


def _mean_place(neighbors: list[_Vertex], own: int) -> float:
    return sum(vertex.place for vertex in neighbors) / len(neighbors) if neighbors else own


def _crossings(layers: list[list[_Vertex]]) -> int:
    """Count the crossings of edges between adjacent layers, by merging (a count of inversions)."""
    return sum(
        _inversions([v.place for upper in layer for v in sorted(upper.below, key=_place_of)]) for layer in layers
    )


def _place_of(vertex: _Vertex) -> int:
    return vertex.place


def _inversions(numbers: list[int]) -> int:
    if len(numbers) < 2:
        return 0
    tree = [0] * (max(numbers) + 2)
    count = 0
    for seen, number in enumerate(numbers):
        index, below = number + 1, 0
        while index:
            below += tree[index]
            index &= index - 1
        count += seen - below
        index = number + 1
        while index < len(tree):
            tree[index] += 1
            index += index & -index
    return count


def _place(layers: list[list[_Vertex]]) -> None:
    """Set x: vertices want to stand at the mean of their neighbors; weighted least squares without overlaps decide."""
    for layer in layers:
        _spread(layer, [0.0] * len(layer))
    for sweep in range(_PLACE_SWEEPS):
        down = sweep % 2 == 0
        for layer in layers if down else reversed(layers):
            wanted = []
            for vertex in layer:
                neighbors = (vertex.above or vertex.below) if down else (vertex.below or vertex.above)
                if not vertex.virtual:
                    neighbors = [v for v in neighbors if not v.virtual] or neighbors
                mean = sum(v.x for v in neighbors) / len(neighbors) if neighbors else vertex.x
                wanted.append(mean if vertex.virtual else mean * (1 - _GRAVITY))
            _spread(layer, wanted)
    for layer in layers:
        _spread(layer, [_straight(vertex) for vertex in layer])


def _straight(vertex: _Vertex) -> float:
    """Return the x of a vertex below the one that leads to it alone; elsewhere its own."""
    above = [v for v in vertex.above if not v.virtual]
    if vertex.virtual or len(above) != 1 or sum(not v.virtual for v in above[0].below) != 1:
        return vertex.x
    return above[0].x


def _spread(layer: list[_Vertex], wanted: list[float]) -> None:
    """Move vertices as little as possible from ``wanted`` so that none overlap (pool adjacent violators)."""
    offsets, end = [], 0.0
    for vertex in layer:
        offsets.append(end + vertex.width / 2)
        end += vertex.width + NODE_GAP
    blocks: list[tuple[float, float, int]] = []  # mean, weight, count
    for vertex, want, offset in zip(layer, wanted, offsets, strict=True):
        mean, weight, count = want - offset, 1.0 if vertex.virtual else _REAL, 1
        while blocks and blocks[-1][0] >= mean:
            other, more, members = blocks.pop()
            mean = (mean * weight + other * more) / (weight + more)
            weight, count = weight + more, count + members
        blocks.append((mean, weight, count))
    means = [mean for mean, _, count in blocks for _ in range(count)]
    for vertex, mean, offset in zip(layer, means, offsets, strict=True):
        vertex.x = mean + offset


def _tops(layers: list[list[_Vertex]], boxes: Sequence[Box]) -> tuple[list[int], int]:
    """Return the y of each rank, and the height of all."""
    tops, y = [], 0
    for layer in layers:
        tops.append(y)
        y += max((boxes[v.number].height for v in layer if not v.virtual), default=0) + RANK_GAP
    return tops, max(y - RANK_GAP, 0)


def _routes(
    vertices: Sequence[_Vertex],
    chains: dict[int, list[_Vertex]],
    edges: Sequence[tuple[int, int]],
    boxes: Sequence[Box],
    corners: Sequence[tuple[int, int]],
    tops: Sequence[int],
) -> list[Route]:
    """Return the edges: the longest of each source in full, others from where they leave it."""
    longest: dict[int, int] = {}
    for source, target in edges:
        if source < target and (source not in longest or vertices[target].rank > vertices[longest[source]].rank):
            longest[source] = target
    routes = []
    for source, target in edges:
        start = round(vertices[source].x), corners[source][1] + boxes[source].height
        end = round(vertices[target].x), corners[target][1]
        if source >= target:
            routes.append(Route(source, target, (*start, *end)))
            continue
        chain = chains[source][: vertices[target].rank - vertices[source].rank - 1]
        whole = longest[source] == target
        inner = [(round(v.x), tops[v.rank] + boxes[source].height // 2) for v in (chain if whole else chain[-1:])]
        points = _without_straight([start, *inner, end]) if whole or not inner else [*inner, end]
        routes.append(Route(source, target, tuple(number for point in points for number in point)))
    return routes


def _without_straight(points: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Leave out points on vertical lines."""
    kept = points[:1]
    for before, point, after in zip(points, points[1:], points[2:], strict=False):
        if not before[0] == point[0] == after[0]:
            kept.append(point)
    return [*kept, points[-1]]
