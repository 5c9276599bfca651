"""What a search finds in a model is what compile gets: variables and dims of the function, facts as they were."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest

pytest.importorskip("tvm")
from tvm import relax, tirx
from tvm_ffi import structural_equal

from packager.backends.base import Found, Search
from packager.bundle.manifest import Dim
from packager.errors import BackendError
from packager.graph.dataflow import Dataflow, shape_of
from packager.graph.identity import IdentityMap
from packager.ir.primitives import Partition
from packager.placement.match import FlatMain, find_candidates
from packager.placement.outline import Group, cut, outline

N = tirx.Var("n", "int64")


@dataclass(frozen=True)
class Sum:
    """A sum that is negated."""

    operands: tuple[Any, Any]
    inner: Any
    result: Any
    shape: tuple[Any, ...]
    elements: Any
    fact: str


def flat(count: int, rows: Any = N) -> FlatMain:
    """Return a model of so many pairs of an addition and a negation, of [rows, 4] tensors."""
    builder = relax.BlockBuilder()
    parameters = [relax.Var(f"x{i}", relax.TensorType((rows, 4), "float32")) for i in range(count + 1)]
    parameters.append(relax.Var("sized", relax.TensorType((N,), "float32")))
    with builder.function("main", parameters):
        with builder.dataflow():
            sums = [builder.emit(relax.op.add(a, b)) for a, b in pairwise(parameters[:-1])]
            outputs = [builder.emit_output(relax.op.negative(made)) for made in sums]
        builder.emit_func_output(relax.Tuple(outputs))
    return FlatMain(builder.get()["main"], count + 2, lambda _variable: None)


def partitions(graph: FlatMain, fact_of: dict[str, str], alien: Any = None, factor: int = 4) -> list[Partition]:
    """Return the partitions of all pairs; ``fact_of`` gives a fact by the name of the first operand."""

    def find(flow: Dataflow, negated: Any) -> Iterator[Found]:
        inner = flow.value(negated).args[0]
        a, b = flow.value(inner).args
        rows, columns = shape_of(negated) or ()
        shown, fact = inner if alien is None else alien, fact_of.get(a.name, "")
        yield Found((inner, negated), Sum((a, b), shown, negated, (rows, columns), rows * factor, fact))

    groups = [
        Group(candidate.nodes, (candidate,), False)
        for candidate in find_candidates(graph, [Search("toy.sum", "negative", find)])
    ]
    outlined = outline(
        graph,
        [(group, cut(graph, group.nodes)) for group in groups],
        kind="toy",
        taken=(),
        constants=IdentityMap(),
        nodes={},
        names=IdentityMap([(N, "n")]),
        dims={"n": Dim("n", 1, 8)},
    )
    return [one.partition for one in outlined]


def test_variables_and_dims_are_those_of_the_function() -> None:
    (partition,) = partitions(flat(1), {})
    function = partition.function
    added, negated = (binding for block in function.body.blocks for binding in block.bindings)
    (composite,) = partition.composites
    problem = composite.problem
    assert all(mine.same_as(given) for mine, given in zip(problem.operands, function.params, strict=True))
    assert problem.inner.same_as(added.var)
    assert problem.result.same_as(negated.var)
    rows = function.params[0].ty.shape.values[0]
    assert problem.shape[0].same_as(rows)
    assert problem.shape[1] == 4
    assert structural_equal(problem.elements, rows * 4)


def test_an_extent_that_becomes_a_dim_of_the_function() -> None:
    """An expression over a dim that no argument has as an extent."""
    graph = flat(1, N + 1)
    (partition,) = partitions(graph, {}, factor=1)
    rows = partition.function.params[0].ty.shape.values[0]
    assert isinstance(rows, tirx.Var)
    assert partition.composites[0].problem.shape[0].same_as(rows)
    assert partition.composites[0].problem.elements.same_as(rows)
    with pytest.raises(BackendError, match="the problem of toy_0 has 'n', which its match has not"):
        partitions(graph, {})


@pytest.mark.parametrize(("facts", "count"), [({}, 1), ({"x0": "causal"}, 2), ({"x0": "causal", "x1": "causal"}, 1)])
def test_parts_of_other_facts_are_other_partitions(facts: dict[str, str], count: int) -> None:
    found = partitions(flat(2), facts)
    assert [len(partition.sites) for partition in found] == [2 // count] * count
    assert {partition.composites[0].name for partition in found} == {"toy.sum"}


def test_a_variable_that_the_match_does_not_have() -> None:
    graph = flat(1)
    with pytest.raises(BackendError, match="the problem of toy_0 has 'sized', which its match has not"):
        partitions(graph, {}, alien=graph.main.params[-1])
