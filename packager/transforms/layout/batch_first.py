"""Computes sequences batch first where a model turns them: torch's MultiheadAttention runs sequence first inside.

``nn.MultiheadAttention(batch_first=True)`` (https://docs.pytorch.org/docs/stable/generated/torch.nn.MultiheadAttention.html)
transposes [batch, rows, width] to [rows, batch, width], multiplies, splits heads of batches, and transposes back. What
works on rows one by one gives the same rows in either order, so that the transposes meet and cancel each other; what is
left are heads [batch, rows, heads, depth], which attention reads where they lie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import (
    axes_of,
    bindings_of,
    known_product,
    operator_of,
    same,
    scalar_of,
    shape_of,
    slice_of,
)
from packager.graph.identity import IdentityMap
from packager.graph.rewrite import map_bindings, tidy

TURN = (1, 0, 2)  # [batch, rows, width] and [rows, batch, width]
KEYS = (1, 2, 0)  # [rows, batch * heads, depth] to [batch * heads, depth, rows]
HEADS = (0, 2, 1, 3)  # [batch, heads, rows, depth] and [batch, rows, heads, depth]
OUT = (2, 0, 1, 3)  # [batch, heads, rows, depth] to [rows, batch, heads, depth]
_UNARY = (
    "astype",
    "nn.relu",
    "nn.gelu",
    "nn.gelu_tanh",
    "nn.silu",
    "sigmoid",
    "tanh",
    "erf",
    "exp",
    "negative",
    "sqrt",
)
_BINARY = ("add", "subtract", "multiply", "divide", "maximum", "minimum", "power")
_NORMS = ("nn.layer_norm", "nn.rms_norm")


def batch_first(module: tvm.IRModule) -> tvm.IRModule:
    """Rewrite ``main`` where fewer elements are transposed then."""
    turned = _Turned()
    changed = tidy(map_bindings(module, turned.replaced))
    return changed if _transposed(changed) < _transposed(module) else module


def _transposed(module: tvm.IRModule) -> int:
    """Return how many elements transposes move that attention does not read as they are; symbolic extents are 1."""
    moved = 0
    for binding in bindings_of(module["main"]):
        if axes_of(binding.value) in (TURN, KEYS, OUT):
            moved += known_product(shape_of(binding.var) or ())
    return moved


class _Turned:
    """What is known of variables that are the same rows in another order, each as the variable that has them batch
    first: ``turned`` [rows, batch, width], ``flat`` [rows * batch, width], ``split`` [rows, batch * heads, depth] and
    ``heads`` [batch * heads, rows, depth] of [batch, rows, width]; ``out`` [rows, batch, heads, depth] of
    [batch, heads, rows, depth]."""

    def __init__(self) -> None:
        self.viewed: IdentityMap[Any] = IdentityMap()  # from a reshape of reshapes to what these begin with
        self.turned: IdentityMap[Any] = IdentityMap()
        self.flat: IdentityMap[Any] = IdentityMap()
        self.split: IdentityMap[Any] = IdentityMap()
        self.heads: IdentityMap[Any] = IdentityMap()
        self.out: IdentityMap[Any] = IdentityMap()

    def replaced(self, binding: Any) -> list[Any]:
        """Return the bindings that replace one; those that nothing reads any more are removed later."""
        made: list[Any] = []

        def bind(value: Any) -> Any:
            value = relax.BlockBuilder().normalize(value)
            variable = relax.DataflowVar(binding.var.name, value.ty)
            made.append(relax.VarBinding(variable, value))
            return variable

        value = self._value(binding.var, binding.value, bind)
        return [*made, relax.VarBinding(binding.var, binding.value if value is None else value)]

    def _value(self, variable: Any, value: Any, bind: Callable[[Any], Any]) -> Any:
        """Return another expression of a variable's value, or None."""
        match operator_of(value):
            case "permute_dims":
                return self._permuted(variable, value, bind)
            case "reshape" | "squeeze" | "expand_dims":
                source = self.viewed[variable] = self.viewed.get(value.args[0], value.args[0])
                if not same(tuple(shape_of(variable) or ()), tuple(shape_of(source) or ())):
                    return self._reshaped(variable, source, bind)
                for known in (self.turned, self.flat, self.split, self.heads, self.out):
                    if source in known:
                        known[variable] = known[source]
                return source
            case name if name in (*_UNARY, *_BINARY, *_NORMS, "matmul", "strided_slice"):
                return self._by_rows(variable, name, value, bind)
        return None

    def _permuted(self, variable: Any, call: Any, bind: Callable[[Any], Any]) -> Any:
        (source,), order = call.args, axes_of(call)
        if order == OUT:
            self.out[variable] = source
        elif order == TURN and source in self.turned:
            return self.turned[source]
        elif order in (TURN, KEYS) and source in self.split:
            first = self.split[source]
            batch, rows, width = shape_of(first) or ()
            _, joined, depth = shape_of(source) or ()
            apart = bind(relax.op.reshape(first, (batch, rows, width // depth, depth)))
            heads = relax.op.reshape(bind(relax.op.permute_dims(apart, HEADS)), (joined, rows, depth))
            if order == KEYS:
                return relax.op.permute_dims(bind(heads), [0, 2, 1])
            self.heads[variable] = first
            return heads
        elif order == TURN:
            self.turned[variable] = source
        return None

    def _reshaped(self, variable: Any, source: Any, bind: Callable[[Any], Any]) -> Any:
        shape, extents = shape_of(variable) or (), shape_of(source) or ()
        if source in self.turned:
            rows, batch, width = extents
            if same(tuple(shape), (rows * batch, width)):
                self.flat[variable] = self.turned[source]
            elif _are_heads(shape, extents):
                self.split[variable] = self.turned[source]
            elif len(shape) in (2, 3) and isinstance(width, int) and isinstance(shape[-1], int):
                return self._merged(variable, self.turned[source], shape, bind)
        elif source in self.flat:
            first = self.flat[source]
            batch, rows, width = shape_of(first) or ()
            if same(tuple(shape), (rows, batch, width)):
                return self._again(variable, first, bind)
        elif source in self.heads and len(shape) == 4:
            first = self.heads[source]
            batch, rows, _ = shape_of(first) or ()
            if same(tuple(shape), (batch, shape[1], rows, extents[-1])):
                return relax.op.permute_dims(bind(relax.op.reshape(first, (batch, rows, shape[1], extents[-1]))), HEADS)
        elif source in self.out:
            rows, batch, heads, depth = extents
            joined = (rows, batch, heads * depth)
            if same(tuple(shape), joined) or same(tuple(shape), (rows * batch, heads * depth)):
                behind = bind(relax.op.permute_dims(self.out[source], HEADS))
                first = bind(relax.op.reshape(behind, (batch, rows, heads * depth)))
                return self._again(variable, first, bind)
        return None

    def _again(self, variable: Any, first: Any, bind: Callable[[Any], Any]) -> Any:
        """Return rows ``first`` in the order of a variable, and remember that it has them."""
        shape, turn = shape_of(variable) or (), relax.op.permute_dims(first, TURN)
        (self.turned if len(shape) == 3 else self.flat)[variable] = first
        return turn if len(shape) == 3 else relax.op.reshape(bind(turn), shape)

    def _merged(self, variable: Any, first: Any, shape: Sequence[Any], bind: Callable[[Any], Any]) -> Any:
        """Return [rows, batch, width] or [rows * batch, width] of ``first`` [batch * heads, rows, depth]."""
        rows, depth, width = (shape_of(first) or ())[1], (shape_of(first) or ())[2], shape[-1]
        all_heads = (shape_of(first) or ())[0]
        heads = width // depth
        if width % depth or heads == 1 or (isinstance(all_heads, int) and all_heads % heads):
            return None
        batch = all_heads // heads
        wanted = [(rows, batch, width), (rows * batch, width)]
        if not any(same(tuple(shape), each) for each in wanted):
            return None
        apart = bind(relax.op.reshape(first, (batch, heads, rows, depth)))
        behind = bind(relax.op.permute_dims(apart, HEADS))
        joined = bind(relax.op.reshape(behind, (batch, rows, width)))
        return self._again(variable, joined, bind)

    def _by_rows(self, variable: Any, name: str, call: Any, bind: Callable[[Any], Any]) -> Any:
        """Apply an operator that works on rows one by one to the rows batch first."""
        operands = [argument for argument in call.args if not isinstance(argument, relax.Tuple | relax.ShapeExpr)]
        known = self.turned if any(each in self.turned for each in operands) else self.flat
        rank = 3 if known is self.turned else 2
        if name == "matmul":  # its rows are those of the first operand; the matrix is as it is
            if operands[0] not in known or len(shape_of(operands[1]) or ()) != 2:
                return None
            operands = operands[:1]
        for operand in operands:
            if operand not in known and (
                operand in self.turned or not _is_of_all_rows(operand, shape_of(operand) or ())
            ):
                return None
        extents = [shape_of(known[operand]) or () for operand in operands if operand in known]
        if known is self.flat and not all(same(each[:2], extents[0][:2]) for each in extents):
            return None
        if not extents or len(shape_of(variable) or ()) != rank:
            return None
        if name in _NORMS and [int(axis) for axis in call.attrs.axes] not in ([-1], [2]):
            return None
        if name == "strided_slice":
            slices = slice_of(call)
            if slices is None or any(part != slice(None) for part in slices[:-1]):
                return None
            begin, end = slices[-1].start, slices[-1].stop
            first = bind(relax.op.strided_slice(known[operands[0]], [2], [begin], [end]))
        else:
            rows = IdentityMap((operand, known[operand]) for operand in operands if operand in known)
            changed = [rows.get(argument, argument) for argument in call.args[: len(operands)]]
            first = bind(relax.Call(call.op, [*changed, *call.args[len(operands) :]], call.attrs, call.ty_args))
        return self._again(variable, first, bind)


def _is_of_all_rows(operand: Any, extents: Sequence[Any]) -> bool:
    """Whether an operand is a number, or has one row for all."""
    return scalar_of(operand) is not None or all(same(extent, 1) for extent in extents[:-1])


def _are_heads(shape: Sequence[Any], extents: Sequence[Any]) -> bool:
    """Whether a reshape of [rows, batch, width] splits heads: [rows, batch * heads, depth]."""
    rows, batch, width = extents
    if len(shape) != 3 or not isinstance(width, int) or not isinstance(shape[2], int) or width % shape[2]:
        return False
    return same(shape[0], rows) and same(shape[1], batch * (width // shape[2]))
