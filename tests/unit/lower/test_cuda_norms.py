"""Normalization along other axes than the last one, as GPUs run it: reductions of rows and an elementwise function."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tvm
from tvm import relax, tirx

from packager.graph.normalize import Normalization, normalize
from packager.lower.cuda.schedule import schedule_cuda
from tests.unit.lower.test_cuda_algorithms import legalized
from tests.unit.lower.test_schedule_cuda import TARGET, lower, serial


def normalized(x: np.ndarray, attributes: Normalization) -> np.ndarray:
    """Return what numpy computes in double precision."""
    wide, axes = x.astype(np.float64), attributes.axes
    if attributes.channel_axis is not None:
        wide = wide.reshape(*x.shape[:-1], attributes.groups, x.shape[-1] // attributes.groups)
        axes = (*axes, wide.ndim - 1)
    if attributes.centered:
        wide = wide - wide.mean(axes, keepdims=True)
    result: np.ndarray = wide / np.sqrt((wide**2).mean(axes, keepdims=True) + attributes.epsilon)
    return result.reshape(x.shape)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "attributes", "dtype"),
    [
        ((2, 700, 64), Normalization((1,), 1e-5), "float16"),
        ((2, 700, 64), Normalization((1,), 1e-5, centered=False), "float16"),
        ((3, 1599, 33), Normalization((1,), 1e-3), "float32"),
        ((2, 9, 11, 60), Normalization((1, 2), 1e-5, 3, 6), "float16"),
        ((2, 33, 48), Normalization((1,), 1e-5, 2, 48), "float32"),
        ((3, 4, 5, 6, 7), Normalization((1, 2, 3), 1e-5, 4, 7), "float32"),
        ((1, 64, 64, 320), Normalization((1, 2), 1e-5, 3, 32), "float16"),
        ((2, 48, 9, 12), Normalization((1,), 1e-6), "float16"),
        ((2, 70, 5, 8), Normalization((1,), 1e-6, centered=False), "float32"),
    ],
)
def test_columns_are_normalized(shape: tuple[int, ...], attributes: Normalization, dtype: str) -> None:
    module, primfuncs = legalized(lambda x: normalize(x, attributes), relax.TensorType(shape, dtype))
    assert len(primfuncs) > 2, "reductions and an elementwise function"
    functions: dict[Any, Any] = dict(module.functions.items())
    for variable, function in functions.items():
        if isinstance(function, tirx.PrimFunc):
            scheduled = schedule_cuda(function, TARGET)
            lower(scheduled)
            # Elementwise functions may see their parameters in other shapes, which their callers here do not.
            kept = [str(p.shape) for p in scheduled.params] == [str(p.shape) for p in function.params]
            functions[variable] = serial(scheduled if kept else function).with_attr("global_symbol", variable.name_hint)
    machine = relax.VirtualMachine(tvm.compile(tvm.IRModule(functions), "llvm"), tvm.cpu())
    # Far from zero: the difference of the mean of squares and the square of the mean would have few digits left.
    x = (np.random.default_rng(0).standard_normal(shape) + 30).astype(dtype)
    got = machine["main"](tvm.runtime.tensor(x)).numpy()
    np.testing.assert_allclose(got.reshape(shape), normalized(x, attributes), atol=2e-5)
