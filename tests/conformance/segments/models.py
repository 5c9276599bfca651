"""Recurrent layers, detections, branches and loops as ONNX models, with the inputs of several runs of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

FLOAT, INT, INT32, BOOL = TensorProto.FLOAT, TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@dataclass(frozen=True)
class Case:
    """A model, bounds of its dims, and what its runs are given; ``tolerance`` is of an output's root mean square."""

    name: str
    model: onnx.ModelProto
    runs: Sequence[Mapping[str, np.ndarray]]
    dims: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    tolerance: float = 1e-4


def value(name: str, kind: int, shape: Sequence[Any]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def node(operator: str, inputs: str, outputs: str, **attributes: Any) -> onnx.NodeProto:
    """A node; ``-`` is an input that is left out."""
    return helper.make_node(
        operator, ["" if name == "-" else name for name in inputs.split()], outputs.split(), **attributes
    )


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[onnx.ValueInfoProto],
    outputs: Sequence[onnx.ValueInfoProto],
    constants: Mapping[str, Any],
) -> onnx.ModelProto:
    given = [numpy_helper.from_array(np.asarray(array), name) for name, array in constants.items()]
    graph = helper.make_graph(nodes, "segments", inputs, outputs, given)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(made)
    return made


def normal(rng: np.random.Generator, *shape: int, scale: float = 1.0) -> np.ndarray:
    return (rng.standard_normal(shape) * scale).astype(np.float32)


def recurrent(
    name: str,
    kind: str,
    sizes: Sequence[int],
    *,
    batch: int = 1,
    inputs: int = 64,
    hidden: int = 128,
    directions: int = 1,
    lengths: bool = False,
    initial: bool = False,
    layers: int = 1,
    **attributes: Any,
) -> Case:
    """Recurrent layers over as many steps as ``sizes`` say, in turn; a symbolic dim if there are several."""
    rng, gates = np.random.default_rng(len(name)), GATES[kind]
    constants: dict[str, Any] = {}
    nodes = []
    steps: int | str = sizes[0] if len(sizes) == 1 else "n"
    data, width = "x", inputs
    states = ["h", "c"] if kind == "LSTM" else ["h"]
    for layer in range(layers):
        constants |= {
            f"W{layer}": normal(rng, directions, gates * hidden, width, scale=width**-0.5),
            f"R{layer}": normal(rng, directions, gates * hidden, hidden, scale=hidden**-0.5),
            f"B{layer}": normal(rng, directions, 2 * gates * hidden, scale=0.1),
        }
        starts = [f"{state}0" if initial else "-" for state in states]
        operands = " ".join([data, f"W{layer}", f"R{layer}", f"B{layer}", "lengths" if lengths else "-", *starts])
        direction = attributes.get("direction", "bidirectional" if directions == 2 else "forward")
        results = " ".join([f"y{layer}", *(f"{state}{layer}_n" for state in states)])
        own = {**attributes, "hidden_size": hidden, "direction": direction}
        nodes.append(node(kind, operands, results, **own))
        if layer + 1 < layers:
            nodes += [
                node("Transpose", f"y{layer}", f"t{layer}", perm=[0, 2, 1, 3]),
                node("Reshape", f"t{layer} rows", f"x{layer + 1}"),
            ]
            data, width = f"x{layer + 1}", directions * hidden
    constants["rows"] = np.array([0, batch, -1])
    if layers == 1:
        del constants["rows"]
    given = [value("x", FLOAT, [steps, batch, inputs])]
    given += [value("lengths", INT32, [batch])] if lengths else []
    given += [value(f"{state}0", FLOAT, [directions, batch, hidden]) for state in states if initial]
    last = layers - 1
    made = [value(f"y{last}", FLOAT, [steps, directions, batch, hidden])]
    made += [value(f"{state}{last}_n", FLOAT, [directions, batch, hidden]) for state in states]
    runs = []
    for size in sizes:
        feeds: dict[str, np.ndarray] = {"x": normal(rng, size, batch, inputs)}
        if lengths:
            feeds["lengths"] = rng.integers(1, size + 1, batch).astype(np.int32)
        if initial:
            feeds |= {f"{state}0": normal(rng, directions, batch, hidden) for state in states}
        runs.append(feeds)
    dims = {"n": (1, max(sizes))} if steps == "n" else {}
    return Case(name, model(nodes, given, made, constants), runs, dims)


def detection(name: str, count: int, classes: int, at_once: int) -> Case:
    """Heads of a detector on rows of features, the boxes above a threshold, their suppression, and the best ones.

    Scores are sigmoids of exact numbers that all differ, so that their order does not depend on rounding.
    """
    rng = np.random.default_rng(3)
    width = 64

    def signs(*shape: int) -> np.ndarray:
        return (rng.integers(-1, 2, shape) / 8).astype(np.float32)

    constants = {
        "w1": signs(width, width),
        "w2": signs(width, width),
        "wb": normal(rng, width, 4, scale=0.3),
        "ws": signs(width, classes),
        "own": (rng.permutation(count * classes).reshape(count, classes) / 2**18).astype(np.float32),
        "centers": rng.random((count, 4)).astype(np.float32),
        "most": np.array([50]),
        "overlap": np.array([0.5], np.float32),
        "threshold": np.array([0.6], np.float32),
        "k": np.array([at_once]),
        "zero": np.array([0]),
        "one": np.array([1]),
        "two": np.int64(2),
        "limit": np.float32(1.0),
        "flat": np.array([-1]),
    }
    nodes = [
        node("MatMul", "x w1", "a"),
        node("Relu", "a", "b"),
        node("MatMul", "b w2", "c"),
        node("Relu", "c", "d"),
        node("MatMul", "d wb", "e"),
        node("Sigmoid", "e", "f"),
        node("Add", "f centers", "boxes"),
        node("MatMul", "d ws", "g0"),
        node("Add", "g0 own", "g"),
        node("Sigmoid", "g", "scores"),
        node("Unsqueeze", "boxes zero", "all_boxes"),
        node("Transpose", "scores", "by_class", perm=[1, 0]),
        node("Unsqueeze", "by_class zero", "all_scores"),
        node("NonMaxSuppression", "all_boxes all_scores most overlap threshold", "kept"),
        node("Gather", "kept two", "rows", axis=1),
        node("Gather", "boxes rows", "picked"),
        node("ReduceSum", "picked one", "size", keepdims=0),
        node("Greater", "size limit", "large"),
        node("NonZero", "large", "places"),
        node("Reshape", "places flat", "place"),
        node("Gather", "picked place", "chosen"),
        node("ReduceMax", "scores", "best", axes=[1], keepdims=0),
        node("TopK", "best k", "top top_rows"),
        node("Gather", "boxes top_rows", "top_boxes"),
    ]
    outputs = [
        value("kept", INT, ["kept_n", 3]),
        value("chosen", FLOAT, ["chosen_n", 4]),
        value("top", FLOAT, [at_once]),
        value("top_boxes", FLOAT, [at_once, 4]),
    ]
    runs = [{"x": signs(count, width) * scale} for scale in (8, 4, 16, 8)]
    return Case(name, model(nodes, [value("x", FLOAT, [count, width])], outputs, constants), runs)


def branch_and_loop(name: str) -> Case:
    """A condition of the run, branches of different work, and a loop with a trip count of the run."""
    rng = np.random.default_rng(4)
    width = 128
    constants = {
        "w1": normal(rng, width, width, scale=width**-0.5),
        "w2": normal(rng, width, width, scale=width**-0.5),
        "w3": normal(rng, width, width, scale=width**-0.5),
        "half": np.float32(0.5),
        "zero": np.float32(0.0),
    }

    def layer(k: int) -> list[tuple[str, str, str]]:
        return [("MatMul", f"h{k} w2", f"g{k}"), ("Tanh", f"g{k}", f"h{k + 1}")]

    positive = helper.make_graph(
        [
            node("Identity", "b", "h0"),
            *(node(o, i, r) for k in range(8) for o, i, r in layer(k)),
            node("MatMul", "h8 w3", "p3"),
        ],
        "positive",
        [],
        [value("p3", FLOAT, [8, width])],
    )
    negative = helper.make_graph(
        [node("Sub", "half b", "n1"), node("Relu", "n1", "n2")], "negative", [], [value("n2", FLOAT, [8, width])]
    )
    body = helper.make_graph(
        [
            node("MatMul", "s w1", "m"),
            node("Tanh", "m", "t"),
            node("Cast", "i", "fi", to=FLOAT),
            node("Mul", "fi half", "hi"),
            node("Add", "t hi", "s2"),
            node("Identity", "c", "c2"),
        ],
        "body",
        [value("i", INT, []), value("c", BOOL, []), value("s", FLOAT, [8, width])],
        [value("c2", BOOL, []), value("s2", FLOAT, [8, width])],
    )
    nodes = [
        node("MatMul", "x w1", "a"),
        node("Tanh", "a", "b"),
        node("ReduceSum", "x", "total", keepdims=0),
        node("Greater", "total zero", "taken"),
        node("If", "taken", "q", then_branch=positive, else_branch=negative),
        node("Relu", "q", "r"),
        node("MatMul", "r w2", "u"),
        node("ArgMax", "sel", "trip", axis=0, keepdims=0),
        node("Loop", "trip - u", "v", body=body),
        node("MatMul", "v w3", "y"),
    ]
    inputs = [value("x", FLOAT, [8, width]), value("sel", FLOAT, [33])]
    runs = []
    for number, trip in enumerate((20, 3, 0, 20, 32)):
        x = np.abs(normal(rng, 8, width)) * (-1 if number % 2 else 1)
        runs.append({"x": x.astype(np.float32), "sel": np.eye(33, dtype=np.float32)[trip]})
    return Case(name, model(nodes, inputs, [value("y", FLOAT, [8, width])], constants), runs)


def until(name: str) -> Case:
    """A loop that ends by a condition that its body computes, with scan outputs, after work of its own."""
    rng = np.random.default_rng(5)
    constants = {
        "w": normal(rng, 32, 32, scale=32**-0.5),
        "half": np.float32(0.7),
        "limit": np.float32(0.05),
        "most": np.int64(40),
        "true": np.asarray(True),
    }
    body = helper.make_graph(
        [
            node("MatMul", "s w", "m"),
            node("Tanh", "m", "t"),
            node("Mul", "t half", "s2"),
            node("ReduceMax", "s2", "r", keepdims=0),
            node("Greater", "r limit", "c2"),
        ],
        "body",
        [value("i", INT, []), value("c", BOOL, []), value("s", FLOAT, [4, 32])],
        [value("c2", BOOL, []), value("s2", FLOAT, [4, 32]), value("r", FLOAT, [])],
    )
    nodes = [
        node("MatMul", "x w", "a"),
        node("Tanh", "a", "b"),
        node("Loop", "most true b", "y rs", body=body),
        node("Neg", "y", "z"),
    ]
    runs = [{"x": normal(rng, 4, 32, scale=scale)} for scale in (1.0, 10.0, 0.01, 3.0)]
    outputs = [value("z", FLOAT, [4, 32]), value("rs", FLOAT, ["k"])]
    return Case(name, model(nodes, [value("x", FLOAT, [4, 32])], outputs, constants), runs)


def counted(name: str) -> Case:
    """Loops in a loop, whose trip counts dims say, whose states change places and whose numbers are read."""
    rng = np.random.default_rng(6)
    constants = {"w": normal(rng, 16, 16, scale=0.2), "axis": np.array(0)}
    shape = [4, 16]
    inner = helper.make_graph(
        [
            node("MatMul", "p w", "m"),
            node("Cast", "j", "fj", to=FLOAT),
            node("Add", "m fj", "p2"),
            node("Identity", "cj", "cj2"),
            node("Tanh", "p2", "row"),
        ],
        "inner",
        [value("j", INT, []), value("cj", BOOL, []), value("p", FLOAT, shape)],
        [value("cj2", BOOL, []), value("p2", FLOAT, shape), value("row", FLOAT, shape)],
    )
    outer = helper.make_graph(
        [
            node("Loop", "three - a", "a2 rows", body=inner),
            node("ReduceMean", "rows", "mean", axes=[0], keepdims=0),
            node("Tanh", "a2", "t"),
            node("Add", "t mean", "next"),
            node("Identity", "b", "old"),
            node("Identity", "c", "c2"),
            node("Sub", "next b", "scanned"),
        ],
        "outer",
        [value("i", INT, []), value("c", BOOL, []), value("a", FLOAT, shape), value("b", FLOAT, shape)],
        [value("c2", BOOL, []), *(value(name, FLOAT, shape) for name in ("old", "next", "scanned"))],
    )
    nodes = [
        node("Shape", "like", "extents"),
        node("Gather", "extents axis", "seven"),
        node("Shape", "as_well", "others"),
        node("Gather", "others axis", "three"),
        node("Loop", "seven - x z", "y1 y2 all", body=outer),
    ]
    inputs = [value("x", FLOAT, shape), value("z", FLOAT, shape), value("like", FLOAT, ["n"])]
    inputs.append(value("as_well", FLOAT, ["m"]))
    outputs = [value("y1", FLOAT, shape), value("y2", FLOAT, shape), value("all", FLOAT, ["n", *shape])]
    runs = [
        {"x": normal(rng, *shape), "z": normal(rng, *shape), "like": normal(rng, n), "as_well": normal(rng, m)}
        for n, m in ((7, 3), (2, 1), (5, 6), (7, 3))
    ]
    return Case(name, model(nodes, inputs, outputs, constants), runs, {"n": (1, 9), "m": (1, 8)})


def cases() -> Iterator[tuple[str, Callable[[], Case]]]:
    """Yield all cases, by name, each made when it is called."""
    sizes = (50, 7, 50, 1, 32)
    made: list[tuple[str, Callable[[str], Case]]] = [
        ("lstm", lambda name: recurrent(name, "LSTM", (50,))),
        ("lstm_steps", lambda name: recurrent(name, "LSTM", sizes)),
        ("lstm_batch", lambda name: recurrent(name, "LSTM", (40,), batch=32, hidden=256, inputs=128)),
        ("lstm_four", lambda name: recurrent(name, "LSTM", (50,), batch=4)),
        ("lstm_odd", lambda name: recurrent(name, "LSTM", (9, 5), batch=3, hidden=21, inputs=10, initial=True)),
        ("lstm_lengths", lambda name: recurrent(name, "LSTM", (16, 6), batch=4, hidden=32, lengths=True)),
        ("lstm_two_layers", lambda name: recurrent(name, "LSTM", (30,), hidden=64, layers=2, directions=2)),
        ("lstm_reverse", lambda name: recurrent(name, "LSTM", (20,), hidden=32, direction="reverse", initial=True)),
        ("lstm_long", lambda name: recurrent(name, "LSTM", (3000, 10), hidden=32, inputs=16)),
        ("bilstm", lambda name: recurrent(name, "LSTM", (50,), directions=2)),
        ("bilstm_eight", lambda name: recurrent(name, "LSTM", (50,), directions=2, batch=8)),
        ("bilstm_lengths", lambda name: recurrent(name, "LSTM", (12, 3), batch=4, directions=2, lengths=True)),
        ("gru", lambda name: recurrent(name, "GRU", (50,), linear_before_reset=1)),
        ("gru_before", lambda name: recurrent(name, "GRU", (20, 4), batch=2, hidden=48, directions=2)),
        ("rnn", lambda name: recurrent(name, "RNN", (30, 2), hidden=40, batch=2)),
        ("detection", lambda name: detection(name, 500, 4, 100)),
        ("branch_and_loop", branch_and_loop),
        ("until", until),
        ("counted", counted),
    ]
    for name, make in made:
        yield name, lambda make=make, name=name: make(name)  # type: ignore[misc]
