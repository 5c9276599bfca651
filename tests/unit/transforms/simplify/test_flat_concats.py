"""Concatenations that grow: each joins all parts at once."""

from __future__ import annotations

from typing import Any

import pytest

pytest.importorskip("tvm")
from tvm import relax

from packager.graph.dataflow import bindings_of, operator_of
from packager.transforms.simplify.flat_concats import MOST_PARTS, flatten_concats

R = relax.op


def parts_of(make: Any, shapes: list[list[int]]) -> list[list[str]]:
    """Return the names of the parts of each concatenation of a function, rewritten."""
    builder = relax.BlockBuilder()
    inputs = [relax.Var(f"x{number}", relax.TensorType(shape, "float32")) for number, shape in enumerate(shapes)]
    with builder.function("main", inputs):
        with builder.dataflow():
            result = builder.emit_output(make(builder.emit, *inputs))
        builder.emit_func_output(result)
    module = flatten_concats(builder.finalize())
    relax.analysis.well_formed(module)
    found = [b.value for b in bindings_of(module["main"]) if operator_of(b.value) == "concat"]
    return [[field.name for field in value.args[0].fields] for value in found]


def test_a_growing_concatenation_is_flat() -> None:
    def grown(emit: Any, a: Any, b: Any, c: Any) -> Any:
        one = emit(R.concat([a, b], 1))
        two = emit(R.concat([one, c], -1))
        return R.concat([emit(R.nn.relu(one)), emit(R.nn.relu(two))], 1)

    shapes = [[2, 4], [2, 3], [2, 5]]
    assert parts_of(grown, shapes)[:2] == [["x0", "x1"], ["x0", "x1", "x2"]]


def test_concatenations_along_other_axes_stay() -> None:
    def crossed(emit: Any, a: Any, b: Any, c: Any) -> Any:
        return R.concat([emit(R.concat([a, b], 0)), c], 1)

    assert parts_of(crossed, [[2, 4], [3, 4], [5, 1]])[0] == ["x0", "x1"]
    assert len(parts_of(crossed, [[2, 4], [3, 4], [5, 1]])[1]) == 2


def test_there_are_not_too_many_parts() -> None:
    def grown(emit: Any, *parts: Any) -> Any:
        whole = parts[0]
        for part in parts[1:]:
            whole = emit(R.concat([whole, part], 1))
        return whole

    found = parts_of(grown, [[2, 1]] * 100)
    assert max(map(len, found)) == MOST_PARTS
