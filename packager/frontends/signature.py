"""What the frontends share once they have a Relax module: lift constants to parameters, and fix dims."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax
from tvm.ir import GenericConst
from tvm_ffi import structural_map

from packager.bundle.hashing import sha256_of_array
from packager.bundle.manifest import TensorSpec
from packager.errors import ModelError, UsageError
from packager.frontends.dims import DimRequest
from packager.frontends.node_names import with_main

Array = NDArray[Any]

# Scalars and short integer vectors stay constants of the graph, which passes fold and kernels inline; all others are
# named parameters, which no pass copies.
INLINE_INTEGERS = 16


def stays_inline(array: Array) -> bool:
    """Whether a constant is small enough to stay in the graph."""
    return array.size <= (INLINE_INTEGERS if array.dtype.kind in "iu" else 1)


def lift_constants(
    module: tvm.IRModule, names: Mapping[int, str], taken: Iterable[str] = ()
) -> tuple[tvm.IRModule, dict[str, Array]]:
    """Turn the constants of ``main`` into parameters after those that it has; return their values by name, in order.

    ``names`` gives the names of constants by the handle of their TVM tensor; others are numbered, and are one where
    their contents are equal. ``taken`` are names that main's parameters have.
    """
    lifted: dict[tuple[str, str, str, tuple[int, ...]], tuple[relax.Var, str, Array]] = {}
    used = {*taken, *names.values()}

    def lift(constant: GenericConst) -> Any:
        array = np.asarray(constant.value.numpy())
        if stays_inline(array):
            return constant
        own = names.get(constant.value.__chandle__(), "")
        key = (own, "" if own else sha256_of_array(array), array.dtype.name, array.shape)
        if key not in lifted:
            name = own or f"constant_{len(lifted)}"
            while not own and name in used:
                name += "_"
            used.add(name)
            lifted[key] = (relax.Var(name, relax.TensorType(array.shape, array.dtype.name)), name, array)
        return lifted[key][0]

    main = module["main"]
    body = structural_map(main.body, (GenericConst, lift))
    parameters = [*main.params, *(variable for variable, _, _ in lifted.values())]
    function = relax.Function(parameters, body, main.ret_ty, main.is_pure, main.attrs)
    return with_main(module, function), {name: array for _, name, array in lifted.values()}


def fix_dims(module: tvm.IRModule, dims: Mapping[str, DimRequest]) -> tvm.IRModule:
    """Replace the dims that a request fixes by their sizes. Raises UsageError for a size of 0."""
    sizes = {name: request.min for name, request in dims.items() if request.fixed}
    for name, size in sizes.items():
        if size == 0:
            raise UsageError(f"--dim {name}=0: a dim of 0 is supported for ONNX models only")
    return relax.transform.BindSymbolicVars(sizes, "main")(module) if sizes else module


def input_specs(main: relax.Function, names: list[str]) -> tuple[TensorSpec, ...]:
    """Return the specs of the first parameters of ``main``. Raises ModelError for one that is not a plain tensor."""
    return tuple(_spec(name, parameter.ty) for name, parameter in zip(names, main.params, strict=False))


def _spec(name: str, ty: Any) -> TensorSpec:
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        raise ModelError(f"input {name!r} is not a tensor with a known rank", hint="give the input a shape")
    shape: list[int | str] = []
    for axis, extent in enumerate(ty.shape.values):
        if isinstance(extent, tvm.tirx.IntImm):
            shape.append(int(extent))
        elif isinstance(extent, tvm.tirx.Var):
            shape.append(str(extent.name))
        else:
            raise ModelError(
                f"input {name!r}: axis {axis} is the expression {extent}",
                hint="axes of inputs must be numbers or plain dims",
            )
    return TensorSpec(name, str(ty.dtype), tuple(shape))  # type: ignore[arg-type]


def output_names(main: relax.Function, first: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return names for the outputs of a format that names none, after those of the ``first``."""
    ty = main.ret_ty
    count = (len(ty.fields) if isinstance(ty, relax.TupleType) else 1) - len(first)
    return (*first, *(("output",) if count == 1 else tuple(f"output_{index}" for index in range(count))))


def dims_of(specs: tuple[TensorSpec, ...]) -> dict[str, str]:
    """Return the dims of inputs, and where each stands."""
    found: dict[str, str] = {}
    for spec in specs:
        for axis, extent in enumerate(spec.shape):
            if isinstance(extent, str):
                found.setdefault(extent, f"input {spec.name!r}, axis {axis}")
    return found
