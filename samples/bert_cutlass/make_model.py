"""Make a small BERT encoder with random weights: ``python samples/bert_cutlass/make_model.py -o bert.onnx``.

``input_ids`` int64 [n, length] -> ``hidden`` float32 [n, length, width], written as exporters write it: three
projections, heads by reshape and transpose, GELU by Erf. Sentences have no padding. Equal arguments give equal bytes.
"""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

VOCABULARY = 1000
EPSILON = 1e-12


class Encoder:
    """The nodes and weights of a graph while they are made. Methods add a node and return its output's name."""

    def __init__(self, width: int, seed: int) -> None:
        self.width = width
        self.nodes: list[NodeProto] = []
        self.weights: dict[str, NDArray[np.generic]] = {}
        self.random = np.random.default_rng(seed)

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: object) -> str:
        """Add a node; its output is named after its operator and number unless ``output`` says otherwise."""
        name = output or f"{operator.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(operator, list(inputs), [name], name=name, **attributes))
        return name

    def weight(self, name: str, array: NDArray[np.generic]) -> str:
        """Store a constant."""
        self.weights[name] = array
        return name

    def normal(self, name: str, *shape: int, deviation: float) -> str:
        """Store a constant of random values."""
        return self.weight(name, self.random.standard_normal(shape, dtype=np.float32) * np.float32(deviation))

    def dense(self, name: str, x: str, inputs: int, outputs: int) -> str:
        """Add ``x @ weight + bias``."""
        matrix = self.normal(f"{name}.weight", inputs, outputs, deviation=1 / math.sqrt(inputs))
        bias = self.normal(f"{name}.bias", outputs, deviation=0.1)
        return self.add("Add", self.add("MatMul", x, matrix), bias)

    def norm(self, name: str, x: str, output: str = "") -> str:
        """Add a layer norm over the last axis."""
        gain = self.weight(f"{name}.gain", np.ones(self.width, np.float32))
        shift = self.normal(f"{name}.shift", self.width, deviation=0.1)
        return self.add("LayerNormalization", x, gain, shift, output=output, axis=-1, epsilon=EPSILON)

    def gelu(self, x: str) -> str:
        """Add ``x (1 + erf(x / sqrt(2))) / 2``."""
        inner = self.add("Add", self.add("Erf", self.add("Div", x, "sqrt2")), "one")
        return self.add("Mul", self.add("Mul", x, inner), "half")

    def attention(self, name: str, x: str) -> str:
        """Add an attention of the heads, up to its output's projection."""
        q, k, v = (self.dense(f"{name}.{part}", x, self.width, self.width) for part in ("query", "key", "value"))
        q, v = (self.add("Transpose", self.add("Reshape", t, "split"), perm=[0, 2, 1, 3]) for t in (q, v))
        k = self.add("Transpose", self.add("Reshape", k, "split"), perm=[0, 2, 3, 1])
        scores = self.add("Div", self.add("MatMul", q, k), "root")
        out = self.add("MatMul", self.add("Softmax", scores, axis=-1), v)
        joined = self.add("Reshape", self.add("Transpose", out, perm=[0, 2, 1, 3]), "join")
        return self.dense(f"{name}.output", joined, self.width, self.width)

    def layer(self, name: str, x: str, output: str = "") -> str:
        """Add an encoder layer."""
        x = self.norm(f"{name}.norm1", self.add("Add", self.attention(name, x), x))
        wide = self.gelu(self.dense(f"{name}.up", x, self.width, 4 * self.width))
        return self.norm(
            f"{name}.norm2", self.add("Add", self.dense(f"{name}.down", wide, 4 * self.width, self.width), x), output
        )


def make_model(layers: int = 2, width: int = 128, heads: int = 4, length: int = 64, seed: int = 0) -> onnx.ModelProto:
    """Return an encoder. Raises ValueError if ``heads`` does not divide ``width``."""
    if width % heads:
        raise ValueError(f"{heads} heads do not divide a width of {width}")
    net = Encoder(width, seed)
    depth = width // heads
    scalars = {"sqrt2": math.sqrt(2), "one": 1.0, "half": 0.5, "root": math.sqrt(depth)}
    for name, value in scalars.items():
        net.weight(name, np.array(value, np.float32))
    net.weight("split", np.array([0, length, heads, depth]))
    net.weight("join", np.array([0, length, width]))

    words = net.normal("embeddings.word", VOCABULARY, width, deviation=1.0)
    places = net.normal("embeddings.position", length, width, deviation=0.5)
    x = net.norm("embeddings.norm", net.add("Add", net.add("Gather", words, "input_ids"), places))
    for index in range(layers):
        x = net.layer(f"layer{index}", x, "hidden" if index == layers - 1 else "")

    tokens = helper.make_tensor_value_info("input_ids", TensorProto.INT64, ["n", length])
    hidden = helper.make_tensor_value_info("hidden", TensorProto.FLOAT, ["n", length, width])
    weights = [numpy_helper.from_array(array, name) for name, array in net.weights.items()]
    graph = helper.make_graph(net.nodes, "bert", [tokens], [hidden], weights)
    opsets = [helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8, producer_name="samples/bert_cutlass")
    onnx.checker.check_model(model)
    return model


def main() -> int:
    """Write the model given on the command line."""
    parser = argparse.ArgumentParser(description="Make a small BERT encoder with random weights.")
    for name, default in (("layers", 2), ("width", 128), ("heads", 4), ("length", 64), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"default: {default}")
    parser.add_argument("-o", "--output", type=Path, required=True, help="the .onnx file to write")
    arguments = vars(parser.parse_args())
    output = arguments.pop("output")
    try:
        onnx.save(make_model(**arguments), output)
    except (OSError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(f"wrote {output}, {output.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
