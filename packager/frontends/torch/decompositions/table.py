"""The decompositions that packager adds to torch's, and those of torch's own that it does not use by default."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._decomp import get_decompositions

from packager.frontends.torch.decompositions.distances import DISTANCES
from packager.frontends.torch.decompositions.elementwise import ELEMENTWISE
from packager.frontends.torch.decompositions.linalg import LINALG
from packager.frontends.torch.decompositions.ordering import ORDERING
from packager.frontends.torch.decompositions.promotion import PROMOTED
from packager.frontends.torch.decompositions.quantization import QUANTIZATION
from packager.frontends.torch.decompositions.reductions import REDUCTIONS
from packager.frontends.torch.decompositions.special import SPECIAL

_ATEN = torch.ops.aten
# Operators that torch leaves as they are, though it can decompose them.
_LEFT = (_ATEN.ldexp.Tensor, _ATEN.dist.default)

DECOMPOSITIONS: Mapping[Any, Callable[..., Any]] = {
    **get_decompositions(_LEFT),
    **PROMOTED,
    **ELEMENTWISE,
    **SPECIAL,
    **REDUCTIONS,
    **ORDERING,
    **DISTANCES,
    **LINALG,
    **QUANTIZATION,
}
