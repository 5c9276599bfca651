"""Random graphs against onnxruntime: operators in combinations that nobody thought of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from graphs import check
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from one_cpu import targets_here
from onnx import TensorProto, helper

from packager.targets.target_list import DEFAULT_TARGETS

pytestmark = pytest.mark.slow

UNARY = [
    "Relu",
    "Sigmoid",
    "Tanh",
    "Neg",
    "Abs",
    "Exp",
    "Erf",
    "Softplus",
    "LeakyRelu",
    "Identity",
    "Floor",
    "HardSigmoid",
]
BINARY = ["Add", "Sub", "Mul", "Max", "Min"]
Shape = tuple["int | str", ...]


class Growth:
    """A graph while it grows: values with their shapes, each a candidate for the next operator's input."""

    def __init__(self, draw: Callable[[st.SearchStrategy[object]], object]) -> None:
        self.draw: Callable[..., object] = draw
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.values: list[tuple[str, Shape]] = []

    def pick(self, choices: list[object]) -> object:
        return self.draw(st.sampled_from(choices))

    def node(self, operator: str, inputs: list[str], shape: Shape, **attributes: object) -> None:
        name = f"v{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(operator, inputs, [name], name=f"{operator}_{len(self.nodes)}", **attributes)
        )
        self.values.append((name, shape))

    def weight(self, *shape: int) -> str:
        name = f"w{len(self.weights)}"
        array = np.random.default_rng(len(self.weights)).standard_normal(shape) * 0.3
        self.weights.append(onnx.numpy_helper.from_array(array.astype(np.float32), name))
        return name

    def integers(self, *values: int) -> str:
        name = f"i{len(self.weights)}"
        self.weights.append(onnx.numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def grow(self) -> None:
        """Add one operator that fits one of the values."""
        name, shape = self.pick(self.values)  # type: ignore[misc]
        rank, last = len(shape), shape[-1]
        options: list[Callable[[], None]] = [
            lambda: self.node(self.pick(UNARY), [name], shape),
            lambda: self.node("Clip", [name, self.scalar(-0.5), self.scalar(1.5)], shape),
            lambda: self.node(self.pick(BINARY), [name, self.weight(last)], shape),
            lambda: self.node("Softmax", [name], shape, axis=-1),
            lambda: self.node("LayerNormalization", [name, self.weight(last), self.weight(last)], shape, axis=-1),
            lambda: self.node("Concat", [name, name], (*shape[:-1], last * 2), axis=-1),
        ]
        same = [other for other, its in self.values if its == shape]
        options.append(lambda: self.node(self.pick(BINARY), [name, self.pick(same)], shape))
        if last > 1:
            options.append(self.slice(name, shape))
        if rank > 1:
            permutation = [0, *self.draw(st.permutations(range(1, rank)))]
            options += [
                lambda: self.node("Transpose", [name], tuple(shape[i] for i in permutation), perm=permutation),
                lambda: self.node("MatMul", [name, self.weight(last, 5)], (*shape[:-1], 5)),
                lambda: self.node("ReduceMean", [name], (*shape[:-1], 1), axes=[rank - 1]),
                lambda: self.node("ReduceMax", [name], (shape[0], *[1] * (rank - 1)), axes=list(range(1, rank))),
            ]
        if rank == 4:
            channels, height, width = (int(extent) for extent in shape[1:])
            options += [self.conv(name, shape), self.flat(name, shape)]
            options.append(lambda: self.node("GlobalAveragePool", [name], (shape[0], channels, 1, 1)))
            if height > 1 and width > 1:
                pooled = (shape[0], channels, height // 2, width // 2)
                pool = self.pick(["MaxPool", "AveragePool"])
                options.append(lambda: self.node(pool, [name], pooled, kernel_shape=[2, 2], strides=[2, 2]))
        self.pick(options)()  # type: ignore[operator]

    def scalar(self, value: float) -> str:
        name = f"s{len(self.weights)}"
        self.weights.append(onnx.numpy_helper.from_array(np.float32(value), name))
        return name

    def slice(self, name: str, shape: Shape) -> Callable[[], None]:
        start, step = self.draw(st.integers(0, int(shape[-1]) - 1)), self.draw(st.integers(1, 2))

        def add() -> None:
            length = len(range(start, int(shape[-1]), step))
            inputs = [self.integers(value) for value in (start, 2**31 - 1, -1, step)]
            self.node("Slice", [name, *inputs], (*shape[:-1], length))

        return add

    def conv(self, name: str, shape: Shape) -> Callable[[], None]:
        side, stride, group = self.draw(st.tuples(st.sampled_from([1, 3]), st.sampled_from([1, 2]), st.booleans()))

        def add() -> None:
            channels, height, width = (int(extent) for extent in shape[1:])
            groups = channels if group else 1
            outputs, pad = (channels if group else 6), side // 2
            extents = [(extent + 2 * pad - side) // stride + 1 for extent in (height, width)]
            weight = self.weight(outputs, channels // groups, side, side)
            attributes = {"pads": [pad] * 4, "strides": [stride] * 2, "group": groups, "kernel_shape": [side] * 2}
            self.node("Conv", [name, weight, self.weight(outputs)], (shape[0], outputs, *extents), **attributes)

        return add

    def flat(self, name: str, shape: Shape) -> Callable[[], None]:
        size = int(np.prod([int(extent) for extent in shape[1:]]))
        return lambda: self.node("Flatten", [name], (shape[0], size), axis=1)


@st.composite
def models(draw: Callable[..., object], operators: int) -> tuple[onnx.ModelProto, bool]:
    """A model of some operators over one or two inputs, and whether its batch is symbolic."""
    symbolic = draw(st.booleans())
    batch = "n" if symbolic else 2
    growth = Growth(draw)
    shapes = draw(st.lists(st.sampled_from([(batch, 3, 6, 5), (batch, 4), (batch, 3, 7)]), min_size=1, max_size=2))
    growth.values = [(f"x{i}", shape) for i, shape in enumerate(shapes)]
    for _ in range(draw(st.integers(1, operators))):
        growth.grow()
    last = len(growth.values) - 1
    outputs = [growth.values[i] for i in sorted({last, draw(st.integers(len(shapes), last))})]
    tensor = helper.make_tensor_value_info
    model = helper.make_model(
        helper.make_graph(
            growth.nodes,
            "random",
            [tensor(f"x{i}", TensorProto.FLOAT, shape) for i, shape in enumerate(shapes)],
            [tensor(name, TensorProto.FLOAT, shape) for name, shape in outputs],
            growth.weights,
        ),
        opset_imports=[helper.make_opsetid("", 17)],
        ir_version=8,
    )
    onnx.checker.check_model(model, full_check=True)
    return model, symbolic


def compare(model: onnx.ModelProto, symbolic: bool, folder: Path, targets: Sequence[str]) -> None:
    dims, points = ({"n": (1, 4)}, ({"n": 1}, {"n": 3}, {"n": 4})) if symbolic else ({}, ({},))
    used = {d.dim_param for value in model.graph.input for d in value.type.tensor_type.shape.dim if d.dim_param}
    check(model, folder, dims if used else {}, points if used else ({},), targets=targets).close()


QUIET = {"deadline": None, "suppress_health_check": list(HealthCheck), "derandomize": True, "database": None}


@settings(max_examples=6, **QUIET)
@given(drawn=models(operators=6))
def test_a_few_operators(drawn: tuple[onnx.ModelProto, bool], tmp_path_factory: pytest.TempPathFactory) -> None:
    compare(*drawn, tmp_path_factory.mktemp("random"), DEFAULT_TARGETS)


# Batches that are no dims are computed row by row, where the operators allow it.
EACH_ROW = (f"{targets_here()[0]} -micro_batch=1", *targets_here()[1:])


@pytest.mark.parametrize(
    "targets",
    [pytest.param(targets_here()[:1], marks=pytest.mark.thorough), EACH_ROW],
    ids=["llvm", "llvm ccompiler"],
)
@settings(max_examples=50, **QUIET)
@given(drawn=models(operators=25))
def test_many_operators(
    targets: tuple[str, ...], drawn: tuple[onnx.ModelProto, bool], tmp_path_factory: pytest.TempPathFactory
) -> None:
    compare(*drawn, tmp_path_factory.mktemp("random"), targets)
