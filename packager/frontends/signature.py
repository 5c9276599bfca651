"""Read the signature of an imported Relax module: input specs, output names, dims; fix dims to sizes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax

from packager.bundle.manifest import TensorSpec
from packager.errors import ModelError, UsageError
from packager.frontends.dims import DimRequest
from packager.graph.dataflow import shape_of


def fix_dims(module: tvm.IRModule, dims: Mapping[str, DimRequest]) -> tvm.IRModule:
    """Substitute sizes for the dims that a request fixes. Raises UsageError for a size of 0."""
    sizes = {name: request.min for name, request in dims.items() if request.fixed}
    for name, size in sizes.items():
        if size == 0:
            raise UsageError(f"--dim {name}=0: a dim of 0 is supported for ONNX models only")
    return relax.transform.BindSymbolicVars(sizes, "main")(module) if sizes else module


def input_specs(main: relax.Function, names: list[str]) -> tuple[TensorSpec, ...]:
    """Return the specs of the first parameters of ``main``. Raises ModelError for one that is not a plain tensor."""
    return tuple(_spec(name, parameter.ty) for name, parameter in zip(names, main.params, strict=False))


def _spec(name: str, ty: Any) -> TensorSpec:
    extents = shape_of(ty)
    if extents is None:
        raise ModelError(f"input {name!r} is not a tensor with a known rank", hint="give the input a shape")
    shape: list[int | str] = []
    for axis, extent in enumerate(extents):
        if isinstance(extent, int):
            shape.append(extent)
        elif isinstance(extent, tvm.tirx.Var):
            shape.append(str(extent.name))
        else:
            raise ModelError(
                f"input {name!r}: axis {axis} is the expression {extent}",
                hint="extents of inputs must be numbers or plain dims",
            )
    return TensorSpec(name, str(ty.dtype), tuple(shape))  # type: ignore[arg-type]


def output_names(main: relax.Function, first: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return names for the outputs of a format without output names; ``first`` names the leading ones."""
    ty = main.ret_ty
    count = (len(ty.fields) if isinstance(ty, relax.TupleType) else 1) - len(first)
    return (*first, *(("output",) if count == 1 else tuple(f"output_{index}" for index in range(count))))


def dims_of(specs: tuple[TensorSpec, ...]) -> dict[str, str]:
    """Return the dims of inputs, each with its first occurrence."""
    found: dict[str, str] = {}
    for spec in specs:
        for axis, extent in enumerate(spec.shape):
            if isinstance(extent, str):
                found.setdefault(extent, f"input {spec.name!r}, axis {axis}")
    return found
