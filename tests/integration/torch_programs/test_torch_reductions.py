"""Reductions and scans of torch.export programs: any axes, orders and types, and dims that are symbolic."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.torch_programs import check

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
INF, NAN = float("inf"), float("nan")


def test_moments_and_products(tmp_path: Path) -> None:
    def forward(x: Any, i: Any) -> Any:
        return (
            *(x.var((0, 2)), x.std((0, -1), correction=2, keepdim=True), x.var(), x.var(0, False), x.half().std(1)),
            *(*torch.var_mean(x, (0, 1)), *torch.std_mean(x), *torch.var_mean(x, 1, correction=0.5, keepdim=True)),
            *(x.prod(), x.prod(-1), x.prod(1, keepdim=True), i.prod(0), i.int().prod(), (i > 0).prod(1)),
            *(x.prod(1, dtype=torch.float64), i.any((0, 1)), i.all((0, 1), keepdim=True), torch.count_nonzero(i, 0)),
        )

    check(forward, (torch.rand(2, 5, 4) + 0.5, torch.randint(-4, 5, (3, 5))), tmp_path, tolerance=2e-3)


def test_norms_of_any_order(tmp_path: Path) -> None:
    norm = torch.linalg.vector_norm

    def forward(x: Any) -> Any:
        orders = (0, 0.5, 1, 2, 3, INF, -INF, -1)
        found = [norm(x, order, dim) for order in orders for dim in (None, (0, 2))]
        return (*found, norm(x.half(), 3, 1, keepdim=True), norm(x, 2, dtype=torch.float64), torch.dist(x, x + 1, 3))

    check(forward, (torch.randn(2, 5, 4),), tmp_path, tolerance=1e-3)


def test_scans(tmp_path: Path) -> None:
    """Cumulative extremes have the last of equal elements, and NaN from the first on."""

    def forward(x: Any, i: Any) -> Any:
        return (
            *(x.cumsum(0), i.cumsum(1), (i > 0).cumsum(-1), i.int().cumsum(0), i.cumprod(1), x.half().cumsum(1)),
            *(*torch.cummax(x, 1), *torch.cummin(x, 0), *torch.cummax(i, -1), *torch.cummin(i, 0)),
            *(*torch.cummax(i > 0, 1), torch.logcumsumexp(x, 0), torch.nan_to_num(x).logcumsumexp(1)),
            x.cumsum(1, dtype=torch.float64),
        )

    x = torch.randn(4, 6)
    x[1, 2] = NAN
    rows = torch.export.Dim("rows", min=2, max=9)
    other = (torch.randn(7, 6), torch.randint(-9, 9, (7, 6)))
    check(forward, (x, torch.randint(-9, 9, (4, 6))), tmp_path, ({0: rows}, {0: rows}), (other,), tolerance=2e-3)


def test_counts(tmp_path: Path) -> None:
    """Assertions that classes are in range are dropped."""

    def forward(x: Any, k: Any) -> Any:
        return (
            *(torch.histc(x, 4, -1, 1), torch.histc(x, 7), torch.histc(x[0, :1], 3)),
            *(torch.nn.functional.one_hot(k, 5), torch.nn.functional.one_hot(k.reshape(1, 3), 4)),
        )

    check(forward, (torch.randn(4, 6), torch.tensor([0, 2, 1])), tmp_path)
