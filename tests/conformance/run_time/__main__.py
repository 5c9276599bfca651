"""``python -m tests.conformance.run_time``: models drawn at random, and files of the user's, compared on a GPU.

``build`` needs all of packager, onnxruntime and no GPU; ``run`` needs its deploy side and numpy.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

import packager
from packager.bundle.arrays import Array

TARGET = "cuda -arch=sm_90a"
DIMS = {"n": (1, 4)}


def main() -> None:
    """Parse the command line, and build or run."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.run_time", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    building = commands.add_parser("build")
    building.add_argument("folder", type=Path)
    building.add_argument("--seeds", type=int, nargs=2, default=(0, 20), metavar=("FIRST", "END"))
    building.add_argument("--model", type=Path, action="append", default=[], help="an ONNX file of fixed input shapes")
    building.add_argument("--target", default=TARGET)
    running = commands.add_parser("run")
    running.add_argument("folder", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "build":
        arguments.folder.mkdir(parents=True, exist_ok=True)
        for line in build(arguments.folder, range(*arguments.seeds), arguments.model, arguments.target):
            print(line, flush=True)
    else:
        results = [compare(bundle) for bundle in sorted(arguments.folder.glob("*.so"))]
        print(json.dumps({"right": sum(r["right"] for r in results), "of": len(results), "cases": results}, indent=1))


def build(folder: Path, seeds: range, models: list[Path], target: str) -> Iterator[str]:
    """Build bundles, and write inputs and onnxruntime's results beside each; yield what became of it."""
    import onnx
    import onnxruntime

    from tests.chains_at_random import Growth, inputs

    cases = []
    for seed in seeds:
        path = folder / f"seed_{seed}.onnx"
        onnx.save(Growth(seed).model(3 + seed % 8), path)
        cases.append((path, inputs(seed)))
    for path in models:
        rng = np.random.default_rng(0)
        given = onnxruntime.InferenceSession(path).get_inputs()
        cases.append((path, [{i.name: rng.random(i.shape).astype(np.float32) for i in given} for _ in range(3)]))
    for path, runs in cases:
        dims = DIMS if path.stem.startswith("seed_") else {}
        try:
            packager.build(path, folder / f"{path.stem}.so", targets=[target], dims=dims)
        except packager.PackagerError as error:
            yield f"{path.stem}: refused: {error}"
            continue
        session = onnxruntime.InferenceSession(path)
        arrays: dict[str, Array] = {}
        for number, feeds in enumerate(runs):
            arrays |= {f"in{number}/{name}": array for name, array in feeds.items()}
            results = zip(session.get_outputs(), session.run(None, feeds), strict=True)
            arrays |= {f"out{number}/{output.name}": array for output, array in results}
        np.savez_compressed(folder / f"{path.stem}.npz", **arrays)
        yield f"{path.stem}: built"


def compare(bundle: Path) -> dict[str, object]:
    """Run a bundle twice with each of its inputs; return whether all results have the right shapes and elements."""
    arrays = np.load(bundle.with_suffix(".npz"))
    numbers = sorted({int(name.split("/")[0][2:]) for name in arrays.files if name.startswith("in")})
    wrong: list[str] = []
    largest = seconds = 0.0
    with packager.load(bundle) as loaded:
        for number in (*numbers, *numbers):
            feeds = {n.split("/", 1)[1]: arrays[n] for n in arrays.files if n.startswith(f"in{number}/")}
            start = time.perf_counter()
            got = loaded.run(feeds)
            seconds = time.perf_counter() - start
            for name in (n for n in arrays.files if n.startswith(f"out{number}/")):
                want, have = arrays[name].astype(np.float64), np.asarray(got[name.split("/", 1)[1]]).astype(np.float64)
                if want.shape != have.shape:
                    wrong.append(f"{name}: {have.shape} for {want.shape}")
                elif want.size:
                    scale = max(float(np.abs(want[np.isfinite(want)]).max(initial=0)), 1.0)
                    with np.errstate(invalid="ignore"):
                        off = np.where(
                            (want == have) | (np.isnan(want) & np.isnan(have)), 0, np.abs(want - have) / scale
                        )
                    largest = max(largest, float(off.max()))
    right = not wrong and largest < 1e-4
    return {"name": bundle.stem, "right": right, "largest": largest, "seconds": seconds, "wrong": wrong[:3]}


if __name__ == "__main__":
    main()
