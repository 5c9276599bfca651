"""Compare kernels of 8 bits with exact sums and torch: built here, run on a machine with a GPU.

    python -m benchmarks.cutlass.int8 build -o build/gpu_int8                       (packager[build,cutlass])
    python -m benchmarks.cutlass.int8 run build/gpu_int8 -o results.json [--check]     (an H100 or H200, torch)

``build`` compiles for sm_90a the first kernels that packager takes for each problem; they come from and go to the
user's build cache. ``run`` compares all results with sums in float64, which are exact: int32 has to be equal, and so
have integers of 8 bits but where a quotient is all but half way between two. It times the sets that are no mere checks
in CUDA graphs. torch has no products of int8 that are scaled and rounded, so that its ``_int_mm`` does less than ours.
"""

from __future__ import annotations

import sys

from benchmarks.cutlass.command import Benchmark
from benchmarks.cutlass.problems import INT8

if __name__ == "__main__":
    sys.exit(Benchmark("gpu_int8", INT8, "benchmarks.cutlass.int8_cases", 1).main(__doc__))
