"""Forms of models on a GPU: dims with buckets and with relations, and weights above 2 GiB, against CPU references.

``build`` makes the bundles on a machine without a GPU, with what onnxruntime computes beside them. ``run`` compares on
the GPU machine, with CUDA graphs and without. The large bundle holds few numbers many times: `zstd --long=31` makes a
file of it that is quickly carried.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.bundle.decoder_model import shape_of, write_decoder

TARGETS = ("cuda -arch=sm_90a",)
GIGABYTES = 2.4
TIMES = 3  # the first run of a shape calls the kernels, the second captures a CUDA graph, the third replays it
MOST_ERROR = 1e-4  # of the greatest output
ENCODER = """<ir_version: 8, opset_import: ["": 17]>
encoder (float[n,seq,64] x) => (float[n,seq,64] y) {
  k = MatMul(x, a)  t = Transpose<perm = [0, 2, 1]>(k)  s = MatMul(x, t)  p = Softmax(s)  m = MatMul(p, x)
  y = MatMul(m, b)
}"""
HALVES = """<ir_version: 8, opset_import: ["": 17]>
halves (float[1,8,h,h] x) => (float[1,8,h,h] y) {
  d = MaxPool<kernel_shape = [2, 2], strides = [2, 2]>(x)  c = Conv<pads = [1, 1, 1, 1]>(d, w)
  u = Resize<mode = "nearest">(c, , scales)  y = Add(x, u)
}"""
ENCODER_SIZES = [(n, seq) for seq in (32, 64, 128) for n in (1, 3, 4)]
EVEN_SIZES = [16, 2, 30, 64]
ODD_SIZE = 9


def build(folder: Path, large: bool = False, targets: Sequence[str] = TARGETS) -> None:
    """Build all bundles, and write what they shall compute."""
    import onnx
    import onnx.parser

    import packager

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(0)
    weights = {name: rng.standard_normal((64, 64)).astype(np.float32) / 16 for name in "ab"}
    encoder = _model(onnx.parser.parse_model(ENCODER), folder / "encoder.onnx", weights)
    packager.build(
        encoder, folder / "encoder.so", targets=targets, dims={"n": (1, 4), "seq": packager.Buckets(32, 64, 128)}
    )
    inputs = [rng.standard_normal((*size, 64)).astype(np.float32) for size in ENCODER_SIZES]
    _expect(encoder, folder / "encoder.npz", inputs)
    weights = {
        "w": rng.standard_normal((8, 8, 3, 3)).astype(np.float32) / 8,
        "scales": np.array([1, 1, 2, 2], np.float32),
    }
    halves = _model(onnx.parser.parse_model(HALVES), folder / "halves.onnx", weights)
    packager.build(halves, folder / "halves.so", targets=targets, dims={"h": (2, 64)})
    inputs = [rng.standard_normal((1, 8, h, h)).astype(np.float32) for h in EVEN_SIZES]
    _expect(halves, folder / "halves.npz", inputs)
    if large:
        model = write_decoder(folder, shape_of(GIGABYTES))
        packager.build(model, folder / "large.so", targets=targets)
        _expect(model, folder / "large.npz", [np.array([5, 16383, 77, 0])])


def run(folder: Path) -> dict[str, Any]:
    """Compare; return the results."""
    names = [path.stem for path in sorted(folder.glob("*.npz"))]
    results: dict[str, Any] = {}
    for name in names:
        for graph in ("auto", "off"):
            results[f"{name}, graph {graph}"] = _compare(folder / name, graph=graph)
    results["halves, odd"] = _refusal(folder / "halves.so")
    return results


def _model(model: Any, path: Path, weights: dict[str, np.ndarray]) -> Path:
    import onnx

    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in weights.items())
    onnx.save(model, path)
    return path


def _expect(model: Path, path: Path, inputs: list[np.ndarray]) -> None:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_prepacking", "1")
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    arrays = {f"in_{number}": array for number, array in enumerate(inputs)}
    arrays |= {f"out_{number}": session.run(None, {name: array})[0] for number, array in enumerate(inputs)}
    np.savez(path, **arrays)


def _compare(stem: Path, **options: str) -> dict[str, Any]:
    import packager

    worst, start = 0.0, time.perf_counter()
    with packager.load(stem.with_suffix(".so")) as bundle, bundle.session(**options) as session:
        loaded = time.perf_counter() - start
        with np.load(stem.with_suffix(".npz")) as arrays:
            cases = [(arrays[f"in_{number}"], arrays[f"out_{number}"]) for number in range(len(arrays) // 2)]
        for _ in range(TIMES):  # every size again after every other: what graphs hold must not depend on the order
            for inputs, expected in cases:
                (made,) = session.run({bundle.inputs[0].name: inputs}).values()
                worst = max(worst, float(np.abs(made - expected).max() / np.abs(expected).max()))
    return {"relative_error": worst, "right": worst < MOST_ERROR, "load_s": loaded}


def _refusal(path: Path) -> dict[str, Any]:
    import packager

    with packager.load(path) as bundle:
        try:
            bundle.run({"x": np.zeros((1, 8, ODD_SIZE, ODD_SIZE), np.float32)})
        except packager.PackagerError as error:
            return {"right": "do not fit" in str(error), "error": str(error)}
    return {"right": False}


def main() -> None:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    builder = commands.add_parser("build")
    builder.add_argument("-o", "--output", type=Path, required=True)
    builder.add_argument("--large", action="store_true", help=f"a decoder of {GIGABYTES} GB, too")
    runner = commands.add_parser("run")
    runner.add_argument("folder", type=Path)
    runner.add_argument("-o", "--output", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "build":
        build(arguments.output, arguments.large)
        return
    text = json.dumps(run(arguments.folder), indent=1)
    print(text)
    if arguments.output:
        arguments.output.write_text(text + "\n")


if __name__ == "__main__":
    main()
