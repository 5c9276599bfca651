from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.plan.arena import ALIGNMENT, Request, align, place

REQUESTS = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 12), st.integers(0, 12)).map(
        lambda r: Request(r[0], min(r[1:]), max(r[1:]))
    ),
    max_size=24,
)


@given(REQUESTS)
def test_buffers_that_are_alive_together_never_overlap(requests: list[Request]) -> None:
    offsets, total = place(requests)
    for i, (a, start) in enumerate(zip(requests, offsets, strict=True)):
        assert start % ALIGNMENT == 0
        assert 0 <= start <= start + a.nbytes <= total
        for b, other in zip(requests[:i], offsets, strict=False):
            apart = start + a.nbytes <= other or other + b.nbytes <= start
            assert apart or a.last < b.first or b.last < a.first


@given(REQUESTS)
def test_the_arena_is_between_what_must_be_and_what_never_reuses(requests: list[Request]) -> None:
    _, total = place(requests)
    assert total % ALIGNMENT == 0
    assert total <= sum(align(request.nbytes) for request in requests)
    steps = range(max((request.last for request in requests), default=0) + 1)
    alive = (sum(r.nbytes for r in requests if r.first <= step <= r.last) for step in steps)
    assert total >= max(alive, default=0)


@given(REQUESTS)
def test_placing_is_a_function_of_the_requests(requests: list[Request]) -> None:
    assert place(requests) == place(list(requests))


@pytest.mark.parametrize(
    ("requests", "offsets", "total"),
    [
        ([], [], 0),
        ([Request(0, 0, 0)], [0], 0),
        ([Request(1, 0, 0)], [0], 64),
        ([Request(64, 0, 1), Request(64, 1, 2), Request(64, 2, 3)], [0, 64, 0], 128),  # a chain: two buffers in turn
        ([Request(64, 0, 0), Request(64, 1, 1)], [0, 0], 64),
        ([Request(65, 0, 1), Request(1, 1, 1)], [0, 128], 192),
        # the large one first; small ones of other times share its place, one that meets it stands behind
        ([Request(10, 0, 1), Request(1000, 1, 2), Request(10, 3, 3)], [1024, 0, 0], 1088),
        # a gap is filled: 256 at 0, 128 at 256 (dies), 64 at 384; the last fits where the second was
        (
            [Request(256, 0, 5), Request(128, 0, 1), Request(64, 0, 5), Request(63, 2, 3)],
            [0, 256, 384, 256],
            448,
        ),
    ],
)
def test_small_cases(requests: list[Request], offsets: list[int], total: int) -> None:
    assert place(requests) == (offsets, total)


def test_a_chain_of_equal_layers_needs_two_buffers() -> None:
    layers = [Request(4096, step, step + 1) for step in range(100)]
    assert place(layers)[1] == 2 * 4096
