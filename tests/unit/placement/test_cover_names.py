"""Names of groups of operators in choices."""

from __future__ import annotations

from packager.placement.choices.classes import MOST_NAMED, _joined


def test_a_group_is_named_by_its_operators() -> None:
    assert _joined(["split", "TupleGetItem", "add"], [0, 1, 2]) == "split+add"


def test_a_whole_model_is_named_by_its_first() -> None:
    many = ["add"] * (MOST_NAMED + 1)
    assert _joined(many, range(len(many))) == "+".join(["add"] * 8) + "+...+101 operators"
    assert _joined(many[1:], range(MOST_NAMED)).count("add") == MOST_NAMED
