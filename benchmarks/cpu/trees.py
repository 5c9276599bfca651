"""Gradient boosting beside onnxruntime and tl2cgen: 500 trees of depth 8, one row and many, on one thread and two.

    python -m benchmarks.cpu.trees MODEL.onnx [--tl2cgen MODEL.so]

The model has one input, [rows, features], and dynamic rows; ``--make`` writes one with xgboost and onnxmltools first,
and the library of tl2cgen beside it, if these packages are installed. All engines are in one process and take turns,
a call each with tensors that are bound before, so that others on the machine disturb all of them. Every turn has other
rows: the same ones again and again would be learned by the branch predictor.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import onnxruntime

import packager
from benchmarks.harness.measure import Spread, format_table

TREES, DEPTH, FEATURES, SAMPLES = 500, 8, 30, 20000
SIZES = (1, 256)
BATCHES = 64  # of different rows
Call = Callable[[], object]
SESSIONS: list[object] = []  # bound calls do not keep theirs


def make(path: Path) -> None:
    """Train the model and write it, and as a library of tl2cgen."""
    import tl2cgen
    import treelite
    import xgboost
    from onnxmltools.convert import convert_xgboost
    from onnxmltools.convert.common.data_types import FloatTensorType

    generator = np.random.default_rng(0)
    x = generator.normal(size=(SAMPLES, FEATURES)).astype(np.float32)
    y = x[:, 0] * x[:, 1] + np.sin(x[:, 2]) + 0.1 * generator.normal(size=SAMPLES)
    model = xgboost.XGBRegressor(n_estimators=TREES, max_depth=DEPTH, tree_method="hist", min_child_weight=0)
    model.fit(x, y)
    converted = convert_xgboost(model, initial_types=[("x", FloatTensorType([None, FEATURES]))])
    path.write_bytes(converted.SerializeToString())
    forest = treelite.frontend.from_xgboost(model.get_booster())
    library = str(path.with_suffix(".tl2cgen.so"))
    tl2cgen.export_lib(forest, toolchain="gcc", libpath=library, params={"parallel_comp": 16})


def build(path: Path, targets: list[str], most: int) -> Path:
    """Return the bundle of a model whose rows are dynamic."""
    model = onnx.load(path)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "rows"
    named, bundle = path.with_suffix(".rows.onnx"), path.with_suffix(".bundle.so")
    onnx.save(model, named)
    packager.build(named, output=bundle, dims={"rows": (1, most)}, targets=targets or None)
    return bundle


def calls_of_packager(bundle: packager.Bundle, batches: list[np.ndarray], threads: int) -> list[Call]:
    """Return a call for each batch."""
    bundle.set_threads(threads)
    session = bundle.session(threads=threads)
    SESSIONS.append(session)
    (name,) = (spec.name for spec in bundle.inputs)
    return [session.bind({name: x}, session.run({name: x})) for x in batches]


def calls_of_onnxruntime(path: Path, batches: list[np.ndarray], threads: int) -> list[Call]:
    """Return a call for each batch."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    calls: list[Call] = []
    for x in batches:
        binding = session.io_binding()
        binding.bind_cpu_input(session.get_inputs()[0].name, x)
        for output in session.get_outputs():
            binding.bind_output(output.name)
        calls.append(lambda binding=binding: session.run_with_iobinding(binding))
    return calls


def calls_of_tl2cgen(library: Path, batches: list[np.ndarray], threads: int) -> list[Call]:
    """Return a call for each batch."""
    import tl2cgen

    predictor = tl2cgen.Predictor(str(library), nthread=threads)
    matrices = [tl2cgen.DMatrix(x) for x in batches]
    return [lambda matrix=matrix: predictor.predict(matrix) for matrix in matrices]


def measure(engines: dict[str, list[Call]], rounds: int) -> dict[str, Spread]:
    """Return the microseconds of a call of each engine."""
    times: dict[str, list[float]] = {name: [] for name in engines}
    for number in range(rounds + 8):
        for name, calls in engines.items():
            call = calls[number % len(calls)]
            start = time.perf_counter()
            call()
            if number >= 8:
                times[name].append(1e6 * (time.perf_counter() - start))
    return {name: Spread.of(samples) for name, samples in times.items()}


def main() -> int:
    """Measure and report."""
    parser = argparse.ArgumentParser(description="Gradient boosting beside onnxruntime and tl2cgen.")
    parser.add_argument("model", type=Path)
    parser.add_argument("--make", action="store_true", help="train the model with xgboost first")
    parser.add_argument("--target", "-t", action="append", default=[])
    parser.add_argument("--rounds", type=int, default=300)
    arguments = parser.parse_args()
    if arguments.make:
        make(arguments.model)
    bundle = packager.load(build(arguments.model, arguments.target, max(SIZES)))
    library = arguments.model.with_suffix(".tl2cgen.so")
    features = int(bundle.inputs[0].shape[1])
    generator = np.random.default_rng(1)
    rows = []
    for threads in (1, 2):
        for size in SIZES:
            x = generator.normal(size=(BATCHES, size, features)).astype(np.float32)
            engines = {
                "packager": calls_of_packager(bundle, list(x), threads),
                "onnxruntime": calls_of_onnxruntime(arguments.model, list(x), threads),
            }
            if library.exists():
                engines["tl2cgen"] = calls_of_tl2cgen(library, list(x), threads)
            found = measure(engines, arguments.rounds)
            own = found["packager"].median
            rows += [
                [str(threads), str(size), name, str(spread), f"{spread.median / own:.2f}"]
                for name, spread in found.items()
            ]
    print(format_table(("threads", "rows", "engine", "us, median (quartiles)", "x packager"), rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
