"""Time builds of BERT-base for CUTLASS where there is no GPU: from an empty cache, from one that has the kernels.

And measure what the bundle has beside its weights. Needs packager[build,cutlass], torch and transformers.

    python -m benchmarks.cutlass.build_cost -o benchmarks/results/gpu_build_cost.json
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import packager
from benchmarks.cpu.engines import run_packager
from benchmarks.gpu import models


def build(model: Path, output: Path, cache: Path, arch: str) -> dict[str, Any]:
    """Build in a process of its own; return seconds, kernels that were compiled, and sizes."""
    before = kernels(cache)
    options = ["-t", f"cuda -arch={arch}", "-t", "cutlass", "--precision", "fp16"]
    start = time.perf_counter()
    run_packager(cache.parent, "build", model, "-o", output, *options)
    seconds = time.perf_counter() - start
    manifest = packager.inspect(output).manifest
    return {
        "seconds": round(seconds, 1),
        "kernels_compiled": kernels(cache) - before,
        "kernels_in_bundle": len({name for entry in manifest.selection for name in entry.candidates}),
        "primitive_functions_with_candidates": len(manifest.selection),
        "bytes_beside_weights": manifest.sizes.file - manifest.weights.bytes,
    }


def kernels(cache: Path) -> int:
    """Return how many kernels of CUTLASS a cache holds."""
    return len(list(cache.rglob("pk_*.fatbin")))


def main() -> int:
    """Measure, and write the results."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--arch", default="sm_90a")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cache = folder / "cache"
        results: dict[str, Any] = {}
        for what, layers, part in (("cold", 12, "a"), ("same kernels, six layers", 6, "b"), ("same again", 12, "a")):
            place = folder / part
            place.mkdir(exist_ok=True)
            model = next(iter(place.glob("*.pt2")), None) or models.bert(place, layers=layers, batch=8).path
            if what == "same again":  # the kernels are in the cache, the bundle is not
                shutil.rmtree(cache / "packager" / "bundle")
            results[what] = build(model, place / "bert.so", cache, given.arch)
            print(what, results[what], flush=True)
    record = {"arch": given.arch, "processors": os.cpu_count(), "results": results}
    given.output.write_text(json.dumps(record, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
