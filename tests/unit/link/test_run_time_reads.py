"""Run-time extents that are known at the same time are copied to the host together."""

from __future__ import annotations

from packager.ir.call_plan import Call, Check, Operand, ReadExtent, Step, Switch
from packager.link.reads import reads_together

CALL = Call("f", (), (), None, False)


def read(number: int, *, branch: tuple[tuple[str, int], ...] = (), choice: bool = False) -> ReadExtent:
    place = Operand("arena", 64 * number)
    return ReadExtent(number, Switch("if_0", ((1, place), (0, place))) if choice else place, branch)


def test_reads_between_two_calls_are_one_group() -> None:
    steps: list[Step] = [CALL, read(0), Check(0), read(1), Check(1), CALL, read(2)]
    assert reads_together(steps, 1) == ([steps[1], steps[3]], 4)
    assert reads_together(steps, 6) == ([steps[6]], 7)


def test_what_a_branch_decides_is_read_after_it_is_known() -> None:
    inside = read(1, branch=(("if_0", 1),))
    steps: list[Step] = [read(0), inside, read(2), read(3, choice=True), read(4)]
    assert reads_together(steps, 0) == ([steps[0]], 1)
    assert reads_together(steps, 1) == ([inside], 2)
    assert reads_together(steps, 2) == ([steps[2]], 3)
    assert reads_together(steps, 3) == ([steps[3], steps[4]], 5)
