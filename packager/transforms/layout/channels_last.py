"""Converts convolutions and poolings to NWC, NHWC or NDHWC: reductions and vectors run over contiguous channels.

Operators between convolutions follow where they can; all others keep the model's layout. Permuted weights are folded at
build time. TVM's ConvertLayout fails on models that change ranks between convolutions.
"""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from packager.graph.dataflow import Dataflow, bindings_of, computed_from_constants, operator_of, shape_of
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.rewrite import map_operands, rebuild_call, rebuild_main, with_main
from packager.ir.preparation import Preparation
from packager.transforms.layout.channel_patterns import (
    VIEWS,
    find_flattened,
    find_mean_of_neighbors,
    find_rearrangement,
    find_unflattened,
)
from packager.transforms.layout.computed_filters import is_worth_permuting
from packager.transforms.layout.image_norms import is_image_norm, write_image_norm
from packager.transforms.layout.layouts import (
    CONVOLUTIONS,
    ELEMENTWISE,
    FIRST,
    LAST,
    last_axis,
    permuted,
    to_first,
    to_last,
)
from packager.transforms.layout.movement import enlarges_a_result, move_last
from packager.transforms.layout.windows.im2col import find_im2col
from packager.transforms.layout.windows.padded_rows import find_padded_rows
from packager.transforms.layout.windows.row_windows import find_row_windows

POOLINGS = tuple(f"nn.{kind}_pool{n}d" for kind in ("max", "avg", "adaptive_avg") for n in (1, 2, 3))
# What is converted on a GPU, where kernels with channels last are of two dimensions.
PLANAR = ("nn.conv2d", "nn.max_pool2d", "nn.avg_pool2d", "nn.adaptive_avg_pool2d")
REDUCTIONS = ("mean", "sum", "max", "min")
MOVED = ELEMENTWISE | {
    *("floor", "ceil", "round", "sign", "where"),
    *("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"),
}


def to_channels_last(
    module: tvm.IRModule,
    num_inputs: int | None = None,
    *,
    im2col_inputs: int | None = None,
    wanted: Preparation | None = None,
    volumes: IdentitySet | None = None,
) -> tvm.IRModule:
    """Convert convolutions and poolings of ``main`` to channels last; its parameters and results keep their layouts.

    By default only 2-D ones and ``volumes`` are converted, poolings only after convolutions. With ``num_inputs``, the
    number of parameters before the constants, all are, 2-D poolings wherever they are, and convolutions whose weights
    depend on inputs only if it is worth that these are permuted in every run. With ``im2col_inputs``, also a number of
    inputs, convolutions with few channels are lowered to im2col + matmul, or as backends want them.
    """
    names = {operator_of(binding.value) for binding in bindings_of(module["main"])}
    if not names & ({"nn.conv2d"} if num_inputs is None else {*CONVOLUTIONS, *POOLINGS, "mean"}) and not volumes:
        return module
    return _Converter(module, num_inputs, im2col_inputs, wanted or Preparation(), volumes or IdentitySet()).convert()


class _Converter:
    """``first`` and ``last`` map original variables to their values with channels first and last, created on demand.

    ``computed_last`` are the variables computed with channels last. ``constants`` are the variables that depend on no
    input; None disables the check. ``filters`` are the constants allowed as filters of im2col.
    """

    def __init__(
        self,
        module: tvm.IRModule,
        num_inputs: int | None,
        im2col_inputs: int | None,
        wanted: Preparation,
        volumes: IdentitySet,
    ) -> None:
        self.module, self.wanted, self.volumes = module, wanted, volumes
        self.main = main = module["main"]
        self.builder = relax.BlockBuilder()
        self.flow = Dataflow(main)
        self.first: IdentityMap[Any] = IdentityMap()
        self.last: IdentityMap[Any] = IdentityMap()
        self.computed_last = IdentitySet()
        self.constants = None if num_inputs is None else computed_from_constants(main, num_inputs)
        self.filters = IdentitySet() if im2col_inputs is None else computed_from_constants(main, im2col_inputs)

    def convert(self) -> tvm.IRModule:
        self.first.update((parameter, parameter) for parameter in self.main.params)
        rewritten = with_main(self.module, rebuild_main(self.builder, self.main, self._bind, self._rewritten))
        gathers = {v: f for v, f in self.builder.get().functions.items() if v.name_hint != "main"}
        return tvm.IRModule({**rewritten.functions, **gathers}, attrs=rewritten.attrs)

    def _bind(self, binding: Any) -> None:
        value, variable = binding.value, binding.var
        is_image = isinstance(value, relax.Call) and _rank(variable) in LAST
        # Of three axes it may be rows as well: channels are last only where an operator asks for that.
        source = self._source_with_channels_last(value) if is_image and _rank(variable) > 3 else None
        stays = self.constants is not None and is_image and enlarges_a_result(self.flow, variable, value)
        converted = source if source is not None or not is_image or stays else self._channels_last(value)
        if converted is not None:
            self.last[variable] = self.builder.emit(converted, binding.var.name if source is None else "")
            self.computed_last.add(variable)
            return
        if isinstance(value, relax.Var) and value in self.last:
            self.last[variable] = self.last[value]
        rewritten = self._plane_reduction(value)
        rewritten = self._transposed(value) if rewritten is None else rewritten
        rewritten = self._rewritten(value) if rewritten is None else rewritten
        self.first[variable] = self.builder.emit(rewritten, binding.var.name)

    def _rewritten(self, expr: Any) -> Any:
        """Return an expression with operands in the model's layout."""
        if isinstance(expr, relax.Var):
            return self._in_first(expr) if expr in self.first or expr in self.last else expr
        return map_operands(expr, self._rewritten)

    def _in_first(self, variable: Any) -> Any:
        if variable not in self.first:
            self.first[variable] = self.builder.emit(permuted(self.last[variable], to_first(_rank(variable))))
        return self.first[variable]

    def _in_last(self, variable: Any) -> Any:
        if variable not in self.last:
            source = self._source_with_channels_last(self.flow.value(variable))
            if source is None:
                source = permuted(self._rewritten(variable), to_last(_rank(variable)))
            self.last[variable] = self.builder.emit(source)
        return self.last[variable]

    def _source_with_channels_last(self, call: Any) -> Any | None:
        """Return what the model transposes to channels first in ``call``, with channels last; else None."""
        axes = call.attrs.axes if operator_of(call) == "permute_dims" else None
        if axes is not None and list(map(int, axes)) == to_first(_rank(call)):
            return self._rewritten(call.args[0])
        tokens = find_unflattened(call, self.flow)
        if tokens is None:
            return None
        extents = call.ty.shape.values
        return relax.op.reshape(self._rewritten(tokens), [extents[axis] for axis in to_last(len(extents))])

    def _channels_last(self, call: relax.Call) -> Any | None:
        """Return the call on operands with channels last, or None to leave it unchanged."""
        name, rank = operator_of(call), _rank(call)
        if name in CONVOLUTIONS and (name in PLANAR or self.constants is not None or call in self.volumes):
            return self._convolution(call)
        is_pooling = name in POOLINGS and call.attrs.layout == FIRST[rank][0]
        if is_pooling and self.constants is not None and (rank == 4 or _overlaps(call)):
            return self._pooling(call, name)
        if name in VIEWS:
            rearranged = self._rearranged(call)
            return self._mean_of_neighbors(call) if rearranged is None else rearranged
        axes = _reduced_axes(call) if name in REDUCTIONS and call.attrs.keepdims else []
        is_plane_mean = name == "mean" and rank == 4 and axes == [1, 2] and self.constants is not None
        if not is_plane_mean and not any(self._prefers_last(argument) for argument in call.args):
            return None
        if is_pooling:
            return self._pooling(call, name)
        if self.constants is None and is_image_norm(self.flow, call):
            source, data = map(self._in_last, (self.flow.value(call.args[0]).args[0], call.args[0]))
            return write_image_norm(self.builder, call, source, data, [*map(self._rewritten, call.args[1:])])
        if axes:
            return getattr(relax.op, name)(self._in_last(call.args[0]), axes, keepdims=True)
        if name in MOVED:
            return self._elementwise(call)
        if name == "concat" and isinstance(call.args[0], relax.Tuple):
            axis = last_axis(int(call.attrs.axis), rank)
            return relax.op.concat([self._in_last(field) for field in call.args[0].fields], axis)
        return move_last(call, self._in_last)

    def _transposed(self, call: Any) -> Any | None:
        """Match a transpose of the model to [N, ..., C] or [N, H * W, C]; return the value with channels last."""
        axes = call.attrs.axes if operator_of(call) == "permute_dims" else None
        if axes and list(map(int, axes)) == to_last(_rank(call)) and self._prefers_last(call.args[0]):
            return self._in_last(call.args[0])
        flattened = find_flattened(call, self.flow)
        if flattened is None or not self._prefers_last(flattened):
            return None
        return relax.op.reshape(self._in_last(flattened), call.ty.shape)

    def _plane_reduction(self, call: Any) -> relax.Call | None:
        """Return a reduction to [N, C], or of channels to [N, ...], which is the same in both layouts."""
        name = operator_of(call)
        if name not in REDUCTIONS or not self._prefers_last(call.args[0]):
            return None
        axes, last = _reduced_axes(call), _rank(call.args[0]) - 1
        if axes not in (list(range(1, last)), [last]) or call.attrs.keepdims:
            return None
        return getattr(relax.op, name)(self._in_last(call.args[0]), axes)

    def _prefers_last(self, argument: Any) -> bool:
        """Whether an operand is computed with channels last."""
        if isinstance(argument, relax.Tuple):
            return any(self._prefers_last(field) for field in argument.fields)
        return argument in self.computed_last

    def _rearranged(self, call: relax.Call) -> Any | None:
        found = find_rearrangement(call, self.flow)
        if found is None or not self._prefers_last(found.source):
            return None
        value = self._in_last(found.source)
        if found.moves:
            parts = self.builder.emit(relax.op.reshape(value, found.parts))
            value = self.builder.emit(relax.op.permute_dims(parts, list(found.axes)))
        return relax.op.reshape(value, found.whole)

    def _mean_of_neighbors(self, call: relax.Call) -> relax.Call | None:
        mean = find_mean_of_neighbors(call, self.flow)
        if mean is None or self.constants is None or not self._prefers_last(mean.source):
            return None
        batch, height, width, channels = mean.whole
        rows = self.builder.emit(relax.op.reshape(self._in_last(mean.source), (batch * height * width, 1, channels)))
        pooled = relax.op.nn.avg_pool1d(rows, mean.window, padding=mean.padding, count_include_pad=mean.counts_padding)
        return relax.op.reshape(self.builder.emit(pooled), mean.whole)

    def _convolution(self, call: relax.Call) -> Any | None:
        attrs, rank = call.attrs, _rank(call)
        if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) != (*FIRST[rank], FIRST[rank][0]):
            return None
        if self.constants is not None and call.args[1] not in self.constants and not is_worth_permuting(call):
            return None
        last = self._prefers_last(call.args[0])
        padded = find_padded_rows(call, self.filters, last=last) if self.wanted.padded_rows and rank == 4 else None
        if padded is not None:
            read = self._in_last if padded.reads_last else self._rewritten
            image = padded.image(self.builder, read(call.args[0]))
            return padded.convolve(self.builder, call, image, self._rewritten(call.args[1]))
        rows = find_row_windows(call, self.filters, last=last) if self.wanted.volume_windows and rank == 5 else None
        windows = rows or (find_im2col(call, self.filters, last=last) if self.filters else None)
        if windows is not None:
            data = self._in_last(call.args[0]) if last else self._rewritten(call.args[0])
            return windows.convolve(self.builder, call, data, self._rewritten(call.args[1]))
        weight = self.builder.emit(relax.op.permute_dims(self._rewritten(call.args[1]), to_last(rank)))
        layout, kernel_layout = LAST[rank]
        data = self._in_last(call.args[0])
        return rebuild_call(call, data, weight, data_layout=layout, kernel_layout=kernel_layout, out_layout=layout)

    def _pooling(self, call: relax.Call, name: str) -> Any:
        data, attrs, (layout, _) = self._in_last(call.args[0]), call.attrs, LAST[_rank(call)]
        operator = getattr(relax.op.nn, name.removeprefix("nn."))
        if "adaptive" in name:
            return operator(data, attrs.output_size, layout=layout)
        kept = ("pool_size", "strides", "padding", "dilation", "ceil_mode", "count_include_pad")
        return operator(data, **{attribute: getattr(attrs, attribute) for attribute in kept}, layout=layout)

    def _elementwise(self, call: relax.Call) -> Any | None:
        operands: list[Any] = []
        rank = _rank(call)
        plans: list[tuple[str, Any]] = [(_how(argument, rank), argument) for argument in call.args]
        if any(how == "no" for how, _ in plans):
            return None
        for how, argument in plans:
            if how == "as it is":
                operands.append(self._rewritten(argument))
            elif how == "channels":
                axes = [*range(1, rank - 1), 0]
                operands.append(self.builder.emit(relax.op.permute_dims(self._rewritten(argument), axes)))
            else:
                operands.append(self._in_last(argument))
        return relax.Call(call.op, operands, call.attrs, call.ty_args)


def _reduced_axes(call: relax.Call) -> list[int]:
    """Return the reduced axes with channels last; empty if all are reduced."""
    rank = _rank(call.args[0])
    return sorted(last_axis(int(axis), rank) for axis in call.attrs.axis or ()) if rank in LAST else []


def _overlaps(call: relax.Call) -> bool:
    """Whether windows of a pooling overlap: each element is read often, by vectors with channels last."""
    sizes, strides = getattr(call.attrs, "pool_size", ()), getattr(call.attrs, "strides", ())
    return any(int(size) > int(stride) for size, stride in zip(sizes, strides, strict=True))


def _rank(value: Any) -> int:
    """Return the rank of a tensor; 0 for other values."""
    ty = value.ty
    return int(ty.ndim) if isinstance(ty, relax.TensorType) else 0


def _how(argument: Any, rank: int) -> str:
    """Return how an operand of an elementwise operator of this rank follows the result to channels last."""
    extents = shape_of(argument)
    if extents is None:
        return "as it is" if not isinstance(argument.ty, relax.TensorType) else "no"
    if all(isinstance(extent, int) and extent == 1 for extent in extents) and len(extents) < rank:
        return "as it is"
    if len(extents) == rank and isinstance(argument, relax.Var):
        return "last"
    return "channels" if len(extents) == rank - 1 and isinstance(argument, relax.Var) else "no"
