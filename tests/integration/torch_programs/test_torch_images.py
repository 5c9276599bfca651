"""Resizing of images, lines and volumes in torch.export programs, through the whole of packager, against torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.torch_programs import check

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")


def test_resizing(tmp_path: Path) -> None:
    """By factors that give no whole extents, with antialiasing, and of integers; the batch is symbolic."""
    resize = torch.nn.functional.interpolate

    def forward(x: Any, line: Any, volume: Any) -> Any:
        bytes_ = (9 * x.abs()).to(torch.uint8)
        return (
            *(resize(x, scale_factor=1.3, mode=mode) for mode in ("nearest", "nearest-exact", "bilinear", "bicubic")),
            *(resize(x, size=(4, 13), mode=mode, antialias=True) for mode in ("bilinear", "bicubic")),
            resize(x, scale_factor=(0.6, 1.4), mode="bilinear", antialias=True),
            resize(x, size=(5, 5), mode="bicubic", antialias=True, align_corners=True),
            *(resize(x, size=(5, 17), mode="nearest-exact"), resize(x, size=(1, 1), mode="bicubic")),
            *(resize(line, scale_factor=1.3, mode="linear"), resize(line, size=5, mode="linear", align_corners=True)),
            *(resize(line, scale_factor=1.3), resize(volume, scale_factor=1.3), resize(volume, size=(7, 6, 3))),
            *(resize(volume, scale_factor=1.3, mode="trilinear"), resize(volume, size=4, mode="nearest-exact")),
            *(resize(x.half(), size=(4, 5), mode="bicubic"), resize(x.double(), scale_factor=1.3, mode="bilinear")),
            *(resize(bytes_, scale_factor=1.3), resize(bytes_, size=(4, 5), mode="nearest-exact")),
        )

    def inputs(batch: int) -> tuple[Any, ...]:
        return torch.randn(batch, 3, 9, 8), torch.randn(2, 3, 9), torch.randn(1, 2, 5, 6, 7)

    dims = ({0: torch.export.Dim("batch", min=2, max=9)}, {}, {})
    check(forward, inputs(2), tmp_path, dims, [inputs(5)], tolerance=1e-3)
