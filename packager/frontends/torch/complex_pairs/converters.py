"""Converters of torch's operators on complex numbers, as pairs of real tensors.

What only moves elements or adds them up is converted twice by the converter of real numbers: once for each part.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tvm import relax

from packager.errors import ModelError
from packager.frontends.torch.complex_pairs.arithmetic import (
    Complex,
    absolute,
    add_parts,
    angle,
    conjugate,
    divide,
    exponential,
    from_polar,
    is_complex,
    logarithm,
    multiply,
    square_root,
    stacked,
    unstacked,
)
from packager.frontends.torch.complex_pairs.fourier import FOURIER
from packager.frontends.torch.ops.program import argument, operator_of
from packager.graph.dataflow import same, shape_of

_R = relax.op
# Powers up to this one are products.
MOST_FACTORS = 8


def convert_complex(importer: Any, node: Any, convert: Callable[[Any, Any], Any]) -> Any:
    """Convert a node of complex operands or results; ``convert`` is for real ones, or takes pairs as they are.

    Raises ModelError for an operator that is not supported.
    """
    name = operator_of(node)
    packet = name.partition(".")[0]
    if name in PAIRS or name in FOURIER:
        return convert(importer, node)
    if packet in COMPLEX:
        return COMPLEX[packet](importer, node)
    if not _is_by_parts(node, name, packet):
        raise ModelError(
            f"{name} ({node.name}) is not supported for complex numbers",
            hint="write it with the real and the imaginary parts: torch.view_as_real gives them",
        )
    whole, parts = importer.env, []
    for part in ("real", "imaginary"):
        importer.env = _Parts(whole, part)
        parts.append(importer.emit(convert(importer, node)))
    importer.env = whole
    return Complex(*parts)


@dataclass(frozen=True)
class _Parts(Mapping[Any, Any]):
    """The values of nodes, with one part of those that are complex."""

    whole: Mapping[Any, Any]
    part: str

    def __getitem__(self, node: Any) -> Any:
        value = self.whole[node]
        return getattr(value, self.part) if isinstance(value, Complex) else value

    def __iter__(self) -> Iterator[Any]:
        return iter(self.whole)

    def __len__(self) -> int:
        return len(self.whole)


def _is_by_parts(node: Any, name: str, packet: str) -> bool:
    """Tell whether an operator does the same with real and with imaginary parts; real operands must be indices."""
    metas = [operand.meta["val"] for operand in node.all_input_nodes if not is_complex(operand)]
    others = [meta for meta in metas if isinstance(meta, torch.Tensor)]
    if name == "constant_pad_nd.default" and argument(node, 2, "value", 0) != 0:
        return False
    if others:
        return name in INDEXED and not any(meta.is_floating_point() for meta in others)
    return packet in BY_PARTS


def _pair(importer: Any, given: Any, dtype: str) -> Complex:
    """Return an argument as a pair of parts of ``dtype``."""
    if isinstance(given, complex):
        return Complex(relax.const(given.real, dtype), relax.const(given.imag, dtype))
    if not is_complex(given):
        return Complex(importer.tensor(given, dtype), None)
    value = importer.value(given)
    return Complex(importer.cast(value.real, dtype), importer.cast(value.imaginary, dtype))


def _pairs(importer: Any, node: Any, count: int) -> list[Complex]:
    """Return the first operands of a node, in the type of the parts of those that are complex."""
    own = next(operand for operand in (node, *node.all_input_nodes) if is_complex(operand))
    return [_pair(importer, operand, importer.dtype(own)) for operand in node.args[:count]]


def _result(importer: Any, node: Any, pair: Complex) -> Complex:
    """Return both parts in the shape of a node's result."""
    shape, dtype = importer.shape(node), importer.dtype(node)

    def whole(part: Any) -> Any:
        part = relax.const(0, dtype) if part is None else importer.emit(part)
        return part if same(shape_of(part), tuple(shape)) else importer.emit(_R.broadcast_to(part, shape))

    return Complex(whole(pair.real), whole(pair.imaginary))


def _of_pairs(function: Callable[..., Complex], count: int = 1) -> Callable[[Any, Any], Any]:
    """Return a converter of ``count`` operands to a complex result; ``function`` gets ``emit`` and the pairs."""

    def convert(importer: Any, node: Any) -> Any:
        return _result(importer, node, function(importer.emit, *_pairs(importer, node, count)))

    return convert


def _part(function: Callable[..., Any]) -> Callable[[Any, Any], Any]:
    """Return a converter of one complex operand to a real result."""

    def convert(importer: Any, node: Any) -> Any:
        return function(importer.emit, importer.value(node.args[0]))

    return convert


def _added(add: Callable[[Any, Any], Any], *, swapped: bool = False) -> Callable[[Any, Any], Any]:
    def convert(importer: Any, node: Any) -> Any:
        pairs = _pairs(importer, node, 2)
        scale = argument(node, 2, "alpha", 1)
        first, second = reversed(pairs) if swapped else pairs
        if scale != 1:
            factor = _pair(importer, scale, importer.dtype(node))
            second = multiply(importer.emit, second, factor)
        emit = importer.emit
        parts = ((first.real, second.real), (first.imaginary, second.imaginary))
        return _result(importer, node, Complex(*(add_parts(emit, *each, add) for each in parts)))

    return convert


def _power(importer: Any, node: Any) -> Any:
    base, times, emit = importer.value(node.args[0]), node.args[1], importer.emit
    if not isinstance(times, int | float) or times != int(times) or not 1 <= abs(times) <= MOST_FACTORS:
        raise ValueError(f"powers of complex numbers are supported up to {MOST_FACTORS}, for integers that are known")
    result = base
    for _ in range(abs(int(times)) - 1):
        result = multiply(emit, result, base)
    one = Complex(relax.const(1, importer.dtype(node)), None)
    return _result(importer, node, result if times > 0 else divide(emit, one, result))


def _linear(importer: Any, node: Any) -> Any:
    emit, (data, weight) = importer.emit, _pairs(importer, node, 2)
    order = [1, 0] if node.args[1].meta["val"].ndim == 2 else [0]
    turned = Complex(*(None if p is None else emit(_R.permute_dims(p, order)) for p in (weight.real, weight.imaginary)))
    result, bias = multiply(emit, data, turned, _R.matmul), argument(node, 2, "bias")
    if bias is not None:
        added = _pair(importer, bias, importer.dtype(node))
        result = Complex(add_parts(emit, result.real, added.real), add_parts(emit, result.imaginary, added.imaginary))
    return _result(importer, node, result)


def _made(importer: Any, node: Any) -> Any:
    """Make complex numbers of real and imaginary parts."""
    return _result(importer, node, Complex(*(importer.tensor(operand) for operand in node.args)))


def _made_polar(importer: Any, node: Any) -> Any:
    return _result(importer, node, from_polar(importer.emit, *(importer.tensor(operand) for operand in node.args)))


def _from_real_view(importer: Any, node: Any) -> Any:
    """Take the parts from the last axis of a real tensor."""
    return unstacked(importer.emit, importer.tensor(node.args[0]), node.meta["val"].ndim)


def _as_real_view(importer: Any, node: Any) -> Any:
    data, axis = importer.value(node.args[0]), node.meta["val"].ndim - 1
    return stacked(importer.emit, data, axis)


def _angle(importer: Any, node: Any) -> Any:
    """Return the angles of complex numbers; those of real ones are 0 or pi."""
    if is_complex(node.args[0]):
        return angle(importer.emit, importer.value(node.args[0]))
    dtype = importer.dtype(node)
    data = importer.tensor(node.args[0], dtype)
    negative = importer.emit(_R.less(data, relax.const(0, dtype)))
    turned = importer.emit(_R.where(negative, relax.const(np.pi, dtype), relax.const(0, dtype)))
    return _R.where(importer.emit(_R.isnan(data)), data, turned)


def _to_copy(importer: Any, node: Any) -> Any:
    (pair,) = _pairs(importer, node, 1)
    dtype = importer.dtype(node)
    parts = [None if part is None else importer.cast(part, dtype) for part in (pair.real, pair.imaginary)]
    return _result(importer, node, Complex(*parts)) if is_complex(node) else parts[0]


def _filled(importer: Any, node: Any) -> Any:
    """Make a tensor of one number, which an argument gives or the name of the operator."""
    packet = operator_of(node).partition(".")[0]
    place = {"full": 1, "full_like": 1, "new_full": 2, "scalar_tensor": 0}.get(packet)
    value = int("ones" in packet) if place is None else node.args[place]
    return _result(importer, node, _pair(importer, value, importer.dtype(node)))


def _compared(equal: Callable[[Any, Any], Any], join: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def convert(importer: Any, node: Any) -> Any:
        first, second = _pairs(importer, node, 2)
        zero = relax.const(0, str(first.real.ty.dtype))
        parts = ((first.real, second.real), (first.imaginary, second.imaginary))
        return join(*(importer.emit(equal(*(zero if p is None else p for p in pair))) for pair in parts))

    return convert


BY_PARTS = frozenset(
    (
        *("alias", "clone", "contiguous", "detach", "lift_fresh_copy", "view", "_unsafe_view", "reshape", "flatten"),
        *("unflatten", "unsqueeze", "squeeze", "permute", "transpose", "expand", "repeat", "slice", "select", "split"),
        *("split_with_sizes", "unbind", "getitem", "cat", "stack", "flip", "roll", "constant_pad_nd", "as_strided"),
        *("unfold", "slice_scatter", "select_scatter", "diagonal_scatter", "tril", "triu", "neg", "sum", "mean"),
        *("cumsum", "diagonal", "copy"),
    )
)
# Those with real operands beside the complex ones: indices and masks.
INDEXED = frozenset(
    (
        *("index.Tensor", "index_select.default", "gather.default", "embedding.default", "where.self"),
        *("index_put.default", "scatter.src", "masked_scatter.default"),
    )
)

# Operators that complex numbers alone have, with those that take their parts.
PAIRS: Mapping[str, Callable[[Any, Any], Any]] = {
    "complex.default": _made,
    "polar.default": _made_polar,
    "view_as_complex.default": _from_real_view,
    "view_as_real.default": _as_real_view,
    "real.default": _part(lambda _, pair: pair.real),
    "imag.default": _part(lambda _, pair: pair.imaginary),
    "angle.default": _angle,
    **{f"{name}.default": _of_pairs(conjugate) for name in ("_conj", "conj", "_conj_physical", "conj_physical")},
}

# Those that real numbers have as well, by names without overloads.
COMPLEX: Mapping[str, Callable[[Any, Any], Any]] = {
    "abs": _part(absolute),
    "add": _added(_R.add),
    "sub": _added(_R.subtract),
    "rsub": _added(_R.subtract, swapped=True),
    "mul": _of_pairs(multiply, 2),
    "div": _of_pairs(divide, 2),
    "reciprocal": _of_pairs(lambda emit, a: divide(emit, Complex(relax.const(1, str(a.real.ty.dtype)), None), a)),
    **{name: _of_pairs(lambda emit, a, b: multiply(emit, a, b, _R.matmul), 2) for name in ("matmul", "mm", "bmm")},
    "linear": _linear,
    "exp": _of_pairs(exponential),
    "log": _of_pairs(logarithm),
    "sqrt": _of_pairs(square_root),
    "pow": _power,
    "eq": _compared(_R.equal, _R.logical_and),
    "ne": _compared(_R.not_equal, _R.logical_or),
    "_to_copy": _to_copy,
    **{name: _filled for kind in ("full", "ones", "zeros") for name in (kind, f"{kind}_like", f"new_{kind}")},
    "scalar_tensor": _filled,
}
