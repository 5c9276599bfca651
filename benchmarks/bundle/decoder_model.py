"""Write a decoder in the style of Llama as an ONNX file with external data, of any size, its weights random.

Weights go to the file one after the other and are never held together.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import ceil
from pathlib import Path
from typing import BinaryIO

import numpy as np
import onnx
import onnx.parser
from onnx import TensorProto, numpy_helper

ALIGNMENT = 4096
BLOCK = 1 << 20  # elements of the block of random numbers that all weights are windows of
HEAD = 64
PROJECT = """
  {x} = MatMul({n}a, {n}w{part})  {x}h = Reshape({x}, heads)
"""
ATTENTION = """
  {n}vt = Transpose<perm = [1, 0, 2]>({n}vh)  {n}keys = Transpose<perm = [0, 2, 1]>({n}kr)
  {n}s = MatMul({n}qr, {n}keys)  {n}ss = Mul({n}s, scale)  {n}sm = Add({n}ss, mask)  {n}p = Softmax<axis = -1>({n}sm)
  {n}m = MatMul({n}p, {n}vt)  {n}mt = Transpose<perm = [1, 0, 2]>({n}m)  {n}mf = Reshape({n}mt, flat)
  {n}o = MatMul({n}mf, {n}wo)  {n}h = Add({x}, {n}o)
"""
MLP = """
  {n}g = MatMul({n}b, {n}gate)  {n}gs = Sigmoid({n}g)  {n}gg = Mul({n}g, {n}gs)  {n}u = MatMul({n}b, {n}up)
  {n}gu = Mul({n}gg, {n}u)  {n}d = MatMul({n}gu, {n}down)  {n}y = Add({n}h, {n}d)
"""
NORM = """
  {y}q = Mul({x}, {x})  {y}m = ReduceMean<keepdims = 1>({y}q, last)  {y}e = Add({y}m, epsilon)  {y}r = Sqrt({y}e)
  {y}d = Div({x}, {y}r)  {y} = Mul({y}d, {w})
"""
# Rotates the pairs of halves of each head by its position. Source: Su et al. 2021, "RoFormer", section 3.4.
ROTATE = """
  {x}t = Transpose<perm = [1, 0, 2]>({x}h)  {x}1, {x}2 = Split<axis = 2, num_outputs = 2>({x}t)  {x}n = Neg({x}2)
  {x}x = Concat<axis = 2>({x}n, {x}1)  {x}c = Mul({x}t, cos)  {x}s = Mul({x}x, sin)  {x}r = Add({x}c, {x}s)
"""


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
    """Return the smallest decoder of this size, in units of 10**9 bytes of float32."""
    one = Shape(width, 4 * width, 1, 16384)
    layer = one.parameters - Shape(width, 4 * width, 0, 16384).parameters
    count = ceil((gigabytes * 1e9 / 4 - (one.parameters - layer)) / layer)
    return Shape(width, 4 * width, max(count, 1), 16384)


@dataclass
class _Weights:
    """Writes weights to ``stream``, and collects initializers."""

    stream: BinaryIO
    location: str
    block: np.ndarray
    tensors: list[onnx.TensorProto] = field(default_factory=list)

    def add(self, name: str, *shape: int, scale: float = 0.0) -> None:
        """Add a weight: numbers of the block from an offset of its own on, of standard deviation ``scale``."""
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


def write_decoder(folder: Path, shape: Shape, tokens: int = 4) -> Path:
    """Write a decoder of ``tokens`` tokens and return the path of its .onnx file."""
    block = np.random.default_rng(0).standard_normal(BLOCK, np.float32)
    with (folder / "decoder.data").open("wb") as stream:
        weights = _Weights(stream, "decoder.data", block)
        _add_weights(weights, shape)
    head = f"decoder (int64[{tokens}] tokens) => (float[{tokens},{shape.vocabulary}] logits)"
    steps, last = ["x = Gather(embedding, tokens)"], "x"
    for n in (f"l{index}_" for index in range(shape.layers)):
        steps += [NORM.format(x=last, y=f"{n}a", w=f"{n}norm1")]
        steps += [PROJECT.format(n=n, x=f"{n}{part}", part=part) for part in "qkv"]
        steps += [ROTATE.format(x=f"{n}{part}") for part in "qk"] + [ATTENTION.format(n=n, x=last)]
        steps += [NORM.format(x=f"{n}h", y=f"{n}b", w=f"{n}norm2"), MLP.format(n=n)]
        last = f"{n}y"
    steps += [NORM.format(x=last, y="normed", w="norm"), "logits = MatMul(normed, head)"]
    model = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["": 18]> {head} {{ {" ".join(steps)} }}')
    positions = np.arange(tokens)[:, None] / 10000.0 ** (np.arange(0, HEAD, 2) / HEAD)
    angles = np.concatenate([positions, positions], 1).astype(np.float32)
    small = {"cos": np.cos(angles), "sin": np.sin(angles), "last": np.array([-1])}
    small |= {"mask": np.triu(np.full((tokens, tokens), -1e9, np.float32), 1), "flat": np.array([tokens, shape.width])}
    small |= {"scale": np.array(HEAD**-0.5, np.float32), "epsilon": np.array(1e-5, np.float32)}
    small |= {"heads": np.array([tokens, shape.width // HEAD, HEAD])}
    model.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in small.items())
    model.graph.initializer.extend(weights.tensors)
    path = folder / "decoder.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def _add_weights(weights: _Weights, shape: Shape) -> None:
    width, inner = shape.width, shape.inner
    weights.add("embedding", shape.vocabulary, width, scale=1.0)
    for index in range(shape.layers):
        name = f"l{index}_"
        for norm in ("norm1", "norm2"):
            weights.add(f"{name}{norm}", width, scale=1.0)
        for part in "qkvo":
            weights.add(f"{name}w{part}", width, width)
        for part, extents in {"gate": (width, inner), "up": (width, inner), "down": (inner, width)}.items():
            weights.add(f"{name}{part}", *extents)
    weights.add("norm", width, scale=1.0)
    weights.add("head", width, shape.vocabulary)
