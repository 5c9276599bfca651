"""Emits batch norms by the statistics that a model has kept (Ioffe and Szegedy 2015, "Batch Normalization")."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax

from packager.bundle.dtypes import HALVES

_R = relax.op


def normalize_by_statistics(emit: Callable[[Any], Any], data: Any, parameters: Sequence[Any], epsilon: float) -> Any:
    """Normalize data [n, c, ..] by gamma, beta, mean and variance [c], which may be wider than data of half precision.

    Those make a scale and a shift in float32, of which each is rounded to the type of the data.
    """
    dtype = str(data.ty.dtype)
    if dtype not in HALVES:
        return relax.TupleGetItem(emit(_R.nn.batch_norm(data, *parameters, axis=1, epsilon=epsilon)), 0)
    gamma, beta, mean, variance = (emit(_R.astype(parameter, "float32")) for parameter in parameters)
    deviation = emit(_R.sqrt(emit(_R.add(variance, relax.const(epsilon, "float32")))))
    scale = emit(_R.divide(gamma, deviation))
    shift = emit(_R.subtract(beta, emit(_R.multiply(mean, scale))))
    extents = [-1, *[1] * (data.ty.ndim - 2)]
    scale, shift = (emit(_R.reshape(emit(_R.astype(each, dtype)), extents)) for each in (scale, shift))
    return _R.add(emit(_R.multiply(data, scale)), shift)
