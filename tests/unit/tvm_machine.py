"""What TVM's virtual machine computes, which is what results of rewritten modules are compared with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import tvm
from tvm import relax

# Compiling is what takes the time, not computing.
TARGET = {"kind": "llvm", "opt-level": 0}


def compute(module: tvm.IRModule, arguments: Iterable[Any]) -> list[np.ndarray]:
    """Return the results of a module's ``main``; its arguments are arrays, and lists of arrays for tuples."""
    machine = relax.VirtualMachine(tvm.compile(module, tvm.target.Target(TARGET)), tvm.cpu())
    result = machine["main"](*map(_tensors, arguments))
    return [value.numpy() for value in ([result] if isinstance(result, tvm.runtime.Tensor) else result)]


def assert_same_results(changed: tvm.IRModule, module: tvm.IRModule, *, rtol: float, atol: float) -> None:
    """Compare the first results of two modules of the same float32 parameters, of normal numbers."""
    rng = np.random.default_rng(0)
    shapes = [[int(extent) for extent in parameter.ty.shape.values] for parameter in module["main"].params]
    arguments = [rng.standard_normal(shape).astype(np.float32) for shape in shapes]
    np.testing.assert_allclose(compute(changed, arguments)[0], compute(module, arguments)[0], rtol=rtol, atol=atol)


def _tensors(argument: Any) -> Any:
    if isinstance(argument, list):
        return list(map(_tensors, argument))
    return tvm.runtime.tensor(np.ascontiguousarray(argument))
