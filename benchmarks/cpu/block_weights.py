"""Weights of a few bits in blocks beside onnxruntime's MatMulNBits: layers of language models, few rows.

    python -m benchmarks.cpu.block_weights [--shapes 4096x4096 4096x11008] [--blocks 32 64 128] [--rows 1 4 16]
        [--bits 4] [--zeros no yes] [--levels 0 4] [--cpu x86-64-v3]

packager gets each layer as quantizers write QDQ, DequantizeLinear with ``block_size`` and MatMul, onnxruntime the
same weights as MatMulNBits, computed in float32 (``accuracy_level`` 0); of other levels both get MatMulNBits. Both are
in one process and take turns, tensors bound before. What is reached of the bandwidth is the bytes of packed weights,
scales and zero points that a call reads, over the bytes that a copy of as many bytes reads and writes in the same
turns, on one thread: layers of some MB are in the cache then, where a product is bound by its instructions.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper

import packager
from benchmarks.harness.measure import format_table
from packager.graph.block_weights import BlockFormat, pack

Call = Callable[[], object]
OPSET = 21
SHAPES = ["4096x4096", "4096x11008", "11008x4096", "2048x8192", "1024x4096", "896x4864"]


@dataclass(frozen=True)
class Layer:
    """Quantized weights: unsigned numbers [columns, depth], scales and zero points [columns, blocks]."""

    numbers: np.ndarray
    scales: np.ndarray
    zeros: np.ndarray | None
    block: int
    bits: int

    @property
    def read(self) -> int:
        """The bytes that a product of packager's reads: zero points are float32, as scales are."""
        return self.numbers.size * self.bits // 8 + self.scales.nbytes * (1 if self.zeros is None else 2)

    @property
    def weights(self) -> np.ndarray:
        """The weights as numbers, float64 [depth, columns]."""
        zeros = np.full_like(self.scales, 1 << self.bits - 1) if self.zeros is None else self.zeros
        spread = [
            np.repeat(a.astype(np.float64), self.block, 1)[:, : self.numbers.shape[1]] for a in (zeros, self.scales)
        ]
        return ((self.numbers - spread[0]) * spread[1]).T


def make(depth: int, columns: int, block: int, *, symmetric: bool, bits: int = 4) -> Layer:
    """Return a layer at random."""
    generator = np.random.default_rng(depth + columns + block)
    blocks = -(-depth // block)
    numbers = generator.integers(0, 1 << bits, (columns, depth), np.uint8)
    scales = generator.random((columns, blocks), np.float32) * 0.02 + 0.01
    zeros = None if symmetric else generator.integers(0, 1 << bits, (columns, blocks), np.uint8)
    return Layer(numbers, scales, zeros, block, bits)


def _model(nodes: list[onnx.NodeProto], tensors: list[onnx.TensorProto], depth: int, columns: int) -> onnx.ModelProto:
    domains = [helper.make_opsetid("", OPSET), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph(
        nodes,
        "layer",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["rows", depth])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["rows", columns])],
        tensors,
    )
    return helper.make_model(graph, opset_imports=domains, ir_version=10)


def as_qdq(layer: Layer) -> onnx.ModelProto:
    """Return the product of dequantized weights, [depth, columns], as quantizers write it."""
    columns, depth = layer.numbers.shape
    signed = layer.zeros is None
    kinds = {4: (TensorProto.INT4, TensorProto.UINT4), 8: (TensorProto.INT8, TensorProto.UINT8)}
    kind = kinds[layer.bits][0 if signed else 1]

    def quantized(name: str, numbers: np.ndarray) -> onnx.TensorProto:
        flat = numbers.T.reshape(-1) ^ ((1 << layer.bits - 1) if signed else 0)  # less the middle, in two's complement
        packed = flat if layer.bits == 8 else flat[::2] | flat[1::2] << 4
        return helper.make_tensor(name, kind, numbers.T.shape, packed.astype(np.uint8).tobytes(), raw=True)

    tensors = [quantized("w", layer.numbers), numpy_helper.from_array(np.ascontiguousarray(layer.scales.T), "s")]
    if layer.zeros is not None:
        tensors.append(quantized("z", layer.zeros))
    operands = [tensor.name for tensor in tensors]
    nodes = [
        helper.make_node("DequantizeLinear", operands, ["f"], axis=0, block_size=layer.block),
        helper.make_node("MatMul", ["x", "f"], ["y"]),
    ]
    return _model(nodes, tensors, depth, columns)


def as_matmul_nbits(layer: Layer, level: int) -> onnx.ModelProto:
    """Return the product as onnxruntime's operator."""
    columns, depth = layer.numbers.shape
    form = BlockFormat(layer.bits, layer.block, depth, has_zeros=layer.zeros is not None)
    tensors = [numpy_helper.from_array(pack(layer.numbers, form), "w"), numpy_helper.from_array(layer.scales, "s")]
    if layer.zeros is not None:
        padded = np.pad(layer.zeros, ((0, 0), (0, form.blocks % 2)))
        packed = layer.zeros if layer.bits == 8 else padded[:, ::2] | padded[:, 1::2] << 4
        tensors.append(numpy_helper.from_array(packed, "z"))
    node = helper.make_node(
        "MatMulNBits",
        ["x", *(tensor.name for tensor in tensors)],
        ["y"],
        domain="com.microsoft",
        **{"K": depth, "N": columns, "bits": layer.bits, "block_size": layer.block, "accuracy_level": level},
    )
    return _model([node], tensors, depth, columns)


def call_of_onnxruntime(session: onnxruntime.InferenceSession, x: np.ndarray, columns: int) -> tuple[Call, np.ndarray]:
    """Return a call with tensors bound, and its result."""
    y = np.empty((len(x), columns), np.float32)
    binding = session.io_binding()
    binding.bind_cpu_input("x", x)
    binding.bind_output("y", "cpu", 0, np.float32, y.shape, y.ctypes.data)
    return lambda: session.run_with_iobinding(binding), y


def turns(calls: dict[str, Call], seconds: float) -> dict[str, float]:
    """Return the seconds of a call of each, in turns: the lower quartile, since others may use the machine."""
    taken: dict[str, list[float]] = {name: [] for name in calls}
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(taken[next(iter(taken))]) < 10:
        for name, call in calls.items():
            start = time.perf_counter()
            call()
            taken[name].append(time.perf_counter() - start)
    return {name: float(np.quantile(samples[2:], 0.25)) for name, samples in taken.items()}


def measure(
    layer: Layer, level: int, rows: list[int], threads: list[int], seconds: float, targets: list[str]
) -> list[list[str]]:
    """Return the table's rows of a layer. Raises ValueError if a result is wrong."""
    columns, depth = layer.numbers.shape
    found = []
    with tempfile.TemporaryDirectory() as folder:
        path, weights = Path(folder) / "layer.onnx", layer.weights
        nbits = as_matmul_nbits(layer, level)
        onnx.save(nbits if level else as_qdq(layer), path)
        rows_dim = {"rows": (1, max(rows))}
        made = packager.build(path, output=path.with_suffix(".so"), targets=targets, dims=rows_dim)
        rival = nbits.SerializeToString()
        source = np.ones(layer.read, np.uint8)
        target = source.copy()
        for count, number in itertools.product(threads, rows):
            x = np.random.default_rng(number).standard_normal((number, depth), np.float32)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = count
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
            theirs = onnxruntime.InferenceSession(rival, options, providers=["CPUExecutionProvider"])
            with packager.load(made) as bundle:
                bundle.set_threads(count)
                session = bundle.session(threads=count)
                outputs = session.run({"x": x})
                other, y = call_of_onnxruntime(theirs, x, columns)
                calls = {
                    "packager": session.bind({"x": x}, outputs),
                    "onnxruntime": other,
                    "copy": lambda: np.copyto(target, source),
                }
                taken = turns(calls, seconds)
                wanted = x.astype(np.float64) @ weights
                for result in (next(iter(outputs.values())), y):
                    if not np.abs(result - wanted).max() < (1e-4 if level < 2 else 2e-2) * np.abs(wanted).max():
                        raise ValueError("a result is wrong")
                del calls, session
            copied = 2 * layer.read / taken["copy"]
            zeros = "" if layer.zeros is None else ", zero points"
            kind = f"{depth}x{columns}, {layer.bits} bits, blocks of {layer.block}{zeros}, level {level}"
            times = [f"{1e3 * taken[name]:.3f}" for name in ("packager", "onnxruntime")]
            share = f"{layer.read / taken['packager'] / copied:.0%}" if number == 1 else ""
            ratio = f"{taken['onnxruntime'] / taken['packager']:.2f}"
            found.append([kind, str(count), str(number), *times, ratio, f"{copied / 1e9:.1f}", share])
            print(" | ".join(found[-1]), flush=True)
    return found


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description="Weights of a few bits in blocks beside onnxruntime's MatMulNBits.")
    parser.add_argument("--shapes", nargs="+", default=SHAPES, metavar="DEPTHxCOLUMNS")
    parser.add_argument("--blocks", nargs="+", type=int, default=[32, 64, 128])
    parser.add_argument("--bits", nargs="+", type=int, default=[4], choices=[4, 8])
    parser.add_argument("--zeros", nargs="+", default=["no", "yes"], choices=["no", "yes"], help="zero points")
    parser.add_argument("--levels", nargs="+", type=int, default=[0], choices=range(5), help="accuracy_level")
    parser.add_argument("--cpu", help="one x86-64 level, such as x86-64-v3; default: packager's")
    parser.add_argument("--rows", nargs="+", type=int, default=[1, 4, 16])
    parser.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    parser.add_argument("--seconds", type=float, default=1.0, help="of turns for each configuration; default: 1")
    arguments = parser.parse_args()
    table = []
    targets = [f"llvm -mcpu={arguments.cpu}" if arguments.cpu else "llvm", "ccompiler"]
    for shape, bits, block, zeros, level in itertools.product(
        arguments.shapes, arguments.bits, arguments.blocks, arguments.zeros, arguments.levels
    ):
        depth, columns = map(int, shape.split("x"))
        layer = make(depth, columns, block, symmetric=zeros == "no", bits=bits)
        table += measure(layer, level, arguments.rows, arguments.threads, arguments.seconds, targets)
    header = ("layer", "threads", "rows", "packager ms", "onnxruntime ms", "ratio", "copy GB/s", "of the copy")
    print(format_table(header, table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
