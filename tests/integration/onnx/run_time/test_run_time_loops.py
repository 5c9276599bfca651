"""Loops whose number of iterations a run decides, against onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import packager
from tests.one_cpu import targets_here

pytestmark = pytest.mark.slow

FLOAT, INT, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
RNG = np.random.default_rng(0)
WEIGHTS = (RNG.standard_normal((4, 4)) * 0.5).astype(np.float32)
CONSTANTS = {
    "W": WEIGHTS,
    "half": np.float32(0.5),
    "limit": np.float32(0.1),
    "one": np.int64(1),
    "zero": np.int64(0),
    "axis0": np.array([0]),
    "row": np.zeros((1, 4), np.float32),
    "none": np.zeros((0, 4), np.float32),
    "true": np.asarray(True),
}


def value(name: str, kind: int, shape: Sequence[object]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def node(operator: str, inputs: str, outputs: str, **attributes: object) -> onnx.NodeProto:
    """A node; ``-`` is an input that is left out."""
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(operator, names, outputs.split(), **attributes)


def body(
    nodes: Sequence[onnx.NodeProto], states: Sequence[onnx.ValueInfoProto], results: Sequence[onnx.ValueInfoProto]
) -> onnx.GraphProto:
    """A loop's body with the iteration number ``i`` and the condition ``c``; it goes on as ``c2`` says."""
    inputs = [value("i", INT, []), value("c", BOOL, []), *states]
    return helper.make_graph(nodes, "body", inputs, [value("c2", BOOL, []), *results])


def save(
    path: Path,
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
) -> Path:
    given = [numpy_helper.from_array(np.asarray(array), name) for name, array in CONSTANTS.items()]
    graph = helper.make_graph(nodes, "loops", inputs, outputs, given)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    onnx.save(model, path)
    return path


def compare(
    path: Path, runs: Sequence[dict[str, np.ndarray]], dims: dict[str, tuple[int, int]] | None = None
) -> list[dict[str, np.ndarray]]:
    bundle = path.with_suffix(".so")
    packager.build(path, bundle, dims=dims or {}, targets=targets_here())
    session = onnxruntime.InferenceSession(path)
    found = []
    with packager.load(bundle) as loaded:
        for feeds in runs:
            wanted = session.run(None, feeds)
            got = loaded.run(feeds)
            for output, array in zip(session.get_outputs(), wanted, strict=True):
                assert got[output.name].shape == array.shape
                np.testing.assert_allclose(got[output.name], array, rtol=1e-5, atol=1e-6)
            found.append({name: np.array(array) for name, array in got.items()})
    return found


def chosen(count: int) -> np.ndarray:
    """Numbers whose greatest has the index ``count``: the trip count by ArgMax."""
    return np.eye(6, dtype=np.float32)[count]


TRIP = node("ArgMax", "sel", "n", axis=0, keepdims=0)
SELECT = value("sel", FLOAT, [6])
GO_ON = node("Identity", "c", "c2")


def test_a_trip_count_of_the_run_with_states_and_scan_outputs(tmp_path: Path) -> None:
    steps = [
        node("MatMul", "s W", "m"),
        node("Tanh", "m", "t"),
        node("Cast", "i", "f", to=FLOAT),
        node("Add", "t f", "s2"),
    ]
    loop = body(
        [*steps, node("ReduceSum", "s2", "r", keepdims=0), GO_ON],
        [value("s", FLOAT, [2, 4])],
        [value("s2", FLOAT, [2, 4]), value("r", FLOAT, [])],
    )
    nodes = [TRIP, node("Loop", "n - x", "y rs", body=loop), node("Neg", "rs", "z")]
    path = save(
        tmp_path / "trip.onnx",
        nodes,
        [value("x", FLOAT, [2, 4]), SELECT],
        [value("y", FLOAT, [2, 4]), value("z", FLOAT, ["k"])],
    )
    x = RNG.standard_normal((2, 4)).astype(np.float32)
    found = compare(path, [{"x": x, "sel": chosen(count)} for count in (3, 0, 5, 1)])
    assert [run["z"].shape for run in found] == [(3,), (0,), (5,), (1,)]


def test_a_trip_count_beyond_a_declared_bound_is_refused_by_the_run(tmp_path: Path) -> None:
    loop = body(
        [node("Concat", "s row", "s2", axis=0), GO_ON], [value("s", FLOAT, ["a", 4])], [value("s2", FLOAT, ["b", 4])]
    )
    path = save(
        tmp_path / "narrow.onnx",
        [TRIP, node("Loop", "n - x", "y", body=loop)],
        [value("x", FLOAT, [2, 4]), SELECT],
        [value("y", FLOAT, ["k", 4])],
    )
    x = RNG.standard_normal((2, 4)).astype(np.float32)
    compare(path, [{"x": x, "sel": chosen(count)} for count in (3, 0)], {"trip_0": (1, 3)})
    with packager.load(path.with_suffix(".so")) as loaded:
        with pytest.raises(packager.PackagerError, match="trip_0"):
            loaded.run({"x": x, "sel": chosen(4)})
        assert loaded.run({"x": x, "sel": chosen(2)})["y"].shape == (4, 4)


def test_a_condition_of_the_run_ends_a_loop_without_a_trip_count(tmp_path: Path) -> None:
    loop = body(
        [
            node("Mul", "s half", "s2"),
            node("ReduceMax", "s2", "r", keepdims=0),
            node("Greater", "r limit", "c2"),
            node("Add", "count one", "count2"),
        ],
        [value("s", FLOAT, [2, 4]), value("count", INT, [])],
        [value("s2", FLOAT, [2, 4]), value("count2", INT, [])],
    )
    nodes = [
        node("ReduceMax", "x", "r0", keepdims=0),
        node("Greater", "r0 limit", "c0"),
        node("Loop", "- c0 x zero", "y steps", body=loop),
    ]
    path = save(
        tmp_path / "while.onnx",
        nodes,
        [value("x", FLOAT, [2, 4])],
        [value("y", FLOAT, [2, 4]), value("steps", INT, [])],
    )
    x = np.abs(RNG.standard_normal((2, 4))).astype(np.float32)
    found = compare(path, [{"x": x}, {"x": x * 1000}, {"x": x * 0}])
    assert found[0]["steps"] < found[1]["steps"]
    assert found[2]["steps"] == 0


@pytest.mark.parametrize("start", ["row", "none"])
def test_a_state_that_grows(tmp_path: Path, start: str) -> None:
    loop = body(
        [
            node("Gather", "x i", "one_row", axis=0),
            node("Unsqueeze", "one_row axis0", "rows"),
            node("Concat", "s rows", "s2", axis=0),
            GO_ON,
        ],
        [value("s", FLOAT, [None, 4])],
        [value("s2", FLOAT, [None, 4])],
    )
    nodes = [
        TRIP,
        node("Loop", f"n - {start}", "y", body=loop),
        node("Neg", "y", "z"),
        node("ReduceSum", "y axis0", "total", keepdims=0),
    ]
    path = save(
        tmp_path / "grow.onnx",
        nodes,
        [value("x", FLOAT, [6, 4]), SELECT],
        [value("z", FLOAT, ["k", 4]), value("total", FLOAT, [4])],
    )
    x = RNG.standard_normal((6, 4)).astype(np.float32)
    compare(path, [{"x": x, "sel": chosen(count)} for count in (4, 0, 5)])


def test_states_that_change_places_and_a_loop_in_a_loop(tmp_path: Path) -> None:
    inner = helper.make_graph(
        [node("Add", "p q", "p2"), node("Identity", "jc", "jc2")],
        "inner",
        [value("j", INT, []), value("jc", BOOL, []), value("p", FLOAT, [4])],
        [value("jc2", BOOL, []), value("p2", FLOAT, [4])],
    )
    loop = body(
        [
            node("Mul", "b half", "q"),
            node("Loop", "i - a", "a2", body=inner),
            node("Identity", "b", "b2"),
            GO_ON,
        ],
        [value("a", FLOAT, [4]), value("b", FLOAT, [4])],
        [value("b2", FLOAT, [4]), value("a2", FLOAT, [4])],
    )
    path = save(
        tmp_path / "nested.onnx",
        [TRIP, node("Loop", "n - x w", "y z", body=loop)],
        [value("x", FLOAT, [4]), value("w", FLOAT, [4]), SELECT],
        [value("y", FLOAT, [4]), value("z", FLOAT, [4])],
    )
    x, w = RNG.standard_normal((2, 4)).astype(np.float32)
    compare(path, [{"x": x, "w": w, "sel": chosen(count)} for count in (3, 0, 5, 2)])


def test_a_loop_in_a_branch_that_is_not_taken_does_not_run(tmp_path: Path) -> None:
    loop = body(
        [node("Mul", "s s", "s2"), node("Identity", "true", "c2")],
        [value("s", FLOAT, [2, 4])],
        [value("s2", FLOAT, [2, 4])],
    )
    then = helper.make_graph([node("Loop", "n - x", "looped", body=loop)], "then", [], [value("looped", FLOAT, [2, 4])])
    other = helper.make_graph([node("Neg", "x", "negated")], "else", [], [value("negated", FLOAT, [2, 4])])
    path = save(
        tmp_path / "branch.onnx",
        [TRIP, node("If", "p", "y", then_branch=then, else_branch=other)],
        [value("x", FLOAT, [2, 4]), value("p", BOOL, []), SELECT],
        [value("y", FLOAT, [2, 4])],
    )
    x = RNG.standard_normal((2, 4)).astype(np.float32) * 0.9
    compare(path, [{"x": x, "sel": chosen(3), "p": np.asarray(flag)} for flag in (True, False, True)])


@pytest.mark.parametrize(("axis", "reverse"), [(0, 0), (1, 0), (1, 1)])
def test_scan_over_a_symbolic_axis(tmp_path: Path, axis: int, reverse: int) -> None:
    step = helper.make_graph(
        [node("MatMul", "s W", "m"), node("Add", "m xi", "a"), node("Tanh", "a", "s2"), node("Identity", "s2", "o")],
        "step",
        [value("s", FLOAT, [2, 4]), value("xi", FLOAT, [2, 4])],
        [value("s2", FLOAT, [2, 4]), value("o", FLOAT, [2, 4])],
    )
    scan = node(
        "Scan",
        "h x",
        "last all",
        body=step,
        num_scan_inputs=1,
        scan_input_directions=[reverse],
        scan_output_directions=[reverse],
        scan_output_axes=[axis],
    )
    shape = ["t", 2, 4] if axis == 0 else [2, "t", 4]
    path = save(
        tmp_path / "scan.onnx",
        [scan],
        [value("h", FLOAT, [2, 4]), value("x", FLOAT, ["t", 2, 4])],
        [value("last", FLOAT, [2, 4]), value("all", FLOAT, shape)],
    )
    h = RNG.standard_normal((2, 4)).astype(np.float32)
    runs = [{"h": h, "x": RNG.standard_normal((t, 2, 4)).astype(np.float32)} for t in (3, 9, 1)]
    compare(path, runs, {"t": (1, 9)})


def test_a_loop_that_collects_without_a_bound_is_refused(tmp_path: Path) -> None:
    loop = body(
        [node("Mul", "s half", "s2"), node("ReduceMax", "s2", "r", keepdims=0), node("Greater", "r limit", "c2")],
        [value("s", FLOAT, [2, 4])],
        [value("s2", FLOAT, [2, 4]), value("r", FLOAT, [])],
    )
    path = save(
        tmp_path / "endless.onnx",
        [node("Loop", "- true x", "y rs", body=loop)],
        [value("x", FLOAT, [2, 4])],
        [value("y", FLOAT, [2, 4]), value("rs", FLOAT, ["k"])],
    )
    with pytest.raises(packager.PackagerError, match="nothing bounds it") as error:
        packager.build(path, tmp_path / "endless.so", targets=targets_here())
    assert error.value.hint
