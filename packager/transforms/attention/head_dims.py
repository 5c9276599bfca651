"""Gives heads whose dims are no vectors dims of zeros: kernels of attention then load 16 bytes at a time.

Dims 6 and 10, as in Transformer in Transformer, are taken by no kernel at all, and 36 and 60, as in MobileViT, by none
that loads by TMA. Zeros of queries and keys add nothing to scores, and those of values make columns that nothing reads.
Products with constants that make queries, keys and values, and the one that reads the result, have weights with zeros;
what others make is padded, and what they read sliced.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from packager.graph.attention.heads import scaled_by
from packager.graph.dataflow import Dataflow, axes_of, computed_from_constants, operator_of, shape_of, slice_of
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.rewrite import Bindings, map_bindings, rebuild_call, recompute, tidy
from packager.transforms.attention.canonical import trace_scores

VECTOR = 8
# Scores of fewer dims are sums.
LEAST = 4


def pad_heads(module: tvm.IRModule, num_inputs: int) -> tvm.IRModule:
    """Return the module, attention of which is in canonical form, with dims of heads that are multiples of VECTOR."""
    padder = _Padder(Dataflow(module["main"]), computed_from_constants(module["main"], num_inputs))
    changed = map_bindings(module, padder.replaced)
    return tidy(changed) if len(padder.wide) else module


@dataclass(frozen=True)
class _Dims:
    """Elements of heads along an axis: ``dims`` of each, to which zeros are added."""

    axis: int
    dims: int

    @property
    def padded(self) -> int:
        return -(-self.dims // VECTOR) * VECTOR

    def added(self, shape: Sequence[Any]) -> list[Any]:
        """Return a shape with the dims that are added."""
        return [*shape[: self.axis], shape[self.axis] // self.dims * self.padded, *shape[self.axis + 1 :]]

    def at(self, axis: int) -> _Dims:
        return _Dims(axis, self.dims)


class _Padder:
    """``wide`` are the tensors with dims added, by which; ``dropped`` are variables that nothing reads any more."""

    def __init__(self, flow: Dataflow, constants: IdentitySet) -> None:
        self.flow, self.constants = flow, constants
        self.wide: IdentityMap[dict[_Dims, Any]] = IdentityMap()
        self.scores, self.results, self.dropped = IdentitySet(), IdentitySet(), IdentitySet()
        self.readers: IdentityMap[tuple[Any, Any]] = IdentityMap()  # from a product to what it reads, and its weights
        for variable in flow.variables:
            if operator_of(flow.value(variable)) == "nn.softmax":
                traced = trace_scores(flow, flow.value(variable).args[0])
                products = [reader for reader in self._behind(variable) if flow.call(reader, "matmul") is not None]
                if traced is not None and products:
                    self.scores.add(traced[0])
                    self.results |= IdentitySet(products)

    def _behind(self, weights: Any) -> list[Any]:
        """Return what reads weights, through reshapes."""
        readers = self.flow.readers(weights)
        views = [reader for reader in readers if self.flow.call(reader, "reshape") is not None]
        return [*readers, *(reader for view in views for reader in self.flow.readers(view))]

    def replaced(self, binding: Any) -> list[Any]:
        """Return the bindings that replace one."""
        variable, call = binding.var, binding.value
        if variable in self.dropped:
            return []
        if operator_of(call) != "matmul":
            return [binding]
        if variable in self.readers:
            return [relax.VarBinding(variable, rebuild_call(call, *self.readers[variable]))]
        made = Bindings(variable, "_heads")
        if variable in self.scores and (dims := _dims(call.args[0], -1)) is not None:
            queries = self._padded(made, call.args[0], dims)
            keys = self._padded(made, call.args[1], dims.at(call.args[1].ty.ndim - 2))
            return made.ended(rebuild_call(call, queries, keys))
        if variable in self.results and (dims := _dims(call.args[1], -1)) is not None:
            values = self._padded(made, call.args[1], dims)
            result = made.bind(rebuild_call(call, call.args[0], values))
            if self._read(made, variable, result, dims):
                return made.bindings
            return made.ended(relax.op.strided_slice(result, [dims.axis], [0], [dims.dims]))
        return [binding]

    def _padded(self, made: Bindings, tensor: Any, dims: _Dims) -> Any:
        """Return a tensor with dims added."""
        known = self.wide.setdefault(tensor, {})
        if dims not in known:
            moved = self._moved(made, tensor, dims)
            moved = self._product(made, tensor, dims) if moved is None else moved
            known[dims] = _with_zeros(made, tensor, dims) if moved is None else made.bind(moved)
        return known[dims]

    def _moved(self, made: Bindings, tensor: Any, dims: _Dims) -> Any | None:
        """Return what makes a tensor by moving elements, from what has dims added; None if nothing does."""
        call, shape = self.flow.value(tensor), shape_of(tensor) or ()
        if (axes := axes_of(call)) is not None:
            return relax.op.permute_dims(self._padded(made, call.args[0], dims.at(axes[dims.axis])), axes)
        if (slices := slice_of(call)) is not None:
            extent = (shape_of(call.args[0]) or ())[dims.axis]
            # Heads of values may have other dims, and be parts of the same tensor.
            if not isinstance(extent, int) or extent % dims.dims:
                return None
            begin, end, _ = slices[dims.axis].indices(extent)
            if begin % dims.dims or end % dims.dims:
                return None
            taken = {axis: (each.start, each.stop) for axis, each in enumerate(slices) if each != slice(None)}
            taken[dims.axis] = (begin // dims.dims * dims.padded, end // dims.dims * dims.padded)
            source = self._padded(made, call.args[0], dims)
            return relax.op.strided_slice(source, [*taken], *zip(*taken.values(), strict=True))
        if operator_of(call) in ("reshape", "squeeze", "expand_dims"):
            axis = _same_place(shape_of(call.args[0]) or (), shape, dims)
            if axis is not None:
                return relax.op.reshape(self._padded(made, call.args[0], dims.at(axis)), dims.added(shape))
        return None

    def _product(self, made: Bindings, tensor: Any, dims: _Dims) -> Any | None:
        """Return what computes a tensor by constants that have zeros added; None if nothing does."""
        call, last = self.flow.value(tensor), tensor.ty.ndim - 1
        if dims.axis != last or tensor in self.constants:
            return None
        if operator_of(call) == "matmul" and call.args[1] in self.constants and call.args[1].ty.ndim == 2:
            return rebuild_call(call, call.args[0], _with_zeros(made, call.args[1], dims.at(1)))
        if (scaled := scaled_by(call)) is not None and shape_of(scaled[0]) == shape_of(tensor):
            operands = [self._padded(made, scaled[0], dims), relax.const(scaled[1], str(tensor.ty.dtype))]
            return relax.op.multiply(*operands)
        if operator_of(call) not in ("add", "multiply"):
            return None
        for variable, constant in (call.args, call.args[::-1]):
            extents = shape_of(constant) or ()
            if constant in self.constants and extents[-1:] == (shape_of(tensor) or ())[-1:]:
                wide = _with_zeros(made, constant, dims.at(len(extents) - 1))
                return relax.Call(call.op, [self._padded(made, variable, dims), wide])
        return None

    def _read(self, made: Bindings, variable: Any, result: Any, dims: _Dims) -> bool:
        """Let the product that reads a result through views read one with dims added; return whether one does."""
        passed: list[Any] = []
        dims = dims.at(variable.ty.ndim - 1)
        while self.flow.is_read_once(variable):
            (reader,) = self.flow.readers(variable)
            call, shape = self.flow.value(reader), shape_of(reader) or ()
            if operator_of(call) == "matmul":
                weights = call.args[1]
                if not call.args[0].same_as(variable) or weights not in self.constants or weights.ty.ndim != 2:
                    return False
                if dims.axis != variable.ty.ndim - 1:
                    return False
                self.dropped |= IdentitySet(passed)
                early = recompute(self.flow, weights, made.bind)
                self.readers[reader] = (result, _with_zeros(made, early, dims.at(0)))
                return True
            if (axes := axes_of(call)) is not None:
                dims = dims.at(axes.index(dims.axis))
                result = made.bind(relax.op.permute_dims(result, axes))
            elif operator_of(call) in ("reshape", "squeeze", "expand_dims"):
                axis = _same_place(shape, shape_of(variable) or (), dims)
                if axis is None:
                    return False
                dims = dims.at(axis)
                result = made.bind(relax.op.reshape(result, dims.added(shape)))
            else:
                return False
            variable = reader
            passed.append(reader)
        return False


def _dims(tensor: Any, axis: int) -> _Dims | None:
    """Return the dims along an axis, if any are to be added."""
    shape = shape_of(tensor) or ()
    count = shape[axis]
    is_odd = isinstance(count, int) and count >= LEAST and count % VECTOR
    return _Dims(axis % len(shape), count) if is_odd else None


def _same_place(inner: Sequence[Any], outer: Sequence[Any], dims: _Dims) -> int | None:
    """Return the axis of a tensor before a reshape whose heads are those of an axis behind it, or None."""
    behind = outer[dims.axis + 1 :]
    if not all(isinstance(extent, int) for extent in behind):
        return None
    for axis in range(len(inner) - 1, -1, -1):
        rest = inner[axis + 1 :]
        if not all(isinstance(extent, int) for extent in rest) or math.prod(rest) > math.prod(behind):
            return None
        if math.prod(rest) == math.prod(behind) and isinstance(inner[axis], int) and inner[axis] % dims.dims == 0:
            return axis
    return None


def _with_zeros(made: Bindings, tensor: Any, dims: _Dims) -> Any:
    """Bind a tensor with zeros behind the elements of each head."""
    shape = [*tensor.ty.shape.values]
    before, count, behind = shape[: dims.axis], int(shape[dims.axis]) // dims.dims, shape[dims.axis + 1 :]
    heads = made.bind(relax.op.reshape(tensor, [*before, count, dims.dims, *behind]))
    widths = [0] * (2 * len(shape) + 2)
    widths[2 * dims.axis + 3] = dims.padded - dims.dims
    return made.bind(
        relax.op.reshape(made.bind(relax.op.nn.pad(heads, widths)), [*before, count * dims.padded, *behind])
    )
