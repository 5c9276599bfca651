"""Sorting, selection and search in torch.export programs; NaN is greater than all numbers, as in torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.torch_programs import check

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")
NAN = float("nan")


def test_sorts_and_selections(tmp_path: Path) -> None:
    def forward(x: Any, i: Any) -> Any:
        flags = i % 2 == 0
        return (
            *(*x.sort(0), *x.sort(-1, descending=True), *torch.sort(i, stable=True, dim=1), x.argsort(0), x.msort()),
            *(*torch.sort(flags, stable=True, dim=1, descending=True), *x[0, 1].sort(), *x.half().float().sort()),
            *(*x.topk(3), *x.topk(2, 0, False), *i.topk(1, 0), *x.kthvalue(2, 0, True), *x.kthvalue(6)),
            *(*x.median(0), *x.median(-1, True), x.median(), x.nanmedian(), *x.nanmedian(1), *i.median(0)),
            *(*torch.mode(i % 3, 0), *torch.mode((i % 3).float(), 1, True), *torch.mode(flags)),
            *(*i.max(0, True), *i.min(-1), *torch.aminmax(i, dim=0), torch.max(i, x.nan_to_num()), i.argmax()),
        )

    x = torch.randn(4, 6)
    x[1, 2] = NAN
    check(forward, (x, torch.randperm(24).reshape(4, 6)), tmp_path)


def test_rows_of_a_symbolic_number(tmp_path: Path) -> None:
    def forward(x: Any) -> Any:
        return (*x.sort(0, descending=True), *x.topk(2, 0), *x.median(0), x.argsort(1)[:, :2])

    rows = torch.export.Dim("rows", min=3, max=9)
    check(forward, (torch.randn(4, 6),), tmp_path, ({0: rows},), ((torch.randn(7, 6),),))


def test_quantiles(tmp_path: Path) -> None:
    def forward(x: Any) -> Any:
        return (
            *(
                x.quantile(0.3),
                x.quantile(torch.tensor([0.1, 0.5]), 1),
                x.quantile(0.5, 0, True),
                x.nanquantile(0.3, 1),
            ),
            x.quantile(0.4, 1, interpolation="nearest"),
        )

    check(forward, (torch.randn(4, 6),), tmp_path)


def test_searches(tmp_path: Path) -> None:
    search = torch.searchsorted

    def forward(rows: Any, x: Any, unsorted: Any, i: Any) -> Any:
        return (
            *(search(rows, x), search(rows, x, right=True, out_int32=True), search(rows, x, side="right")),
            *(search(unsorted, x, sorter=unsorted.argsort(1)), search(rows[0], x), search(rows[0], 0.3)),
            *(torch.bucketize(x, rows[0], right=True), torch.bucketize(0.2, rows[1])),
            torch.bucketize(x, rows[0], out_int32=True),
            *(torch.isin(i, torch.tensor([1, 2]), invert=True), torch.isin(i, 2), torch.isin(3, i)),
        )

    rows, x = torch.randn(4, 6).sort(1).values, torch.randn(4, 3)
    x[0, 0], x[1, 1] = rows[0, 2], NAN
    check(forward, (rows, x, torch.randn(4, 6), torch.randint(-4, 5, (3, 5))), tmp_path)
