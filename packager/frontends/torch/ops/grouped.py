"""Converters of products of groups of rows (``aten._grouped_mm``): mixtures of experts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from packager.frontends.torch.ops.program import argument
from packager.graph.products.grouped import grouped_matmul

# The operator that transformers exports for types or devices for which torch has none.
_LIBRARY, _FALLBACK = "transformers", "grouped_mm_fallback"


def _grouped(importer: Any, node: Any) -> Any:
    """Convert ``(rows [s, k], matrices [g, k, n], ends [g])``; torch's other forms are for training."""
    rows, matrices, ends = node.args[0], node.args[1], argument(node, 2, "offs")
    others = [argument(node, index, name) for index, name in ((3, "bias"), (4, "out_dtype"))]
    ranks = [each.meta["val"].ndim for each in (rows, matrices)]
    if ends is None or ranks != [2, 3] or others not in ([None, None], [None, rows.meta["val"].dtype]):
        raise ValueError("only rows [s, k] times matrices [g, k, n] with offsets, without a bias, are supported")
    return grouped_matmul(importer.tensor(rows), importer.tensor(matrices), importer.tensor(ends, "int32"))


def _multiply(rows: Any, matrices: Any, ends: Any) -> Any:
    """Multiply as transformers' operator does; rows behind the last group are zeros."""
    group = (torch.arange(rows.shape[0], device=rows.device)[:, None] >= ends[None]).sum(1)
    known = group.clamp(max=matrices.shape[0] - 1)
    products = (rows[:, None] @ matrices[known])[:, 0]
    return torch.where((group < matrices.shape[0])[:, None], products, torch.zeros_like(products))


@contextmanager
def known_operators() -> Iterator[None]:
    """Let torch read, while the context is entered, programs with transformers' operator where that is not imported."""
    if hasattr(getattr(torch.ops, _LIBRARY), _FALLBACK):
        yield
        return
    library = torch.library.Library(_LIBRARY, "FRAGMENT")
    try:
        library.define(f"{_FALLBACK}(Tensor input, Tensor weight, Tensor offs) -> Tensor")
        library.impl(_FALLBACK, _multiply, "CompositeExplicitAutograd")
        yield
    finally:
        library._destroy()


GROUPED: Mapping[str, Callable[[Any, Any], Any]] = {
    "_grouped_mm.default": _grouped,
    f"{_LIBRARY}::{_FALLBACK}.default": _grouped,
}
