"""What NVIDIA's estimator would choose of packager's tiles for matrix products, by the times of packager's own table.

Needs packager[build,cutlass] and nvidia-matmul-heuristics; no GPU. The ratios are of estimates, by the numbers that
were fitted to an H200 (docs/cutlass.md).
"""

from __future__ import annotations

import math

from nvMatmulHeuristics import NvMatmulHeuristicsInterfaceEx as Estimator
from nvMatmulHeuristics import NvMatmulHeuristicsMatmulLayout as Layout
from nvMatmulHeuristics import NvMatmulHeuristicsNvidiaGpu as Gpu
from nvMatmulHeuristics import NvMatmulHeuristicsTarget as Target

from packager.backends.cutlass.gemm.cost_model import GemmShape, microseconds
from packager.backends.cutlass.gemm.kernels import Sm90Tile
from packager.backends.cutlass.gemm.tiles import portfolio

SIZES = (
    *((1024, 768, 768), (1024, 3072, 768), (1024, 768, 3072), (1024, 2304, 768), (128, 2304, 768)),
    *((128, 768, 3072), (4096, 4096, 4096), (16, 4096, 4096), (4096, 3072, 768), (8192, 8192, 1024)),
)
WANTED = 16  # configurations that are asked for


def main() -> None:
    """Print for each size both choices and the ratio of their times, and the geometric mean for each of its targets."""
    tiles = [tile for tile in portfolio("sm90", "float16", "float16", alignment=8) if isinstance(tile, Sm90Tile)]
    for target in ("CUTLASS3", "CUTLASS", "GENERIC"):
        estimator = Estimator(backend=Target[target], gpu=Gpu.H200_SXM)
        logarithms = []
        for m, n, k in SIZES:
            problem = estimator.makeNvMatmulHeuristicsProblem(m, n, k, Layout.TN_ROW_MAJOR, 1)
            found = [each["kernel"] for each in estimator.get(problem, WANTED, precision="HSH")]
            blocks = list(dict.fromkeys((kernel.cta_tile_m, kernel.cta_tile_n) for kernel in found))
            times = {tile: microseconds(tile, GemmShape(m, n, k, 1), 2) for tile in tiles}
            ours = sorted(tiles, key=lambda tile: times[tile])
            theirs = min(ours, key=lambda tile: blocks.index(_block(tile)) if _block(tile) in blocks else len(blocks))
            ratio = times[theirs] / times[ours[0]]
            logarithms.append(math.log(ratio))
            print(f"{target:9} {m:5} {n:5} {k:5} {theirs.name:40} {ours[0].name:40} {ratio:.2f}")
        print(f"{target:9} geometric mean {math.exp(sum(logarithms) / len(logarithms)):.2f}")


def _block(tile: Sm90Tile) -> tuple[int, int]:
    """Return rows and columns of the result that a block of a tile computes."""
    rows, columns, _ = tile.shape
    return (columns, rows) if tile.swapped else (rows, columns)


if __name__ == "__main__":
    main()
