"""Pooling in torch.export programs, through the whole of packager, against torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.torch_programs import check

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
F = torch.nn.functional


def test_adaptive_pooling(tmp_path: Path) -> None:
    """To sizes that divide those of the data and to others; the batch is symbolic, or there is none."""

    def forward(x: Any, line: Any, volume: Any) -> Any:
        return (
            *(F.adaptive_avg_pool2d(x, (3, 5)), F.adaptive_avg_pool2d(x, (3, 4)), F.adaptive_avg_pool2d(x, (12, None))),
            *(F.adaptive_avg_pool2d(x[0], (1, 5)), F.adaptive_avg_pool2d(x, 1), F.adaptive_avg_pool2d(x.half(), 5)),
            *(F.adaptive_avg_pool1d(line, 5), F.adaptive_avg_pool1d(line, 3), F.adaptive_avg_pool3d(volume, (2, 3, 4))),
            *(F.adaptive_avg_pool3d(volume, 1), F.adaptive_max_pool2d(x, 4)),
            *F.adaptive_max_pool2d(x[0].half(), (4, 3), return_indices=True),
            *F.adaptive_max_pool1d(line, 5, return_indices=True),
            *F.adaptive_max_pool3d(volume, 4, return_indices=True),
        )

    def inputs(batch: int) -> tuple[Any, ...]:
        return torch.randn(batch, 3, 9, 8), torch.randn(2, 3, 9), torch.randn(1, 2, 5, 6, 7)

    dims = ({0: torch.export.Dim("batch", min=2, max=9)}, {}, {})
    check(forward, inputs(2), tmp_path, dims, [inputs(5)], tolerance=2e-3)


def test_maxima_and_their_indices(tmp_path: Path) -> None:
    def forward(x: Any, line: Any, volume: Any) -> Any:
        return (
            *F.max_pool2d(x, 3, 2, 1, 2, True, True),
            *F.max_pool1d(line, 2, return_indices=True),
            *F.max_pool3d(volume[0], 3, 2, 1, ceil_mode=True, return_indices=True),
            F.max_unpool2d(*F.max_pool2d(x, 2, return_indices=True), 2, output_size=(9, 8)),
            F.max_unpool1d(*F.max_pool1d(line, 2, return_indices=True), 2, output_size=(9,)),
            F.max_pool2d((9 * x).long(), 3, 2, 1),
            F.max_pool3d(volume, 2, ceil_mode=True, padding=1),
            F.max_pool3d(volume[0], 3, 1),
            F.max_pool1d(line, 2, ceil_mode=True),
        )

    shapes = ((2, 3, 9, 8), (2, 3, 9), (1, 2, 5, 6, 7))
    check(forward, tuple(torch.randn(*shape) for shape in shapes), tmp_path)


def test_averages_of_windows_that_exceed_the_data(tmp_path: Path) -> None:
    def forward(x: Any, line: Any, volume: Any) -> Any:
        return (
            *(F.avg_pool2d(x, 3, 2, 1, ceil_mode=True), F.avg_pool2d(x, 3, 2, 1, True, count_include_pad=False)),
            *(F.avg_pool2d(x, 3, 2, 1, True, divisor_override=4), F.avg_pool2d(x, 7, divisor_override=2)),
            *(F.avg_pool2d(x.half(), 2, 2, 0, True), F.lp_pool2d(x, 3, 2, ceil_mode=True), F.lp_pool1d(line, 2, 3)),
            *(F.avg_pool1d(line, 3, 2, 1, ceil_mode=True), F.avg_pool3d(volume, 3, 2, 1, True, divisor_override=3)),
            *(F.avg_pool3d(volume, 3, 2, 1, True, False), F.avg_pool3d(volume, 2, padding=1)),
            F.avg_pool3d(volume[0], 2),
        )

    shapes = ((2, 3, 9, 7), (2, 3, 9), (1, 2, 5, 6, 7))
    check(forward, tuple(torch.randn(*shape) for shape in shapes), tmp_path, tolerance=2e-3)
