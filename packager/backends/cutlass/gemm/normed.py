"""Products of few rows that are normalized: the product divides its sums by the root mean square of what it reads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from packager.backends.cutlass.core.drafts import FunctionDraft, GroupDraft, Ranking
from packager.graph.identity import IdentityMap
from packager.graph.products.row_norms import RowNorm
from packager.ir.primitives import Packing, Parameter

if TYPE_CHECKING:
    from packager.bundle.arrays import Array


@dataclass(frozen=True)
class NormedProblem:
    """A problem of products whose rows are the result of ``norm``."""

    problem: Any
    norm: RowNorm


def add_rows(
    group: GroupDraft, arguments: IdentityMap[int], a: Any, ranking: Ranking, norm: RowNorm | None
) -> FunctionDraft:
    """Add the function of a product of rows ``a``, or of what ``norm`` makes them of; its fields are set next."""
    draft = group.add("gemm" if norm is None else "normed_gemm", ranking)
    if norm is not None:
        draft.set_float(epsilon=norm.epsilon)
        draft.member = "gemm."
    draft.pointer("a", Parameter("argument", arguments[a if norm is None else norm.data]))
    return draft


def pack_with_gains(
    arguments: IdentityMap[int],
    constants: Sequence[Any],
    layout: str,
    pack: Callable[..., Array],
    norm: RowNorm | None,
) -> Packing:
    """Return the packing of matrices as [columns, depth], times the gains of a norm of their rows."""
    places = tuple(arguments[constant] for constant in constants)
    if norm is None or norm.gains is None:
        return Packing(places[0] if len(places) == 1 else places, layout, pack)

    def scaled(*arrays: Array) -> Array:
        *matrices, gains = arrays
        packed = pack(*matrices)
        wide: Array = packed.astype(np.float32) * gains.reshape(-1).astype(np.float32)
        return wide.astype(packed.dtype)

    return Packing((*places, arguments[norm.gains]), f"{layout}_gains", scaled)
