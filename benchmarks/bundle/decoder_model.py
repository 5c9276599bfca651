"""A decoder in the style of Llama as an ONNX file with external data, of any size, its weights random.

Weights go to the file one after the other and are never held together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
from onnx import TensorProto, helper

ALIGNMENT = 4096
BLOCK = 1 << 20  # elements of the block of random numbers that all weights are windows of
HEAD = 64


@dataclass(frozen=True)
class Shape:
    """The extents of a decoder: of its hidden state, of the inner layer of its MLPs, and how many layers it has."""

    width: int
    inner: int
    layers: int
    vocabulary: int

    @property
    def parameters(self) -> int:
        """The elements of all weights."""
        layer = 4 * self.width**2 + 3 * self.width * self.inner + 2 * self.width
        return self.layers * layer + 2 * self.vocabulary * self.width + self.width


def shape_of(gigabytes: float, width: int = 2048) -> Shape:
    """Return the least decoder of this size, in units of 10**9 bytes of float32."""
    one = Shape(width, 4 * width, 1, 16384)
    layer = one.parameters - Shape(width, 4 * width, 0, 16384).parameters
    count = ceil((gigabytes * 1e9 / 4 - (one.parameters - layer)) / layer)
    return Shape(width, 4 * width, max(count, 1), 16384)


@dataclass
class _Writer:
    """Writes weights to ``stream``, and collects nodes and initializers."""

    stream: BinaryIO
    location: str
    block: np.ndarray
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    tensors: list[onnx.TensorProto] = field(default_factory=list)

    def op(self, kind: str, *inputs: str, **attributes: object) -> str:
        """Add a node and return its output."""
        name = f"{kind.lower()}_{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], name, **attributes))
        return name

    def small(self, name: str, array: np.ndarray) -> str:
        """Add an initializer that stands in the model's own file."""
        self.tensors.append(onnx.numpy_helper.from_array(array, name))
        return name

    def weight(self, name: str, *shape: int, scale: float = 0.0) -> str:
        """Add a weight: numbers of the block from a place of its own on, of standard deviation ``scale``."""
        size = int(np.prod(shape))
        start = 7919 * len(self.tensors) % BLOCK
        offset = -(-self.stream.tell() // ALIGNMENT) * ALIGNMENT
        self.stream.write(bytes(offset - self.stream.tell()))
        block = self.block * np.float32(scale or 1 / np.sqrt(shape[0]))
        left = size
        while left:
            part = block[start : start + left]
            self.stream.write(part.data)
            left -= part.size
            start = 0
        tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=shape, data_location=TensorProto.EXTERNAL)
        for key, value in (("location", self.location), ("offset", offset), ("length", size * 4)):
            tensor.external_data.add(key=key, value=str(value))
        self.tensors.append(tensor)
        return name


def write_decoder(folder: Path, shape: Shape, tokens: int = 4) -> Path:
    """Write a decoder of ``tokens`` tokens and return the path of its .onnx file."""
    block = np.random.default_rng(0).standard_normal(BLOCK, np.float32)
    with (folder / "decoder.data").open("wb") as stream:
        writer = _Writer(stream, "decoder.data", block)
        logits = _decoder(writer, shape, tokens)
    graph = helper.make_graph(
        writer.nodes,
        "decoder",
        [helper.make_tensor_value_info("tokens", TensorProto.INT64, [tokens])],
        [helper.make_tensor_value_info(logits, TensorProto.FLOAT, [tokens, shape.vocabulary])],
        writer.tensors,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    path = folder / "decoder.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def _decoder(writer: _Writer, shape: Shape, tokens: int) -> str:
    op = writer.op
    positions = np.arange(tokens)[:, None] / 10000.0 ** (np.arange(0, HEAD, 2) / HEAD)
    angles = np.concatenate([positions, positions], 1).astype(np.float32)
    writer.small("cos", np.cos(angles))
    writer.small("sin", np.sin(angles))
    writer.small("mask", np.triu(np.full((tokens, tokens), -1e9, np.float32), 1))
    writer.small("scale", np.float32(HEAD**-0.5))
    writer.small("epsilon", np.float32(1e-5))
    writer.small("last", np.array([-1]))
    writer.small("heads", np.array([tokens, shape.width // HEAD, HEAD]))
    writer.small("flat", np.array([tokens, shape.width]))
    hidden = op("Gather", writer.weight("embedding", shape.vocabulary, shape.width, scale=1.0), "tokens")
    for index in range(shape.layers):
        name = f"layers.{index}"
        normed = _rms_norm(writer, hidden, f"{name}.norm1", shape.width)
        hidden = op("Add", hidden, _attention(writer, normed, name, shape.width))
        normed = _rms_norm(writer, hidden, f"{name}.norm2", shape.width)
        gate = op("MatMul", normed, writer.weight(f"{name}.gate", shape.width, shape.inner))
        up = op("MatMul", normed, writer.weight(f"{name}.up", shape.width, shape.inner))
        product = op("Mul", op("Mul", gate, op("Sigmoid", gate)), up)
        hidden = op("Add", hidden, op("MatMul", product, writer.weight(f"{name}.down", shape.inner, shape.width)))
    hidden = _rms_norm(writer, hidden, "norm", shape.width)
    return op("MatMul", hidden, writer.weight("head", shape.width, shape.vocabulary))


def _rms_norm(writer: _Writer, value: str, name: str, width: int) -> str:
    op = writer.op
    mean = op("ReduceMean", op("Mul", value, value), "last", keepdims=1)
    normed = op("Div", value, op("Sqrt", op("Add", mean, "epsilon")))
    return op("Mul", normed, writer.weight(name, width, scale=1.0))


def _attention(writer: _Writer, value: str, name: str, width: int) -> str:
    op = writer.op
    parts = {}
    for part in "qkv":
        product = op("MatMul", value, writer.weight(f"{name}.{part}", width, width))
        parts[part] = op("Reshape", product, "heads")
    q, k = (_rotate(writer, parts[part]) for part in "qk")
    scores = op("MatMul", op("Transpose", q, perm=[1, 0, 2]), op("Transpose", k, perm=[1, 2, 0]))
    weights = op("Softmax", op("Add", op("Mul", scores, "scale"), "mask"), axis=-1)
    mixed = op("MatMul", weights, op("Transpose", parts["v"], perm=[1, 0, 2]))
    flat = op("Reshape", op("Transpose", mixed, perm=[1, 0, 2]), "flat")
    return op("MatMul", flat, writer.weight(f"{name}.o", width, width))


def _rotate(writer: _Writer, value: str) -> str:
    """Rotate the pairs of halves of each head by its position. Source: Su et al. 2021, "RoFormer", section 3.4."""
    op = writer.op
    turned = op("Transpose", value, perm=[1, 0, 2])
    first, second = (f"{turned}.{half}" for half in ("first", "second"))
    writer.nodes.append(helper.make_node("Split", [turned], [first, second], axis=2, num_outputs=2))
    other = op("Concat", op("Neg", second), first, axis=2)
    return op("Transpose", op("Add", op("Mul", turned, "cos"), op("Mul", other, "sin")), perm=[1, 0, 2])
