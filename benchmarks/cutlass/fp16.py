"""Compare kernels of the cutlass backend with torch's libraries: built here, run on a machine with a GPU.

    python -m benchmarks.cutlass.fp16 build -o build/gpu_cutlass [--kernels 1]          (packager[build,cutlass])
    python -m benchmarks.cutlass.fp16 run build/gpu_cutlass -o results.json [--set gemm]     (an H100 or H200, torch)

``build`` compiles for sm_90a all kernels that packager chooses from for each problem, or the first ``--kernels``;
kernels come from and go to the user's build cache. ``run`` compares each with torch in float32 on random data, over
memory that holds NaN, and times it and torch's own in CUDA graphs that are replayed in turns: each of several calls on
operands of its own, more of them than the L2 cache holds. A ratio is torch's time over ours; above 1 ours is faster.
"""

from __future__ import annotations

import math
import sys
from dataclasses import asdict
from typing import Any

from benchmarks.cutlass.command import Benchmark
from benchmarks.cutlass.problems import FP16
from benchmarks.harness.measure import Threshold

# Of each group: which column's geometric mean or worst ratio is at least how large.
THRESHOLDS = (
    ("linear", "choice", "geomean", 0.93),
    ("linear", "best", "geomean", 1.0),
    ("linear", "best", "worst", 0.85),
    ("bmm", "best", "worst", 0.9),
    ("attention", "choice", "worst", 0.9),
    ("conv", "best", "geomean", 0.95),
)
RIVALS = ("linear", "bmm", "sdpa", "cudnn_convolution_relu", "conv2d")
Summary = dict[str, dict[str, dict[str, float]]]


def summarize(results: dict[str, dict[str, Any]]) -> Summary:
    """Return for each group and column the geometric mean and the worst of the ratios; NaN where one is."""
    groups: Summary = {}
    for group in dict.fromkeys(found["group"] for found in results.values()):
        every = [found["ratios"] for found in results.values() if found["group"] == group]
        groups[group] = {}
        for column in ("choice", "best"):
            values = [each[column] for each in every]
            whole = not any(math.isnan(value) for value in values)
            mean = math.exp(sum(map(math.log, values)) / len(values)) if whole else math.nan
            groups[group][column] = {"geomean": mean, "worst": min(values) if whole else math.nan, "count": len(values)}
    return groups


def find_thresholds(summary: Summary, *, every_tile: bool) -> list[Threshold]:
    """Return the thresholds of groups that were measured in full; of the best kernel only where all tiles were."""
    sizes = {group: sum(problem.group == group for each in FP16.values() for problem in each) for group in summary}
    return [
        Threshold(f"{group}, {measure} of {column}", summary[group][column][measure], limit, "", True)
        for group, column, measure, limit in THRESHOLDS
        if group in summary and summary[group][column]["count"] == sizes[group] and (every_tile or column == "choice")
    ]


def close(report: dict[str, Any]) -> tuple[list[str], bool]:
    """Add the summary and the thresholds to a report."""
    summary = report["summary"] = summarize(report["problems"])
    thresholds = find_thresholds(summary, every_tile=report["tiles"] == "all")
    report["bars"] = [asdict(each) | {"met": each.met} for each in thresholds]
    said = []
    for group, columns in summary.items():
        parts = [f"{column} x{found['geomean']:.3f} (worst x{found['worst']:.2f})" for column, found in columns.items()]
        said.append(f"{group:10} {columns['choice']['count']:3} problems, geometric mean: {', '.join(parts)}")
    return [*said, *map(str, thresholds)], all(each.met for each in thresholds)


if __name__ == "__main__":
    sys.exit(Benchmark("gpu_cutlass", FP16, "benchmarks.cutlass.fp16_cases", 0, RIVALS, close).main(__doc__))
