"""Time what sorts, compacts and suppresses on a GPU: built on a machine that has none, run on one that has.

    python -m benchmarks.gpu.sorting build build/gpu_sorting           (packager[build], onnxruntime, a CUDA toolkit)
    python -m benchmarks.gpu.sorting run build/gpu_sorting             (a GPU, numpy)

Each case is a model of one operator, compared with onnxruntime bit for bit. Times are microseconds: the sum of the
kernels, each measured alone, and a run, with copies of inputs and outputs from and to the host.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import packager

TIMES = 10
SECONDS = 2.0  # for the runs of a case
TARGET = "cuda -arch=sm_90a"


@dataclass(frozen=True)
class Case:
    """A node, the extents of its inputs, and its constants."""

    op: str
    shapes: tuple[tuple[int, ...], ...]
    constants: Mapping[str, Any] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    outputs: int = 1


def top(k: int, *shape: int) -> Case:
    """Return a TopK of the last axis."""
    return Case("TopK", (shape,), {"k": np.array([k], np.int64)}, outputs=2)


def boxes(number: int, classes: int, most: int, least: float) -> Case:
    """Return a NonMaxSuppression of random boxes."""
    constants = {"most": np.array([most], np.int64), "limit": np.array([0.5], np.float32)}
    constants["least"] = np.array([least], np.float32)
    return Case("NonMaxSuppression", ((1, number, 4), (1, classes, number)), constants)


CASES: Mapping[str, Case] = {
    "topk_3000_10": top(10, 3000),
    "topk_20000_300": top(300, 20_000),
    "topk_64x4096_50": top(50, 64, 4096),
    "topk_1000000_100": top(100, 1_000_000),
    "sort_1000000": top(1_000_000, 1_000_000),
    "nonzero_1000": Case("NonZero", ((1000,),)),
    "nonzero_1000000": Case("NonZero", ((1000, 1000),)),
    "unique_3000": Case("Unique", ((3000,),), outputs=4),
    "unique_20000": Case("Unique", ((20_000,),), outputs=4),
    "nms_3000": boxes(3000, 1, 3000, 0.0),
    "nms_27000": boxes(27_000, 1, 27_000, 0.0),
    "nms_80x8400_300": boxes(8400, 80, 300, 0.25),
}


def main() -> None:
    """Parse the command line, and build or run."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.sorting", description=__doc__)
    parser.add_argument("command", choices=("build", "run"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=list(CASES), choices=CASES)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    print("case right kernels_us run_us")
    for name in arguments.only:
        if arguments.command == "build":
            build(name, CASES[name], arguments.folder)
        elif (arguments.folder / f"{name}.so").exists():
            print(name, *run(name, arguments.folder), flush=True)


def inputs_of(name: str, case: Case) -> dict[str, Any]:
    """Return random inputs with many equal elements."""
    random = np.random.default_rng(len(name))
    if case.op == "NonMaxSuppression":
        corner, size = random.random((*case.shapes[0][:2], 2)), random.random((*case.shapes[0][:2], 2)) * 0.05
        scores = random.random(case.shapes[1])
        return {
            "x0": np.concatenate([corner, corner + size], -1).astype(np.float32),
            "x1": (np.round(scores * 10000) / 10000).astype(np.float32),
        }
    (shape,) = case.shapes
    x = np.round(random.standard_normal(shape) * 1000).astype(np.float32)
    return {"x0": np.where(random.random(shape) < 0.5, 0, x).astype(np.float32)}


def build(name: str, case: Case, folder: Path) -> None:
    """Write the model, its bundle, and inputs with onnxruntime's outputs."""
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper

    given = [f"x{number}" for number in range(len(case.shapes))]
    results = [f"y{number}" for number in range(case.outputs)]
    node = helper.make_node(case.op, [*given, *case.constants], results, **case.attributes)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in zip(given, case.shapes, strict=True)],
        [
            helper.make_tensor_value_info(
                n, TensorProto.FLOAT if not number and case.outputs > 1 else TensorProto.INT64, None
            )
            for number, n in enumerate(results)
        ],
        [onnx.numpy_helper.from_array(value, key) for key, value in case.constants.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    path, feeds = folder / f"{name}.onnx", inputs_of(name, case)
    onnx.save(model, path)
    wanted = onnxruntime.InferenceSession(path).run(None, feeds)
    np.savez_compressed(folder / f"{name}.npz", **feeds, **dict(zip(results, wanted, strict=True)))
    packager.build(path, folder / f"{name}.so", targets=[TARGET], golden=None)
    print(name, "built", flush=True)


def run(name: str, folder: Path) -> tuple[bool, str, str]:
    """Return whether all runs give onnxruntime's results, and the times."""
    arrays = np.load(folder / f"{name}.npz")
    feeds = {key: arrays[key] for key in arrays.files if key.startswith("x")}
    wanted = {key: arrays[key] for key in arrays.files if key.startswith("y")}
    right, seconds = True, []
    with packager.load(folder / f"{name}.so") as bundle, bundle.session() as session:
        begin = time.perf_counter()
        for number in range(TIMES):
            start = time.perf_counter()
            made = session.run(feeds)
            seconds.append(time.perf_counter() - start)
            right = right and all(np.array_equal(made[key], wanted[key]) for key in wanted)
            if number > 2 and time.perf_counter() - begin > SECONDS:
                break
        kernels = sum(step.duration_ns for step in session.profile(feeds))
    return right, f"{kernels / 1e3:.0f}", f"{statistics.median(seconds) * 1e6:.0f}"


if __name__ == "__main__":
    main()
