"""Scatters, lookups and moves of elements in torch.export programs, through the whole of packager, against torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import packager
from packager.errors import ModelError
from tests.one_cpu import targets_here
from tests.torch_programs import check

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")

REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


def test_scattered_elements(tmp_path: Path) -> None:
    """There are fewer indices than data on both axes, and more of what is scattered."""

    def forward(x: Any, y: Any, i: Any, j: Any, one: Any) -> Any:
        return (
            x.scatter(1, i, y),
            x.scatter(0, j, 2),
            x.scatter(0, j, y, reduce="multiply"),
            x.scatter_add(0, j, y),
            x.gather(0, j),
            (x > 1).scatter(1, i, y > 1),
            (x > 1).scatter_add(1, i, y > 1),
            one.scatter_add(0, i[0, 0], one),
            x.index_select(0, i[1, 0]),
        )

    y = torch.randn(4, 6)
    check(forward, (torch.randn(4, 6), y, *places(), y[0, 0]), tmp_path)


@pytest.mark.parametrize("dtype", [torch.float16, torch.int64], ids=str)
def test_scattered_elements_are_reduced(dtype: Any, tmp_path: Path) -> None:
    """With what was there or without: each reduction once."""
    with_self = [
        kind in ("prod", "amax") if dtype is torch.int64 else kind in ("sum", "mean", "amin") for kind in REDUCTIONS
    ]

    def forward(x: Any, y: Any, i: Any) -> Any:
        pairs = zip(REDUCTIONS, with_self, strict=True)
        return tuple(x.scatter_reduce(-1, i, y, kind, include_self=own) for kind, own in pairs)

    x, y = ((5 * torch.randn(4, 6)).to(dtype) for _ in range(2))
    check(forward, (x, y, places()[0]), tmp_path, tolerance=5e-3)


def places() -> tuple[Any, Any]:
    return torch.tensor([[0, 3], [1, 1], [5, 2]]), torch.tensor([[0, 3, 1], [1, 1, 2]])


def test_slices_are_reduced_and_elements_put(tmp_path: Path) -> None:
    def forward(x: Any, y: Any, k: Any, at: Any) -> Any:
        reduced = [x.index_reduce(1, k, y, kind, include_self=kind == "mean") for kind in REDUCTIONS[1:]]
        return (
            *reduced,
            x.put(at, y[:2, :2]),
            x.put(at, y[:2, :2], accumulate=True),
            x.index_add(1, k, y, alpha=2),
            x.index_fill(1, k, 2.0),
            x.as_strided((2, 3, 2), (1, 4, 6), 1),
            torch.as_strided_scatter(x, y[:2], (2, 3), (1, 4)),
            x.diagonal_scatter(y[:, 0]),
            x.diagonal_scatter(y[:3, 0], 1, -1, 0),
            x.unfold(-1, 3, 2),
            x.sum().unfold(0, 1, 1),
        )

    indices = torch.tensor([1, 1, 5]), torch.tensor([[0, -2], [7, -2]])
    check(forward, (torch.randn(4, 6), torch.randn(4, 3), *indices), tmp_path)


def test_masks_scatter_features(tmp_path: Path) -> None:
    """Language models put features in place of the embeddings of tokens, a row for each token."""

    def forward(x: Any, tokens: Any, mask: Any, features: Any, more: Any) -> Any:
        rows = (tokens == 3)[..., None]
        return (
            x.masked_scatter(rows.expand_as(x), features),
            x.masked_scatter(rows, features),
            x.masked_scatter(mask, more),
            x.long().masked_scatter(mask[:1], more.long()),
            x.masked_scatter(x > 99, more[:0]),
        )

    def inputs(count: int) -> tuple[Any, ...]:
        mask, more = torch.rand(count, 4, 8) > 0.4, torch.randn(331)
        return torch.randn(count, 4, 8), torch.randint(2, 5, (count, 4)), mask, torch.randn(40, 8), more

    n = torch.export.Dim("n", min=2, max=9)
    check(forward, inputs(3), tmp_path, ({0: n}, {0: n}, {0: n}, {}, {}), [inputs(7)])


def test_axes_with_others_between_them_are_indexed(tmp_path: Path) -> None:
    put = torch.ops.aten.index_put

    def forward(x: Any, y: Any, k: Any) -> Any:
        indices = [None, k, None, k]
        return x[k, :, k], x[:, k, :, k], put(x, indices, y), put(x, indices, y[:, :1], True)

    shapes = ((3, 4, 5, 6), (3, 3, 5))
    x, y = (torch.randn(*shape) for shape in shapes)
    check(forward, (x, y, torch.tensor([0, 2, -1])), tmp_path)


class Chosen(torch.nn.Module):
    """Takes what a mask says that is a buffer, or one in the source; and what the data say, if told."""

    def __init__(self, *, by_data: bool = False) -> None:
        super().__init__()
        self.by_data = by_data
        self.register_buffer("mask", torch.tensor([True, False, True, True]))

    def forward(self, x: Any) -> Any:
        if self.by_data:
            return x[x > 0]
        literal = torch.tensor([True, False, True, True, False, False])
        repeated = x.repeat_interleave(torch.tensor([1, 2, 0, 1]), 0).sum(1)
        put = torch.ops.aten.index_put(x, [torch.tensor([True, False, True, True])], x[1:])
        return x[self.mask] * 2, x[:, literal].reshape(-1), repeated, put


def test_sizes_that_depend_on_constants(tmp_path: Path) -> None:
    """Their masks may be overridden, and the sizes follow."""
    module, x = Chosen(), torch.randn(4, 6)
    torch.export.save(torch.export.export(module, (x,)), tmp_path / "m.pt2")
    other = np.array([False, False, False, True])
    np.savez(tmp_path / "other.npz", mask=other)
    for mask, file in ((module.mask.numpy(), None), (other, tmp_path / "other.npz")):
        path = packager.build(tmp_path / "m.pt2", tmp_path / "m.so", targets=targets_here(), constants=file)
        module.mask = torch.from_numpy(mask)
        with packager.load(path) as bundle:
            for result, wanted in zip(bundle(x.numpy()).values(), module(x), strict=True):
                np.testing.assert_allclose(result, wanted.numpy(), 1e-6)


def test_sizes_that_depend_on_data_are_refused(tmp_path: Path) -> None:
    torch.export.save(torch.export.export(Chosen(by_data=True), (torch.randn(4, 6),)), tmp_path / "m.pt2")
    with pytest.raises(ModelError, match=r"index.Tensor") as error:
        packager.build(tmp_path / "m.pt2", tmp_path / "m.so", targets=targets_here())
    assert "depends on data" in str(error.value.detail)
