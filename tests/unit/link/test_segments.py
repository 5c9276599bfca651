"""Where a run on a GPU is split into CUDA graphs."""

from __future__ import annotations

from packager.bundle.manifest import Model, RunPart, RunTimeExtent
from packager.cli.reports.graphs import part_text
from packager.ir.call_plan import (
    Branch,
    Call,
    Check,
    Copy,
    EntryPlan,
    Iteration,
    LoopBegin,
    LoopEnd,
    Memory,
    Operand,
    ReadExtent,
    Row,
    Step,
    Switch,
)
from packager.ir.shapes import Extent
from packager.link.segments import Segment, parts_of, split

PLACE = Operand("arena", 0)
EXTENTS = (RunTimeExtent("if_0", 1, "if"), RunTimeExtent("rows_0", "n", "rows"))


def call(*scalars: Extent, memory: Memory = PLACE, branch: Branch = ()) -> Call:
    return Call("f", (memory,), scalars, None, False, branch=branch)


def plan(*steps: Step) -> EntryPlan:
    return EntryPlan("m", Model("m", "onnx", "0" * 64, {}, None), (), (), (), steps, extents=EXTENTS)


def begin(trip: Memory | Extent, *, going: Memory | None = None, index: Memory | None = None) -> LoopBegin:
    return LoopBegin(0, trip, going, index, (), (Copy(PLACE, Operand("arena", 64), 64),))


def end(*, again: Memory | None = None, scanned: bool = False) -> LoopEnd:
    copy = Copy(Operand("arena", 128), Operand("arena", 64), 64)
    row = Copy(Operand("arena", 128), Operand("output", 0), 64)
    return LoopEnd(0, again, (), (copy,), (row,) if scanned else (), None, ())


def shown(run: EntryPlan) -> list[object]:
    """Segments as the numbers of their calls, keys and launches; other steps by their types."""
    return [
        ([number for number, step in part.steps if isinstance(step, Call)], part.keys, part.launches)
        if isinstance(part, Segment)
        else type(part[1]).__name__
        for part in split(run)
    ]


def test_a_run_that_waits_for_nothing_has_no_segments() -> None:
    assert shown(plan(call(), call("n"))) == ["Call", "Call"]


def test_graphs_end_where_the_host_reads_and_where_extents_are_read() -> None:
    run = plan(call(), call("n"), ReadExtent(1, PLACE), Check(0), call("rows_0"), call(), call(), call("rows_0"))
    parts = [([1, 2], (), 2), "ReadExtent", "Check", "Call", ([4, 5], (), 2), "Call"]
    assert shown(run) == parts
    assert parts_of(run) == (
        RunPart("graph", 1, 2),
        RunPart("wait", extents=("rows_0",)),
        RunPart("launches", 3, 3),
        RunPart("graph", 4, 5),
        RunPart("launches", 6, 6),
    )


def test_one_launch_is_no_graph() -> None:
    assert shown(plan(call(), ReadExtent(1, PLACE), call())) == ["Call", "ReadExtent", "Call"]


def test_a_condition_that_was_read_is_a_key() -> None:
    chosen = Switch("if_0", ((1, PLACE), (0, Operand("arena", 64))))
    run = plan(ReadExtent(0, PLACE), call(branch=(("if_0", 1),)), call(branch=(("if_0", 0),)), call(memory=chosen))
    assert shown(run) == ["ReadExtent", ([1, 2, 3], ("if_0",), 3)]
    assert [part_text(part) for part in parts_of(run)] == [
        "the host waits for if_0",
        "calls 1 to 3: a CUDA graph, one for each value of if_0",
    ]


def test_a_loop_as_long_as_the_dims_say_is_part_of_a_graph() -> None:
    row = Row(PLACE, Iteration(0), 64)
    run = plan(call(), begin("n"), call(memory=row), call(), end(), call())
    assert shown(run) == [([1, 2, 3, 4], (), "(((n * 3) + 1) + 1) + 1")]


def test_a_loop_that_the_host_repeats_has_its_body_as_a_graph() -> None:
    for loop in (begin("rows_0"), begin(PLACE), begin("n", going=PLACE), begin("n", index=PLACE)):
        body = ([1, 2], (), 3)  # with the copy of the state
        assert shown(plan(loop, call(), call(), end(again=PLACE))) == ["LoopBegin", body, "LoopEnd"]


def test_a_scan_output_is_copied_after_the_states() -> None:
    parts = split(plan(begin("rows_0"), call(), end(scanned=True)))
    assert isinstance(parts[1], Segment)
    assert isinstance(parts[2], tuple)
    assert isinstance(parts[2][1], LoopEnd)
    assert (parts[2][1].states, len(parts[2][1].scanned)) == ((), 1)


def test_what_depends_on_the_iteration_of_a_repeated_loop_is_launched() -> None:
    row = Row(PLACE, Iteration(0), 64)
    run = plan(begin("rows_0"), call(memory=row), call(memory=row), end(again=PLACE))
    assert shown(run) == ["LoopBegin", "Call", "Call", "Copy", "LoopEnd"]


def test_the_number_of_iterations_is_not_read() -> None:
    run = plan(begin("n", going=PLACE), call(), end(again=PLACE), ReadExtent(1, Iteration(0)))
    again = RunPart("wait", repeated=True)
    assert parts_of(run) == (RunPart("wait"), RunPart("graph", 1, 1, repeated=True), again)
