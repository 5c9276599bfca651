"""Promotes the operands of elementwise operators whose converters compute in the type of an operand."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from torch._prims_common.wrappers import elementwise_type_promotion_wrapper

_ATEN = torch.ops.aten
Function = Callable[..., Any]


def promoting(*names: str, floats: bool = True) -> Callable[[Function], Function]:
    """Return a decorator that casts the named operands to their common type, and the result back.

    Half precision is computed in float32. With ``floats`` integers become floats, as in torch's functions of real
    numbers. Numbers remain numbers.
    """
    kind = KIND.INT_TO_FLOAT if floats else KIND.DEFAULT
    decorate: Callable[[Function], Function] = elementwise_type_promotion_wrapper(
        type_promoting_args=names, type_promotion_kind=kind
    )
    return decorate


def _of_floats(operator: Any) -> Function:
    """Return a decomposition that casts operands to floats of one type, if they are not."""

    def promote(*operands: Any) -> Any:
        dtype = torch.result_type(*operands) if len(operands) > 1 else operands[0].dtype
        wanted = dtype if dtype.is_floating_point or dtype.is_complex else torch.get_default_dtype()
        if all(operand.dtype == wanted for operand in operands):
            return NotImplemented
        return operator(*(operand.to(wanted) for operand in operands))

    return promote


PROMOTED: Mapping[Any, Function] = {
    operator: _of_floats(operator)
    for operator in (
        *(_ATEN.atan2.default, _ATEN.expm1.default, _ATEN.log10.default, _ATEN.log1p.default, _ATEN.log2.default),
        _ATEN.reciprocal.default,
    )
}
