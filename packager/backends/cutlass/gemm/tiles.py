"""The portfolio of GEMM tiles that the cost model ranks.

Measured on an H200 with fp16 and bf16: a portfolio that is good at most sizes, and tiles that make one wave of blocks
for the widths of common transformers.
"""

from __future__ import annotations

from dataclasses import replace

from packager.backends.cutlass.core.element_types import ELEMENTS
from packager.backends.cutlass.gemm.kernels import TYPES
from packager.backends.cutlass.gemm.tilings import Sm80Tile, Sm90Tile, Tile, fits

# K is in elements of 16 bits.
SM90 = (
    Sm90Tile((64, 128, 64), (2, 1)),
    Sm90Tile((128, 128, 64), (2, 1)),
    Sm90Tile((64, 64, 128)),
    Sm90Tile((256, 128, 64), (1, 2), "cooperative"),
    Sm90Tile((128, 256, 64), (2, 1), "cooperative"),
    Sm90Tile((64, 16, 128), swapped=True),
    Sm90Tile((64, 32, 128), swapped=True),
    # One wave of 132 SMs: N = 768, 2304 and 3072.
    Sm90Tile((64, 96, 64), schedule="plain"),
    Sm90Tile((64, 96, 128), schedule="plain"),
    Sm90Tile((128, 144, 64), schedule="cooperative", epilogue=(128, 48)),
    Sm90Tile((64, 192, 64), schedule="plain", stages=3, blocks=2),
    Sm90Tile((128, 192, 64), schedule="cooperative"),
    Sm90Tile((256, 96, 64), schedule="cooperative"),
)
# Of 17 to 512 rows and a matrix [n, k]: of 68 tiles that were measured on an H100 with fp16 at 115 sizes of 64 to 2,048
# rows (benchmarks/cutlass/fp16.py, --trial).
SM90_FEW = (
    Sm90Tile((64, 32, 128), (2, 1)),
    Sm90Tile((64, 64, 128), (2, 1)),
    Sm90Tile((64, 96, 128), schedule="plain"),
    Sm90Tile((64, 128, 64), (2, 1)),
    Sm90Tile((64, 192, 64), (2, 1)),
    Sm90Tile((128, 96, 64), (2, 1), "cooperative"),
    Sm90Tile((128, 128, 64), (2, 1)),
    Sm90Tile((128, 128, 64), (1, 2)),
    Sm90Tile((128, 160, 64), schedule="cooperative"),
    Sm90Tile((128, 192, 64), (1, 2), "cooperative"),
    Sm90Tile((256, 96, 64), schedule="cooperative"),
    Sm90Tile((256, 128, 64), (1, 2), "cooperative"),
    Sm90Tile((256, 160, 64), (1, 2), "cooperative"),
    Sm90Tile((64, 16, 128), swapped=True),
    Sm90Tile((64, 32, 128), swapped=True),
    Sm90Tile((64, 64, 128), (2, 1), swapped=True),
)
_SM80 = {
    2: (
        Sm80Tile((64, 64, 64), (32, 32), 5),
        Sm80Tile((64, 64, 64), (32, 32), 5, slices=0),
        Sm80Tile((128, 128, 64), (64, 64), 3),
        Sm80Tile((16, 128, 64), (16, 32), 5),
    ),
    4: (
        Sm80Tile((64, 64, 32), (32, 32), 3),
        Sm80Tile((64, 64, 16), (32, 32), 4, slices=0),
        Sm80Tile((128, 128, 16), (32, 64), 3),
    ),
}
# For single elements of 16 bits, which have no asynchronous copy.
_SM80_NARROW = (Sm80Tile((64, 64, 32), (32, 32), 2),)


def portfolio(
    family: str, dtype: str, out: str, *, alignment: int, b_rows: bool = False, few: bool = False
) -> tuple[Tile, ...]:
    """Return the tiles of a family (``sm90`` or ``sm80``) for the types of a and b, and of d; may be empty.

    ``alignment`` is the number of elements per access of a and b, ``b_rows`` whether b is [k, n], ``few``
    whether there are at most 512 rows.
    """
    element, size = TYPES[dtype], ELEMENTS[dtype].size
    if family == "sm90":
        if not element.sm90 or alignment * size != 16 or (b_rows and not element.rows):
            return ()
        tiles = (
            replace(tile, shape=(*tile.shape[:2], tile.shape[2] * 2 // size)) for tile in (SM90_FEW if few else SM90)
        )
        return tuple(tile for tile in tiles if fits(tile, out))
    return _SM80_NARROW if alignment * size == 2 else _SM80[size]
