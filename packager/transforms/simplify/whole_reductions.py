"""Reduces all of a large tensor in two steps, for GPUs: of rows by many thread blocks, then of what they are.

One step would have one thread block read everything, as for the test if any element is infinite that T5 makes in half
precision.
"""

from __future__ import annotations

import math
from typing import Any

import tvm
from tvm import relax

from packager.bundle.dtypes import HALVES
from packager.graph.dataflow import operator_of, static_shape_of
from packager.graph.rewrite import Bindings, map_bindings

# Elements that one thread block reads about as fast as two kernels are started, and the rows of the first step.
LEAST = 2**15
SHORTEST, LONGEST = 128, 4096
EXACT = ("max", "min")  # in any precision; partial sums of halves would be rounded
AVERAGES = ("sum", "mean")


def split_whole_reductions(module: tvm.IRModule) -> tvm.IRModule:
    """Rewrite those in ``main`` whose tensors have a known shape with fitting rows."""
    return relax.transform.Normalize()(map_bindings(module, _split))


def _split(binding: Any) -> list[Any]:
    value = binding.value
    name = operator_of(value)
    if name not in (*EXACT, *AVERAGES):
        return [binding]
    data, shape, reduced = value.args[0], static_shape_of(value.args[0]), static_shape_of(value)
    rounded = str(data.ty.dtype) in HALVES and name in AVERAGES
    if shape is None or reduced is None or math.prod(reduced) != 1 or math.prod(shape) < LEAST or rounded:
        return [binding]
    made, reduce = Bindings(binding.var), getattr(relax.op, name)
    first = next((axis for axis in range(len(shape) - 1, 0, -1) if math.prod(shape[axis:]) >= SHORTEST), 0)
    if not first or math.prod(shape[first:]) > LONGEST:
        size = math.prod(shape)
        row = next((length for length in range(LONGEST, SHORTEST - 1, -1) if size % length == 0), None)
        if row is None:
            return [binding]
        data, shape, first = made.bind(relax.op.reshape(data, [size // row, row])), (size // row, row), 1
    parts = made.bind(reduce(data, [*range(first, len(shape))]))
    return made.ended(relax.op.reshape(made.bind(reduce(parts)), list(reduced)))
