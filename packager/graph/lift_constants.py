"""Lifts the constants of ``main`` to named parameters, so that passes do not copy weights."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst
from tvm_ffi import structural_map

from packager.bundle.arrays import Array
from packager.bundle.hashing import sha256_of_array
from packager.graph.rewrite import with_main

# Scalars and short integer vectors stay in the graph, where passes fold and kernels inline them.
INLINE_INTEGERS = 16


def stays_inline(array: Array) -> bool:
    """Whether a constant is small enough to stay in the graph."""
    return array.size <= (INLINE_INTEGERS if array.dtype.kind in "iu" else 1)


def is_made_up(array: Array) -> bool:
    """Whether a constant that no file names is one that backends pack: a matrix of a Fourier transform, a window.

    Tables of indices stay in the graph, where it is known that they are in range.
    """
    return array.dtype.kind == "f" and not stays_inline(array)


def lift_constants(
    module: tvm.IRModule,
    names: Mapping[Any, str],
    taken: Iterable[str] = (),
    wanted: Callable[[Array], bool] = lambda array: not stays_inline(array),
) -> tuple[tvm.IRModule, dict[str, Array]]:
    """Append the ``wanted`` constants of ``main`` to its parameters; return their values by name, in order.

    ``names`` maps TVM tensors to names of constants; others are numbered, and deduplicated by content. ``taken`` are
    the names of main's existing parameters.
    """
    lifted: dict[tuple[str, str, str, tuple[int, ...]], tuple[relax.Var, str, Array]] = {}
    used = {*taken, *names.values()}

    def lift(constant: GenericConst) -> Any:
        array = np.asarray(constant.value.numpy())
        if not wanted(array):
            return constant
        own = names.get(constant.value, "")
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
