"""Products of rows with the matrix of the group that each belongs to: mixtures of experts (Shazeer et al. 2017).

Groups follow each other; where each ends depends on data. Of fewer rows than groups the matrix of each is gathered; of
more all rows are multiplied by all matrices at once, and those of their groups are taken.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

_ATEN = torch.ops.aten
# The operator that transformers exports for types or devices for which torch has none.
_LIBRARY, _FALLBACK = "transformers", "grouped_mm_fallback"


def _grouped(rows: Any, matrices: Any, ends: Any = None, bias: Any = None, out_dtype: Any = None) -> Any:
    """Multiply rows [s, k] by matrices [g, k, n]; rows behind the last group are zeros."""
    if ends is None or bias is not None or rows.ndim != 2 or matrices.ndim != 3 or out_dtype not in (None, rows.dtype):
        return NotImplemented
    count, (groups, depth, columns) = rows.shape[0], matrices.shape
    group = (torch.arange(count, device=rows.device)[:, None] >= ends[None]).sum(1)
    known = group.clamp(max=groups - 1)
    if isinstance(count, int) and count <= groups:
        products = (rows[:, None] @ matrices[known])[:, 0]
    else:
        whole = rows @ matrices.permute(1, 0, 2).reshape(depth, groups * columns)
        products = whole.reshape(count, groups, columns).gather(1, known[:, None, None].expand(-1, 1, columns))[:, 0]
    return torch.where((group < groups)[:, None], products, torch.zeros_like(products))


@contextmanager
def known_operators() -> Iterator[None]:
    """Let torch read, while the context is entered, programs with transformers' operator where that is not imported."""
    if hasattr(getattr(torch.ops, _LIBRARY), _FALLBACK):
        yield
        return
    library = torch.library.Library(_LIBRARY, "FRAGMENT")
    try:
        library.define(f"{_FALLBACK}(Tensor input, Tensor weight, Tensor offs) -> Tensor")
        library.impl(_FALLBACK, _grouped, "CompositeExplicitAutograd")
        yield
    finally:
        library._destroy()


def grouped_products() -> dict[Any, Callable[..., Any]]:
    """Return the decompositions of torch's own operator and of transformers', if there is one."""
    library = getattr(torch.ops, _LIBRARY)
    found = [getattr(library, _FALLBACK).default] if hasattr(library, _FALLBACK) else []
    return dict.fromkeys((_ATEN._grouped_mm.default, *found), _grouped)
