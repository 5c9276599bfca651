"""Converts 2-D convolutions and poolings to NHWC, where reductions and vectors run over contiguous channels.

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
from packager.transforms.layout.channel_patterns import VIEWS, find_flattened, find_mean_of_neighbors, find_shuffle
from packager.transforms.layout.im2col import find_im2col

TO_NHWC = [0, 2, 3, 1]
TO_NCHW = [0, 3, 1, 2]
AXES = {0: 0, 1: 3, 2: 1, 3: 2}  # axis of NCHW -> axis of NHWC
CONVOLUTION = "nn.conv2d"
POOLINGS = ("nn.max_pool2d", "nn.avg_pool2d", "nn.adaptive_avg_pool2d")
REDUCTIONS = ("mean", "sum", "max", "min")
ELEMENTWISE = frozenset(
    (
        *("nn.relu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.leakyrelu", "sigmoid", "tanh", "exp", "log", "sqrt"),
        *("rsqrt", "abs", "negative", "square", "erf", "clip", "astype", "floor", "ceil", "round", "sign"),
        *("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "where"),
        *("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"),
    )
)


def to_channels_last(
    module: tvm.IRModule, num_inputs: int | None = None, *, im2col_inputs: int | None = None
) -> tvm.IRModule:
    """Convert 2-D convolutions and poolings of ``main`` to NHWC; its parameters and results keep their layouts.

    By default poolings are converted only after convolutions. With ``num_inputs``, the number of parameters before the
    constants, poolings are always converted, and convolutions whose weights depend on inputs are not, since these would
    be permuted in every run. With ``im2col_inputs``, also a number of inputs, convolutions with few channels are
    lowered to im2col + matmul.
    """
    main = module["main"]
    names = {operator_of(binding.value) for binding in bindings_of(main)}
    wanted = {CONVOLUTION} if num_inputs is None else {CONVOLUTION, *POOLINGS, "mean"}
    return _Converter(module, num_inputs, im2col_inputs).convert() if names & wanted else module


class _Converter:
    """``nchw`` and ``nhwc`` map original variables to their values in each layout, created on demand.

    ``computed_nhwc`` are the variables computed in NHWC. ``constants`` are the variables that depend on no input; None
    disables the check. ``filters`` are the constants allowed as filters of im2col.
    """

    def __init__(self, module: tvm.IRModule, num_inputs: int | None, im2col_inputs: int | None) -> None:
        self.module = module
        self.main = main = module["main"]
        self.builder = relax.BlockBuilder()
        self.flow = Dataflow(main)
        self.nchw: IdentityMap[Any] = IdentityMap()
        self.nhwc: IdentityMap[Any] = IdentityMap()
        self.computed_nhwc = IdentitySet()
        self.constants = None if num_inputs is None else computed_from_constants(main, num_inputs)
        self.filters = IdentitySet() if im2col_inputs is None else computed_from_constants(main, im2col_inputs)

    def convert(self) -> tvm.IRModule:
        self.nchw.update((parameter, parameter) for parameter in self.main.params)
        rewritten = with_main(self.module, rebuild_main(self.builder, self.main, self._bind, self._rewritten))
        gathers = {v: f for v, f in self.builder.get().functions.items() if v.name_hint != "main"}
        return tvm.IRModule({**rewritten.functions, **gathers}, attrs=rewritten.attrs)

    def _bind(self, binding: Any) -> None:
        value, variable = binding.value, binding.var
        converted = self._channels_last(value) if isinstance(value, relax.Call) and _rank(binding.var) else None
        if converted is not None:
            self.nhwc[variable] = self.builder.emit(converted, binding.var.name)
            self.computed_nhwc.add(variable)
            return
        if isinstance(value, relax.Var) and value in self.nhwc:
            self.nhwc[variable] = self.nhwc[value]
        rewritten = self._plane_reduction(value)
        rewritten = self._transposed(value) if rewritten is None else rewritten
        rewritten = self._rewritten(value) if rewritten is None else rewritten
        self.nchw[variable] = self.builder.emit(rewritten, binding.var.name)

    def _rewritten(self, expr: Any) -> Any:
        """Return an expression with operands in the model's layout."""
        if isinstance(expr, relax.Var):
            return self._in_nchw(expr) if expr in self.nchw or expr in self.nhwc else expr
        return map_operands(expr, self._rewritten)

    def _in_nchw(self, variable: Any) -> Any:
        if variable not in self.nchw:
            self.nchw[variable] = self.builder.emit(_permuted(self.nhwc[variable], TO_NCHW))
        return self.nchw[variable]

    def _in_nhwc(self, variable: Any) -> Any:
        if variable not in self.nhwc:
            self.nhwc[variable] = self.builder.emit(_permuted(self._rewritten(variable), TO_NHWC))
        return self.nhwc[variable]

    def _channels_last(self, call: relax.Call) -> Any | None:
        """Return the call on NHWC operands, or None to leave it unchanged."""
        name = operator_of(call)
        if name == CONVOLUTION:
            return self._convolution(call)
        is_pooling = name in POOLINGS and call.attrs.layout == "NCHW"
        if is_pooling and self.constants is not None:
            return self._pooling(call, name)
        if name in VIEWS:
            shuffled = self._shuffled(call)
            return self._mean_of_neighbors(call) if shuffled is None else shuffled
        axes = _reduced_axes(call) if name in REDUCTIONS and call.attrs.keepdims else []
        is_plane_mean = name == "mean" and axes == [1, 2] and self.constants is not None
        if not is_plane_mean and not any(self._prefers_last(argument) for argument in call.args):
            return None
        if is_pooling:
            return self._pooling(call, name)
        if axes:
            return getattr(relax.op, name)(self._in_nhwc(call.args[0]), axes, keepdims=True)
        if name in ELEMENTWISE:
            return self._elementwise(call)
        if name == "concat" and int(call.attrs.axis) % 4 == 1 and isinstance(call.args[0], relax.Tuple):
            return relax.op.concat([self._in_nhwc(field) for field in call.args[0].fields], 3)
        return None

    def _transposed(self, call: Any) -> Any | None:
        """Match a transpose of the model to [N, H, W, C] or [N, H * W, C]; return the value computed from NHWC."""
        axes = call.attrs.axes if operator_of(call) == "permute_dims" else None
        if list(map(int, axes or ())) == TO_NHWC and self._prefers_last(call.args[0]):
            return self._in_nhwc(call.args[0])
        flattened = find_flattened(call, self.flow)
        if flattened is None or not self._prefers_last(flattened):
            return None
        return relax.op.reshape(self._in_nhwc(flattened), call.ty.shape)

    def _plane_reduction(self, call: Any) -> relax.Call | None:
        """Return a reduction of NHWC to [N, C], which is the same in both layouts."""
        name = operator_of(call)
        if name not in REDUCTIONS or not self._prefers_last(call.args[0]):
            return None
        if _reduced_axes(call) != [1, 2] or call.attrs.keepdims:
            return None
        return getattr(relax.op, name)(self._in_nhwc(call.args[0]), [1, 2])

    def _prefers_last(self, argument: Any) -> bool:
        """Whether an operand is computed in NHWC."""
        if isinstance(argument, relax.Tuple):
            return any(self._prefers_last(field) for field in argument.fields)
        return argument in self.computed_nhwc

    def _shuffled(self, call: relax.Call) -> relax.Call | None:
        shuffle = find_shuffle(call, self.flow)
        if shuffle is None or not self._prefers_last(shuffle.source):
            return None
        parts = self.builder.emit(relax.op.reshape(self._in_nhwc(shuffle.source), shuffle.parts))
        swapped = self.builder.emit(relax.op.permute_dims(parts, [0, 1, 2, 4, 3]))
        return relax.op.reshape(swapped, shuffle.whole)

    def _mean_of_neighbors(self, call: relax.Call) -> relax.Call | None:
        mean = find_mean_of_neighbors(call, self.flow)
        if mean is None or self.constants is None or not self._prefers_last(mean.source):
            return None
        batch, height, width, channels = mean.whole
        rows = self.builder.emit(relax.op.reshape(self._in_nhwc(mean.source), (batch * height * width, 1, channels)))
        pooled = relax.op.nn.avg_pool1d(rows, mean.window, padding=mean.padding, count_include_pad=mean.counts_padding)
        return relax.op.reshape(self.builder.emit(pooled), mean.whole)

    def _convolution(self, call: relax.Call) -> Any | None:
        attrs = call.attrs
        if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) != ("NCHW", "OIHW", "NCHW"):
            return None
        if self.constants is not None and call.args[1] not in self.constants:
            return None
        last = self._prefers_last(call.args[0])
        windows = find_im2col(call, self.filters, last=last)
        if windows is not None:
            data = self._in_nhwc(call.args[0]) if last else self._rewritten(call.args[0])
            rows = self.builder.emit_te(windows.gather, data, primfunc_name_hint="gather_windows")
            return relax.op.matmul(rows, windows.matrix(self.builder, self._rewritten(call.args[1])))
        weight = self.builder.emit(relax.op.permute_dims(self._rewritten(call.args[1]), TO_NHWC))
        data = self._in_nhwc(call.args[0])
        return rebuild_call(call, data, weight, data_layout="NHWC", kernel_layout="OHWI", out_layout="NHWC")

    def _pooling(self, call: relax.Call, name: str) -> Any:
        data, attrs = self._in_nhwc(call.args[0]), call.attrs
        if name == "nn.adaptive_avg_pool2d":
            return relax.op.nn.adaptive_avg_pool2d(data, attrs.output_size, layout="NHWC")
        kept = ("pool_size", "strides", "padding", "dilation", "ceil_mode", "count_include_pad")
        operator = getattr(relax.op.nn, name.removeprefix("nn."))
        return operator(data, **{attribute: getattr(attrs, attribute) for attribute in kept}, layout="NHWC")

    def _elementwise(self, call: relax.Call) -> Any | None:
        operands: list[Any] = []
        plans: list[tuple[str, Any]] = [(_how(argument), argument) for argument in call.args]
        if any(how == "no" for how, _ in plans):
            return None
        for how, argument in plans:
            if how == "as it is":
                operands.append(self._rewritten(argument))
            elif how == "channels":
                operands.append(self.builder.emit(relax.op.permute_dims(self._rewritten(argument), [1, 2, 0])))
            else:
                operands.append(self._in_nhwc(argument))
        return relax.Call(call.op, operands, call.attrs, call.ty_args)


def _reduced_axes(call: relax.Call) -> list[int]:
    """Return the reduced axes in NHWC; empty if all are reduced."""
    return sorted(AXES[int(axis) % 4] for axis in call.attrs.axis or ())


def _permuted(data: Any, axes: list[int]) -> Any:
    """Permute a tensor to the other layout; a reshape if it has one channel or one pixel."""
    shape = shape_of(data)
    if shape is not None:
        extents = [shape[axis] for axis in axes]
        channels, places = ([3], [1, 2]) if axes == TO_NHWC else ([1], [2, 3])
        for ones in (channels, places):
            if all(isinstance(extents[axis], int) and extents[axis] == 1 for axis in ones):
                return relax.op.reshape(data, extents)
    return relax.op.permute_dims(data, axes)


def _rank(variable: Any) -> bool:
    ty = variable.ty
    return isinstance(ty, relax.TensorType) and ty.ndim == 4


def _how(argument: Any) -> str:
    """Return how an operand of an elementwise operator follows the result to NHWC."""
    extents = shape_of(argument)
    if extents is None:
        return "as it is" if not isinstance(argument.ty, relax.TensorType) else "no"
    if all(isinstance(extent, int) and extent == 1 for extent in extents) and len(extents) < 4:
        return "as it is"
    if len(extents) == 4 and isinstance(argument, relax.Var):
        return "last"
    return "channels" if len(extents) == 3 and isinstance(argument, relax.Var) else "no"
