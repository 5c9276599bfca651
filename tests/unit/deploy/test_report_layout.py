"""The drawing of graphs: nodes do not overlap, edges run downwards between the nodes that they connect."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from packager.deploy.report.layout import NODE_GAP, RANK_GAP, Box, Layout, lay_out

Graph = tuple[list[Box], list[tuple[int, int]]]


@st.composite
def graphs(draw: st.DrawFn) -> Graph:
    count = draw(st.integers(1, 25))
    boxes = [Box(draw(st.integers(20, 300)), 44) for _ in range(count)]
    nodes = st.integers(0, count - 1)
    edges = draw(st.lists(st.tuples(nodes, nodes).filter(lambda edge: edge[0] != edge[1]), max_size=60))
    return boxes, edges


def check(layout: Layout, boxes: list[Box]) -> None:
    spans = [(y, x, x + box.width) for (x, y), box in zip(layout.corners, boxes, strict=True)]
    for (y, _, end), (other, begin, _) in pairwise(sorted(spans)):
        assert y != other or begin >= end + NODE_GAP - 1  # coordinates are rounded
    assert min(x for x, _ in layout.corners) >= 0
    for (x, y), box in zip(layout.corners, boxes, strict=True):
        assert x + box.width <= layout.width + 1
        assert y + box.height <= layout.height


@given(graphs())
def test_any_graph(graph: Graph) -> None:
    boxes, edges = graph
    layout = lay_out(boxes, edges)
    check(layout, boxes)
    assert {(route.source, route.target) for route in layout.routes} == set(edges)
    for route in layout.routes:
        x, y = layout.corners[route.target]
        assert abs(route.points[-2] - (x + boxes[route.target].width / 2)) <= 1
        assert route.points[-1] == y
        if route.source < route.target:
            heights = route.points[1::2]
            assert all(above < below for above, below in pairwise(heights))
    assert lay_out(boxes, edges) == layout


def test_a_chain_is_straight() -> None:
    boxes = [Box(100 + 10 * number, 44) for number in range(20)]
    layout = lay_out(boxes, [(number, number + 1) for number in range(19)])
    assert {round(x + box.width / 2) for (x, _), box in zip(layout.corners, boxes, strict=True)} == {145}
    assert layout.height == 20 * 44 + 19 * RANK_GAP


def test_blocks_that_lean_to_one_side_do_not_drift() -> None:
    """As those of transformers: query, key and value, of which two meet first, and a residual."""
    boxes, edges, last = [Box(100, 44)], [], 0
    for _ in range(30):
        one, two, three, score, out = range(last + 1, last + 6)
        boxes += [Box(100, 44)] * 5
        edges += [
            (last, one),
            (last, two),
            (last, three),
            (one, score),
            (two, score),
            (score, out),
            (three, out),
            (last, out),
        ]
        last = out
    layout = lay_out(boxes, edges)
    check(layout, boxes)
    assert layout.width < 8 * 126


def test_what_many_read_is_one_line() -> None:
    boxes = [Box(100, 44)] * 41
    edges = [(0, number) for number in range(1, 41)] + [(number, number + 1) for number in range(1, 40)]
    routes = [route for route in lay_out(boxes, edges).routes if route.source == 0]
    assert sum(len(route.points) > 4 for route in routes) == 1


def test_nothing() -> None:
    assert lay_out([], []) == Layout((), (), 0, 0)


def test_many_long_edges_stay_few_points() -> None:
    """As of an unrolled recurrent layer whose steps all go to one concatenation."""
    count = 400
    boxes = [Box(100, 44)] * (count + 1)
    edges = [(number, number + 1) for number in range(count)] + [(number, count) for number in range(count - 1)]
    layout = lay_out(boxes, edges)
    check(layout, boxes)
    assert len(layout.routes) == len(edges)
    assert sum(len(route.points) for route in layout.routes) < 200_000
