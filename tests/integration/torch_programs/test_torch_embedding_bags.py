"""Embedding bags in torch.export programs, through the whole of packager, against torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.torch_programs import check

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
F = torch.nn.functional


def test_bags_of_rows(tmp_path: Path) -> None:
    """Of equal sizes, of sizes that offsets say, and of none: such a bag is 0."""

    def forward(w: Any, i: Any, flat: Any, at: Any, ends: Any, p: Any) -> Any:
        bag = F.embedding_bag
        return (
            *(bag(i, w, mode=mode) for mode in ("sum", "mean", "max")),
            *(bag(flat, w, at, mode=mode, padding_idx=2) for mode in ("sum", "mean", "max")),
            bag(flat, w, torch.tensor([0, 3]), mode="sum"),
            bag(i, w, mode="sum", per_sample_weights=p.reshape(3, 4)),
            bag(flat, w, ends, mode="mean", include_last_offset=True),
            bag(i, w.half(), mode="mean", padding_idx=2),
        )

    indices = torch.randint(0, 9, (3, 4)), torch.tensor([1, 2, 8, 2, 2, 0, 0, 7, 3, 5, 2, 4])
    offsets = torch.tensor([0, 3, 3, 5, 10]), torch.tensor([0, 3, 3, 12])
    check(forward, (torch.randn(9, 5), *indices, *offsets, torch.randn(12)), tmp_path, tolerance=2e-3)


def test_bags_of_symbolic_batches(tmp_path: Path) -> None:
    def forward(w: Any, i: Any) -> Any:
        return F.embedding_bag(i, w, mode="mean"), F.embedding_bag(i, w, mode="max", padding_idx=-3)

    dims = ({}, {0: torch.export.Dim("batch", min=2, max=64)})
    others = [(torch.randn(9, 5), torch.randint(0, 9, (7, 4)))]
    check(forward, (torch.randn(9, 5), torch.randint(0, 9, (3, 4))), tmp_path, dims, others)
