"""The patterns of the backend. Elementwise operators match one by one; packager merges them."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import product
from typing import Any

from tvm import relax
from tvm.relax.dpl import is_op, is_tuple, wildcard

from packager.backends.base import Match, Pattern, Search
from packager.backends.ccompiler.core.checks import (
    NUMBERS,
    anchor,
    dtypes_of,
    has_channels,
    has_expression,
    is_static,
    readable,
)
from packager.backends.ccompiler.core.expressions import ARITIES, CTYPES
from packager.backends.ccompiler.core.moves import OPERATORS as MOVING
from packager.backends.ccompiler.core.moves import VIEWS, find_move
from packager.backends.ccompiler.core.problems import FLOATS, find_attention, read_layer_norm, read_sum
from packager.backends.ccompiler.core.resize_tables import read_tables
from packager.backends.ccompiler.core.statistics import statistics_of_call
from packager.backends.ccompiler.ops.col2im import MOST_STRIDE
from packager.backends.ccompiler.pool_patterns import pool_patterns
from packager.graph.block_weights import MATMUL as BLOCK_MATMUL
from packager.graph.block_weights import format_of
from packager.graph.dataflow import scalar_of, shape_of
from packager.graph.normalize import NAME as NORMALIZE
from packager.graph.recurrences.recurrent import NAME as RECURRENT
from packager.graph.recurrences.recurrent import operands_of_call
from packager.graph.resize import NAME as RESIZE
from packager.graph.tree_ensemble import NAME as TREES
from packager.graph.windows.col2im import NAME as COL2IM
from packager.graph.windows.col2im import windows_of_call
from packager.transforms.layout.computed_filters import is_worth_permuting

# Layouts of data and weights of convolutions.
LAYOUTS = {"conv1d": ("NWC", "OWI"), "conv2d": ("NHWC", "OHWI"), "conv3d": ("NDHWC", "ODHWI")}


def make_patterns(groups: Sequence[str]) -> list[Pattern | Search]:
    """Return the patterns for groups of operators."""
    makers: dict[str, Callable[[], Sequence[Pattern | Search]]] = {
        "elementwise": lambda: [*_elementwise(), *_moves()],
        "dense": lambda: [
            anchor("dense", is_op("relax.matmul")(wildcard(), wildcard()), _is_dense),
            anchor("block_matmul", is_op(BLOCK_MATMUL)(*(wildcard() for _ in range(4))), _is_block_matmul),
        ],
        "conv2d": lambda: [
            anchor(name, is_op(f"relax.nn.{name}")(wildcard(), wildcard()), _is_convolution) for name in LAYOUTS
        ],
        "pool2d": pool_patterns,
        "softmax": lambda: [
            anchor(name, is_op(f"relax.nn.{name}")(wildcard()), _is_softmax) for name in ("softmax", "log_softmax")
        ],
        "layer_norm": _layer_norm,
        "attention": lambda: [Search("ccompiler.attention", "nn.softmax", find_attention, anchor=True)],
        "recurrent": lambda: [
            anchor("recurrent", is_op(RECURRENT)(wildcard(), wildcard(), varg_default_wildcard=True), _is_recurrent)
        ],
        "trees": lambda: [anchor("trees", is_op(TREES)(*(wildcard() for _ in range(5))), _is_tree_ensemble)],
    }
    return [readable(pattern) for group in groups for pattern in makers[group]()]


def _elementwise() -> list[Pattern]:
    """Return a pattern per operator and combination of operands that are views, which are free to read."""
    patterns = []
    for name, arity in ARITIES.items():
        for viewed in product((True, False), repeat=arity if name != "where" else 0):
            operands = [_view() if through else wildcard() for through in viewed or (False,) * arity]
            call = is_op(f"relax.{name}")(*operands, varg_default_wildcard=True)
            patterns.append(Pattern("ccompiler.elementwise", call, check=_is_elementwise))
    for fields in (*(is_tuple([_through("broadcast_to") for _ in range(count)]) for count in (2, 3, 4)), wildcard()):
        total = is_op("relax.sum")(is_op("relax.stack")(fields))
        patterns.append(Pattern("ccompiler.elementwise", total, check=_is_sum_of_tensors, problem=read_sum))
    return patterns


def _moves() -> list[Pattern | Search]:
    """Return the patterns of operators that move elements."""
    names = {"permute_dims": "transpose", "strided_slice": "slice", "nn.pad": "pad"}
    return [
        Pattern("ccompiler.resize", is_op(RESIZE)(wildcard(), wildcard()), check=_is_resize),
        Pattern("ccompiler.col2im", is_op(COL2IM)(wildcard()), check=_is_col2im),
        *(Search(f"ccompiler.{names.get(operator, operator)}", operator, find_move) for operator in MOVING),
    ]


def _through(name: str) -> Any:
    return is_op(f"relax.{name}")(wildcard(), varg_default_wildcard=True)


def _view() -> Any:
    return functools.reduce(operator.or_, map(_through, sorted(VIEWS)))


def _layer_norm() -> list[Pattern]:
    whole = is_op("relax.nn.layer_norm")(wildcard(), wildcard(), wildcard())
    data = wildcard()
    centered = is_op("relax.subtract")(data, is_op("relax.mean")(data))
    square = is_op("relax.power")(centered, wildcard()) | is_op("relax.multiply")(centered, centered)
    deviation = is_op("relax.sqrt")(is_op("relax.add")(is_op("relax.mean")(square), wildcard()))
    parts = is_op("relax.divide")(centered, deviation)
    return [
        anchor("normalize", is_op(NORMALIZE)(wildcard()), lambda m: statistics_of_call(m.calls[0]) is not None),
        anchor("layer_norm", whole, _is_layer_norm),
        replace(anchor("layer_norm", parts, _is_decomposed_layer_norm), problem=read_layer_norm),
    ]


def _is_elementwise(match: Match) -> bool:
    """Whether shapes are known, element types have a C type, and it computes more than a number from numbers."""
    for call in match.calls:
        tensors = [arg for arg in call.args if isinstance(arg.ty, relax.TensorType)]
        if any(shape_of(tensor) is None for tensor in (*tensors, call)) or not dtypes_of(call) <= CTYPES.keys():
            return False
    call = match.calls[-1]
    is_integer_power = call.op.name == "relax.power" and not dtypes_of(call) <= {*FLOATS, "float64"}
    return bool(shape_of(call)) and not is_integer_power and not _is_copy(call) and has_expression(call)


def _is_copy(call: Any) -> bool:
    """Whether it is an identity: worth no loop of its own, nor a result of a partition."""
    same = call.op.name == "relax.broadcast_to" and str(shape_of(call)) == str(shape_of(call.args[0]))
    return same or (call.op.name == "relax.astype" and len(dtypes_of(call)) == 1)


def _is_sum_of_tensors(match: Match) -> bool:
    """Whether it is the ONNX frontend's Sum: tensors broadcast to one shape, stacked, and summed."""
    stack, total = match.calls[-2:]
    axes = [int(axis) for axis in total.attrs.axis or ()]
    fields = stack.args[0].fields if isinstance(stack.args[0], relax.Tuple) else ()
    shapes = {str(shape_of(field)) for field in fields}
    same = len(shapes) == 1 and shape_of(total) is not None and shapes == {str(shape_of(total))}
    return bool(same and axes == [0] and int(stack.attrs.axis or 0) == 0 and dtypes_of(total) <= {"float32", "int32"})


def _is_dense(match: Match) -> bool:
    (call,) = match.calls
    left, right = map(shape_of, call.args)
    if not left or not right or len(left) < 2 or len(right) < 2 or not _is_product(call):
        return False
    if all(isinstance(extent, int) and extent == 1 for extent in right[:-2]):
        return True
    # A weight per batch: no broadcasting between the two.
    return len(left) == len(right) and all(str(a) == str(b) for a, b in zip(left[:-2], right[:-2], strict=True))


def _is_product(call: Any) -> bool:
    """Whether there are tiles for the element types of a product."""
    data, weight = (str(arg.ty.dtype) for arg in call.args)
    results = {"int8": ("int8", "int32"), "uint8": ("int32",), "float16": ("float16", "float32")}.get(data, (data,))
    same = weight == data if data in NUMBERS else (data, weight) == ("uint8", "int8")
    return same and str(call.ty.dtype) in results


def _is_block_matmul(match: Match) -> bool:
    """Whether all weights are constants, and blocks are whole words of packed weights."""
    (call,) = match.calls
    form = format_of(call.attrs)
    weights = [operand for operand in call.args[1:] if isinstance(operand, relax.Var) and match.is_constant(operand)]
    return len(weights) == 3 and form.block * form.bits % 32 == 0 and shape_of(call) is not None


def _is_convolution(match: Match) -> bool:
    (call,) = match.calls
    data, weight = call.args
    attrs, extents = call.attrs, shape_of(weight)
    layout, kernel_layout = LAYOUTS[call.op.name.removeprefix("relax.nn.")]
    last = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) == (layout, kernel_layout, layout)
    if not last or extents is None or not is_static(extents):
        return False
    if not match.is_constant(weight) and not is_worth_permuting(call):
        return False
    return _is_product(call) and has_channels(shape_of(data)) and shape_of(call) is not None


def _is_resize(match: Match) -> bool:
    """Whether the tables of a resizing are few enough for code."""
    return read_tables(match.calls[0]) is not None


def _is_col2im(match: Match) -> bool:
    """Whether windows are of float32, and strides few enough for code."""
    (call,) = match.calls
    return dtypes_of(call) == {"float32"} and windows_of_call(call.attrs).strides[-1] <= MOST_STRIDE


def _is_softmax(match: Match) -> bool:
    (call,) = match.calls
    shape = shape_of(call)
    if not shape or not dtypes_of(call) <= set(FLOATS):
        return False
    return all(isinstance(extent, int) and extent == 1 for extent in shape[int(call.attrs.axis) % len(shape) + 1 :])


def _is_recurrent(match: Match) -> bool:
    """Whether weights are constants, and all floats are of one type that there are tiles for."""
    operands = operands_of_call(match.calls[-1])
    constants = [operands.weights, operands.peepholes, operands.hidden_bias]
    floats = [operands.x, operands.initial_h, operands.initial_c, *constants]
    types = {str(operand.ty.dtype) for operand in floats if operand is not None}
    return len(types) == 1 and types <= set(FLOATS) and all(c is None or match.is_constant(c) for c in constants)


def _is_tree_ensemble(match: Match) -> bool:
    """Whether data and weights are float32."""
    (call,) = match.calls
    return {str(call.args[0].ty.dtype), str(call.ty.dtype)} == {"float32"}


def _is_layer_norm(match: Match) -> bool:
    (call,) = match.calls
    shape = shape_of(call)
    axes = sorted(int(axis) % len(shape) for axis in call.attrs.axes) if shape else []
    return bool(shape and axes == list(range(len(shape) - len(axes), len(shape))) and dtypes_of(call) <= set(FLOATS))


def _is_decomposed_layer_norm(match: Match) -> bool:
    """Whether both means keep the last axis, which they reduce, the power is a square, and epsilon is a number."""
    division = match.calls[-1]
    rank = len(shape_of(division) or ())
    for call in match.calls:
        if call.op.name == "relax.mean":
            axes = [int(axis) % rank for axis in call.attrs.axis or ()] if rank else []
            if axes != [rank - 1] or not call.attrs.keepdims:
                return False
        if call.op.name == "relax.power" and scalar_of(call.args[1]) != 2.0:
            return False
        if call.op.name == "relax.add" and scalar_of(call.args[1]) is None:
            return False
    return dtypes_of(division) == {"float32"}
