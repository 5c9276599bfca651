from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packager.plan.arena import ALIGNMENTS, Buffer, align, allocate

DIGITS = st.dictionaries(st.integers(0, 2), st.integers(0, 2), max_size=2)
REQUESTS = st.lists(
    st.tuples(st.integers(0, 5000), st.integers(0, 12), st.integers(0, 12), DIGITS).map(
        lambda r: Buffer(r[0], min(r[1:3]), max(r[1:3]), r[3])
    ),
    max_size=24,
)
ALIGNMENT = st.sampled_from(sorted(ALIGNMENTS.values()))


@given(REQUESTS, ALIGNMENT)
def test_buffers_that_are_alive_together_never_overlap(buffers: list[Buffer], alignment: int) -> None:
    offsets, total = allocate(buffers, alignment)
    for i, (a, start) in enumerate(zip(buffers, offsets, strict=True)):
        assert start % alignment == 0
        assert 0 <= start <= start + a.nbytes <= total
        for b, other in zip(buffers[:i], offsets, strict=False):
            apart = start + a.nbytes <= other or other + b.nbytes <= start
            never_both = any(b.digits.get(choice, digit) != digit for choice, digit in a.digits.items())
            assert apart or a.last < b.first or b.last < a.first or never_both


@given(REQUESTS, ALIGNMENT)
def test_the_arena_is_between_what_must_be_and_what_never_reuses(buffers: list[Buffer], alignment: int) -> None:
    _, total = allocate(buffers, alignment)
    assert total % alignment == 0
    assert total <= sum(align(buffer.nbytes, alignment) for buffer in buffers)
    steps = range(max((buffer.last for buffer in buffers), default=0) + 1)
    always = [buffer for buffer in buffers if not buffer.digits]
    alive = (sum(r.nbytes for r in always if r.first <= step <= r.last) for step in steps)
    assert total >= max(alive, default=0)


@given(REQUESTS)
def test_placing_is_a_function_of_the_requests(buffers: list[Buffer]) -> None:
    assert allocate(buffers, 64) == allocate(list(buffers), 64)


@pytest.mark.parametrize(
    ("buffers", "offsets", "total"),
    [
        ([], [], 0),
        ([Buffer(0, 0, 0)], [0], 0),
        ([Buffer(1, 0, 0)], [0], 64),
        ([Buffer(64, 0, 1), Buffer(64, 1, 2), Buffer(64, 2, 3)], [0, 64, 0], 128),  # a chain: two buffers in turn
        ([Buffer(64, 0, 0), Buffer(64, 1, 1)], [0, 0], 64),
        ([Buffer(65, 0, 1), Buffer(1, 1, 1)], [0, 128], 192),
        # the large one first; small ones of other times share its place, one that meets it stands behind
        ([Buffer(10, 0, 1), Buffer(1000, 1, 2), Buffer(10, 3, 3)], [1024, 0, 0], 1088),
        # a gap is filled: 256 at 0, 128 at 256 (dies), 64 at 384; the last fits where the second was
        (
            [Buffer(256, 0, 5), Buffer(128, 0, 1), Buffer(64, 0, 5), Buffer(63, 2, 3)],
            [0, 256, 384, 256],
            448,
        ),
    ],
)
def test_small_cases(buffers: list[Buffer], offsets: list[int], total: int) -> None:
    assert allocate(buffers, 64) == (offsets, total)


def test_alternatives_share_memory() -> None:
    first, second = (Buffer(4096, 0, 3, {0: digit}) for digit in (0, 1))
    other, both = Buffer(4096, 2, 4, {1: 0}), Buffer(64, 0, 4)
    assert allocate([first, second, both], 64) == ([0, 0, 4096], 4160)
    assert allocate([first, other], 64)[1] == 8192  # of different choices
    large = Buffer(8192, 2, 4, {0: 1})
    assert allocate([first, large, both], 64) == ([0, 4160, 4096], 12352)  # as without the large one


def test_a_chain_of_equal_layers_needs_two_buffers() -> None:
    layers = [Buffer(4096, step, step + 1) for step in range(100)]
    assert allocate(layers, 256)[1] == 2 * 4096
