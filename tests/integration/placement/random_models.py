"""Random models and lists of Targets, by seed: operators, element types, dims and outputs in any combination.

Numbers stay small and mostly whole, so that a difference to onnxruntime is never one of rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper

Shape = tuple["int | str", ...]
DIMS = {"n": (1, 6), "m": (1, 1)}
POINTS = ({"n": 1, "m": 1}, {"n": 4, "m": 1}, {"n": 6, "m": 1})
TYPES = {
    "float32": TensorProto.FLOAT,
    "int32": TensorProto.INT32,
    "int64": TensorProto.INT64,
    "float64": TensorProto.DOUBLE,
    "float16": TensorProto.FLOAT16,
    "bool": TensorProto.BOOL,
    "uint8": TensorProto.UINT8,
}
NUMBERS = ("float32", "float32", "float32", "int32", "int64", "float64", "float16", "uint8")
LARGEST = 1 << 9  # whole numbers below it are exact in every type but uint8


@dataclass(frozen=True)
class Value:
    """A tensor of the model: whole numbers of at most ``bound``, unless it is not ``exact``."""

    name: str
    shape: Shape
    dtype: str
    bound: float
    exact: bool = True


@dataclass(frozen=True)
class Case:
    """A model, and everything that it is built and run with."""

    model: onnx.ModelProto
    targets: tuple[str, ...]
    dims: Mapping[str, tuple[int, int]]
    points: Sequence[Mapping[str, int]]


def random_case(seed: int, operators: int) -> Case:
    """Return the model of a seed, of at most so many operators, with a list of Targets."""
    rng = np.random.default_rng(seed)
    growth = _Growth(rng)
    model = growth.model(int(rng.integers(1, operators + 1)))
    used = {d.dim_param for v in model.graph.input for d in v.type.tensor_type.shape.dim if d.dim_param}
    points = [{name: point[name] for name in sorted(used)} for point in (POINTS if used else POINTS[:1])]
    return Case(model, random_targets(rng), {name: DIMS[name] for name in sorted(used)}, points)


def random_targets(rng: np.random.Generator) -> tuple[str, ...]:
    """Return ``llvm`` and some of the tests' backends, in any order and with any attributes."""

    def pick(*choices: str) -> str:
        return choices[int(rng.integers(len(choices)))]

    kinds = [("any", "anymerge", "toy", "toymerge", "ccompiler")[i] for i in rng.permutation(5)[: rng.integers(1, 4)]]
    found = []
    for kind in kinds:
        words = [kind, pick("", "", "-max_partition_depth=1", "-max_partition_depth=2", "-max_partition_depth=4")]
        words.append(pick("", "", "-min_partition_flops=20", "-min_partition_flops=200"))
        if kind.startswith("any"):
            words += [pick("", "-share=80", "-share=50", "-share=20"), pick("", "", "-given_back=30", "-given_back=80")]
        elif kind.startswith("toy"):
            words += [
                pick("", "-give_back=multiply", "-give_back=matmul,add"),
                pick("", "-operators=add,nn.relu,matmul"),
            ]
        else:
            words.append(pick("", "", "-operators=dense,softmax", "-operators=elementwise", "-opt_level=0"))
        found.append(" ".join(word for word in words if word))
    found.insert(int(rng.integers(len(found) + 1)), "llvm")
    return tuple(found)


class _Growth:
    """A model while it grows: each value is a candidate for the inputs of the next operator."""

    def __init__(self, rng: np.random.Generator) -> None:
        self.rng = rng
        self.nodes: list[onnx.NodeProto] = []
        self.weights: list[onnx.TensorProto] = []
        self.constants: list[Value] = []
        self.values: list[Value] = []

    def pick(self, choices: Sequence[Any]) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def model(self, operators: int) -> onnx.ModelProto:
        side: Any = self.pick(["n", 2, 3])
        shapes: list[Shape] = [(side, 4), (4,), (side, 3, 4), (), (side,), (side, side), (1, 4), (2, 4, 4), ("m", 4)]
        for index in range(int(self.rng.integers(1, 4))):
            dtype = self.pick(NUMBERS)
            self.values.append(Value(f"x{index}", self.pick(shapes), dtype, 4))
        inputs = list(self.values)
        while len(self.nodes) < operators:
            self.grow()
        outputs = self.outputs(len(inputs))
        tensor = helper.make_tensor_value_info
        graph = helper.make_graph(
            self.nodes,
            "random",
            [tensor(v.name, TYPES[v.dtype], v.shape) for v in inputs],
            [tensor(v.name, TYPES[v.dtype], [e if isinstance(e, int) else None for e in v.shape]) for v in outputs],
            self.weights,
        )
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.checker.check_model(model, full_check=True)
        return model

    def outputs(self, inputs: int) -> list[Value]:
        """Choose outputs: what was computed last, and perhaps values twice, inputs and constants."""
        chosen = [self.values[-1]]
        for _ in range(int(self.rng.integers(0, 4))):
            chosen.append(self.pick(self.values))
        if self.constants and self.rng.random() < 0.1:
            chosen.append(self.pick(self.constants))
        own = {value.name for value in self.values[:inputs]} | {value.name for value in self.constants}
        found: dict[str, Value] = {}
        for value in chosen:
            if value.name in found or value.name in own:
                self.nodes.append(helper.make_node("Identity", [value.name], [f"copy{len(self.nodes)}"]))
                found[f"copy{len(self.nodes) - 1}"] = Value(
                    f"copy{len(self.nodes) - 1}", value.shape, value.dtype, value.bound, value.exact
                )
            else:
                found[value.name] = value
        return list(found.values())

    def node(
        self, operator: str, inputs: Sequence[Value | str], like: Value, shape: Shape | None = None, **attributes: Any
    ) -> Value:
        """Add an operator whose one result is like ``like``, of another shape perhaps."""
        name = f"v{len(self.nodes)}"
        names = [value if isinstance(value, str) else value.name for value in inputs]
        self.nodes.append(helper.make_node(operator, names, [name], name=f"{operator}_{len(self.nodes)}", **attributes))
        shape = like.shape if shape is None else shape
        self.values.append(Value(name, shape, like.dtype, like.bound, like.exact))
        return self.values[-1]

    def weight(self, *shape: int, dtype: str = "float32") -> Value:
        array = self.rng.integers(0 if dtype == "uint8" else -2, 3, shape).astype(dtype)
        known = [c for c in self.constants if (c.shape, c.dtype) == (shape, dtype)]
        if known and self.rng.random() < 0.3:
            return self.pick(known)
        name = f"w{len(self.weights)}"
        self.weights.append(onnx.numpy_helper.from_array(np.asarray(array), name))
        self.constants.append(Value(name, shape, dtype, 2))
        return self.constants[-1]

    def integers(self, *values: int) -> str:
        name = f"i{len(self.weights)}"
        self.weights.append(onnx.numpy_helper.from_array(np.array(values, np.int64), name))
        return name

    def grow(self) -> None:
        """Add an operator."""
        value = self.pick(self.values[-6:] if self.rng.random() < 0.7 else self.values)
        if value.bound > LARGEST or (value.dtype == "uint8" and value.bound > 64):
            value = self.clipped(value)
        makers: list[Callable[[Value], Value | None]] = [
            *(self.binary, self.binary, self.binary, self.with_weight, self.unary, self.compare, self.cast),
            *(self.matmul, self.split, self.concat, self.reshape, self.transpose, self.slice, self.reduce),
            *(self.softmax, self.gather, self.expand, self.unsqueeze, self.sum, self.product),
        ]
        self.pick(makers)(value)

    def clipped(self, value: Value) -> Value:
        if value.dtype in ("bool", "float16"):
            return self.values[0]
        low = onnx.numpy_helper.from_array(
            np.array(0 if value.dtype == "uint8" else -4, value.dtype), f"w{len(self.weights)}"
        )
        high = onnx.numpy_helper.from_array(np.array(4, value.dtype), f"w{len(self.weights) + 1}")
        self.weights += [low, high]
        return self.node("Clip", [value, low.name, high.name], Value("", value.shape, value.dtype, 4, value.exact))

    def result(self, operator: str, a: Value, b: Value) -> Value:
        bound = a.bound * b.bound if operator == "Mul" else a.bound + b.bound
        return Value("", a.shape, a.dtype, bound, a.exact and b.exact)

    def arithmetic(self, value: Value) -> str:
        return str(self.pick(["Add", "Mul"] if value.dtype == "uint8" else ["Add", "Sub", "Mul"]))

    def binary(self, value: Value) -> Value | None:
        if value.dtype == "bool":
            return self.node(self.pick(["And", "Or", "Xor"]), [value, value], value)
        others = [v for v in self.values if (v.shape, v.dtype) == (value.shape, value.dtype) and v.bound <= LARGEST]
        others += [v for v in self.values if v.dtype == value.dtype and v.shape == () and v.bound <= LARGEST]
        other = self.pick(others or [value])
        operator = self.arithmetic(value)
        inputs = [value, other] if self.rng.random() < 0.5 else [other, value]
        return self.node(operator, inputs, self.result(operator, value, other))

    def with_weight(self, value: Value) -> Value | None:
        if value.dtype == "bool":
            return None
        suffix = value.shape[int(self.rng.integers(len(value.shape) + 1)) :]
        if not all(isinstance(extent, int) for extent in suffix):
            suffix = ()
        other = self.weight(*suffix, dtype=value.dtype)
        operator = self.arithmetic(value)
        return self.node(operator, [value, other], self.result(operator, value, other))

    def unary(self, value: Value) -> Value | None:
        if value.dtype == "bool":
            return self.node("Not", [value], value)
        if value.dtype == "float32":
            operator = self.pick(["Relu", "Neg", "Abs", "Sigmoid", "Tanh", "Identity"])
            exact = value.exact and operator not in ("Sigmoid", "Tanh")
            return self.node(operator, [value], Value("", value.shape, value.dtype, max(value.bound, 1), exact))
        return self.node("Neg", [value], value) if value.dtype in ("int32", "float64") else None

    def compare(self, value: Value) -> Value | None:
        if value.dtype not in ("float32", "int32", "int64") or not value.exact:
            return None
        others = [v for v in self.values if (v.shape, v.dtype, v.exact) == (value.shape, value.dtype, True)]
        other = self.pick(others)
        answer = self.node(self.pick(["Less", "Greater", "Equal"]), [value, other], Value("", value.shape, "bool", 1))
        return self.node("Where", [answer, value, other], self.result("Add", value, other))

    def cast(self, value: Value) -> Value | None:
        if not value.exact or value.bound > 64:
            return None
        dtype = self.pick([t for t in TYPES if t not in ("uint8", value.dtype)])
        return self.node("Cast", [value], Value("", value.shape, dtype, value.bound), to=TYPES[dtype])

    def matmul(self, value: Value) -> Value | None:
        if value.dtype != "float32" or len(value.shape) < 2 or value.bound > 64:
            return None
        depth = value.shape[-1]
        if isinstance(depth, int) and self.rng.random() < 0.7:
            columns = self.pick([3, 4, 8])
            weight = self.weight(depth, columns)
            made = Value("", (*value.shape[:-1], columns), "float32", value.bound * 2 * depth, value.exact)
            return self.node("MatMul", [value, weight], made)
        rank = len(value.shape)
        turned = (*value.shape[:-2], depth, value.shape[-2])
        other = self.node("Transpose", [value], value, turned, perm=[*range(rank - 2), rank - 1, rank - 2])
        made = Value("", (*value.shape[:-1], value.shape[-2]), "float32", value.bound**2 * 12, value.exact)
        return self.node("MatMul", [value, other], made)

    def split(self, value: Value) -> Value | None:
        axes = [i for i, extent in enumerate(value.shape) if isinstance(extent, int) and extent > 1]
        if not axes or value.dtype not in ("float32", "int32", "int64"):
            return None
        axis = self.pick(axes)
        extent = int(value.shape[axis])
        parts = [1, extent - 1] if extent < 4 or self.rng.random() < 0.5 else [1, 2, extent - 3]
        names = [f"s{len(self.nodes)}_{i}" for i in range(len(parts))]
        self.nodes.append(helper.make_node("Split", [value.name, self.integers(*parts)], names, axis=axis))
        for name, part in zip(names, parts, strict=True):
            shape = (*value.shape[:axis], part, *value.shape[axis + 1 :])
            self.values.append(Value(name, shape, value.dtype, value.bound, value.exact))
        return self.values[-1]

    def concat(self, value: Value) -> Value | None:
        if not value.shape:
            return None
        others = [v for v in self.values if (v.shape, v.dtype) == (value.shape, value.dtype) and v.bound <= LARGEST]
        other = self.pick(others or [value])
        axis = int(self.rng.integers(len(value.shape)))
        extent = value.shape[axis]
        doubled: int | str = extent * 2 if isinstance(extent, int) else f"2*({extent})"
        shape = (*value.shape[:axis], doubled, *value.shape[axis + 1 :])
        like = Value("", shape, value.dtype, max(value.bound, other.bound), value.exact and other.exact)
        return self.node("Concat", [value, other], like, axis=axis)

    def reshape(self, value: Value) -> Value | None:
        rank = len(value.shape)
        if rank < 2:
            return None if rank == 0 else self.node("Reshape", [value, self.integers(-1, 1)], value, (*value.shape, 1))
        a, b, *rest = value.shape
        joined: int | str = a * b if isinstance(a, int) and isinstance(b, int) else f"({a})*({b})"
        if not all(isinstance(extent, int) for extent in rest):
            return None
        return self.node("Reshape", [value, self.integers(-1, *map(int, rest))], value, (joined, *rest))

    def transpose(self, value: Value) -> Value | None:
        permutation = [int(i) for i in self.rng.permutation(len(value.shape))]
        shape = tuple(value.shape[i] for i in permutation)
        return self.node("Transpose", [value], value, shape, perm=permutation) if permutation else None

    def slice(self, value: Value) -> Value | None:
        axes = [i for i, extent in enumerate(value.shape) if isinstance(extent, int) and extent > 1]
        if not axes:
            return None
        axis = self.pick(axes)
        start = int(self.rng.integers(int(value.shape[axis])))
        shape = (*value.shape[:axis], int(value.shape[axis]) - start, *value.shape[axis + 1 :])
        inputs = [value, *(self.integers(number) for number in (start, 2**31 - 1, axis))]
        return self.node("Slice", inputs, value, shape)

    def reduce(self, value: Value) -> Value | None:
        if value.dtype not in ("float32", "int32") or not value.shape or value.bound > 16:
            return None
        axis, keep = int(self.rng.integers(len(value.shape))), bool(self.rng.random() < 0.5)
        kept = (1,) if keep else ()
        shape = (*value.shape[:axis], *kept, *value.shape[axis + 1 :])
        bound = value.bound * 24
        if self.rng.random() < 0.5:
            return self.node("ReduceMax", [value], value, shape, axes=[axis], keepdims=int(keep))
        like = Value("", shape, value.dtype, bound, value.exact)
        return self.node("ReduceSum", [value, self.integers(axis)], like, keepdims=int(keep))

    def softmax(self, value: Value) -> Value | None:
        if value.dtype != "float32" or not value.shape:
            return None
        return self.node("Softmax", [value], Value("", value.shape, "float32", 1, False), axis=-1)

    def gather(self, value: Value) -> Value | None:
        axes = [i for i, extent in enumerate(value.shape) if isinstance(extent, int)]
        if not axes:
            return None
        axis = self.pick(axes)
        indices = self.integers(*(int(i) for i in self.rng.integers(int(value.shape[axis]), size=2)))
        return self.node(
            "Gather", [value, indices], value, (*value.shape[:axis], 2, *value.shape[axis + 1 :]), axis=axis
        )

    def expand(self, value: Value) -> Value | None:
        if len(value.shape) > 2 or not all(isinstance(extent, int) for extent in value.shape):
            return None  # TVM's frontend cannot import a symbolic one
        ones = [1] * len(value.shape)
        return self.node("Expand", [value, self.integers(2, *ones)], value, (2, *value.shape))

    def unsqueeze(self, value: Value) -> Value | None:
        if len(value.shape) > 3:
            return None
        axis = int(self.rng.integers(len(value.shape) + 1))
        shape = (*value.shape[:axis], 1, *value.shape[axis:])
        return self.node("Unsqueeze", [value, self.integers(axis)], value, shape)

    def sum(self, value: Value) -> Value | None:
        same = [v for v in self.values if (v.shape, v.dtype) == (value.shape, "float32") and v.bound <= LARGEST]
        if len(same) < 2:
            return None
        chosen = [self.pick(same) for _ in range(int(self.rng.integers(2, 4)))]
        like = Value("", value.shape, "float32", sum(v.bound for v in chosen), all(v.exact for v in chosen))
        return self.node("Sum", chosen, like)

    def product(self, value: Value) -> Value | None:
        """Add what the backends take as one: a product, or a difference times something, with a sum."""
        if value.dtype != "float32" or value.bound > 16:
            return None
        first = self.node("Mul", [value, value], self.result("Mul", value, value))
        return self.node("Add", [first, value], self.result("Add", first, value))
