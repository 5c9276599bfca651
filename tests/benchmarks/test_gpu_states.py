"""gpu/states.py as far as it goes without a GPU: the pair of models, and generating by steps."""

from __future__ import annotations

import pytest

from benchmarks.cpu.models import parsed
from benchmarks.gpu import states


@pytest.mark.parametrize(("name", "rows"), states.ENTRIES.items())
def test_the_pair_are_valid_models(name: str, rows: int) -> None:
    model = parsed(states.PAIR.format(name=name, rows=rows), {})
    assert [value.name for value in model.graph.input] == ["x", "at", "keys"]
    assert model.graph.name == name


def test_the_prompt_is_fed_before_anything_is_generated() -> None:
    asked: list[tuple[int, int]] = []

    def step(token: int, position: int) -> int:
        asked.append((token, position))
        return token + 1

    tokens = states._greedy(step, [5, 7])
    assert tokens[:4] == [5, 7, 8, 9]
    assert asked[:3] == [(5, 0), (7, 1), (8, 2)]
    assert len(tokens) == 2 + states.STEPS
