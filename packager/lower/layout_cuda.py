"""Convolutions run channels last on the GPU: what is adjacent in memory is what their reduction adds up.

``conv2d`` and pooling read and write NHWC, and what stands between them follows where it can; everything else sees the
layout that the model has. Permuted weights are folded at build time. TVM's own ConvertLayout fails on models that
change ranks between convolutions.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tvm
from tvm import relax, tirx

from packager.frontends.names import with_main
from packager.products import remade

TO_LAST = [0, 2, 3, 1]
TO_FIRST = [0, 3, 1, 2]
AXES = {0: 0, 1: 3, 2: 1, 3: 2}  # where an axis of NCHW is in NHWC
CONVOLUTION = "relax.nn.conv2d"
POOLINGS = ("relax.nn.max_pool2d", "relax.nn.avg_pool2d", "relax.nn.adaptive_avg_pool2d")
REDUCTIONS = ("relax.mean", "relax.sum", "relax.max", "relax.min")
ELEMENTWISE = frozenset(
    f"relax.{name}"
    for name in (
        *("nn.relu", "nn.gelu", "nn.gelu_tanh", "nn.silu", "nn.leakyrelu", "sigmoid", "tanh", "exp", "log", "sqrt"),
        *("rsqrt", "abs", "negative", "square", "erf", "clip", "astype", "floor", "ceil", "round", "sign"),
        *("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "where"),
        *("less", "less_equal", "greater", "greater_equal", "equal", "not_equal"),
    )
)


def to_channels_last(module: tvm.IRModule) -> tvm.IRModule:
    """Rewrite ``main`` so that its 2-D convolutions and poolings are channels last. Its parameters and results stay."""
    main = module["main"]
    names = [getattr(binding.value.op, "name", "") for binding in _calls(main)]
    return with_main(module, _Converter(main).convert()) if CONVOLUTION in names else module


def _calls(main: relax.Function) -> list[Any]:
    return [b for block in main.body.blocks for b in block.bindings if isinstance(b.value, relax.Call)]


class _Converter:
    """``first`` and ``last`` hold, by the handle of the original variable, its value in each layout, as far as made."""

    def __init__(self, main: relax.Function) -> None:
        self.main = main
        self.builder = relax.BlockBuilder()
        self.first: dict[int, Any] = {}
        self.last: dict[int, Any] = {}

    def convert(self) -> relax.Function:
        parameters = list(self.main.params)
        self.first.update((parameter.__chandle__(), parameter) for parameter in parameters)
        with self.builder.function("main", parameters, attrs=dict(self.main.attrs or {})):
            with self.builder.dataflow():
                for block in self.main.body.blocks:
                    for binding in block.bindings:
                        self._bind(binding)
                result = self.builder.emit_output(self._rewritten(self.main.body.body))
            self.builder.emit_func_output(result)
        return self.builder.get()["main"]

    def _bind(self, binding: Any) -> None:
        value, handle = binding.value, binding.var.__chandle__()
        converted = self._channels_last(value) if isinstance(value, relax.Call) and _rank(binding.var) else None
        if converted is not None:
            self.last[handle] = self.builder.emit(converted, binding.var.name)
            return
        if isinstance(value, relax.Var) and value.__chandle__() in self.last:
            self.last[handle] = self.last[value.__chandle__()]
        self.first[handle] = self.builder.emit(self._rewritten(value), binding.var.name)

    def _rewritten(self, expr: Any) -> Any:
        """Return an expression that reads the model's own layout."""

        def replace(variable: Any) -> Any:
            known = variable.__chandle__() in self.first or variable.__chandle__() in self.last
            return self._in_first(variable) if known else variable

        if isinstance(expr, relax.Var):
            return replace(expr)
        if isinstance(expr, relax.Tuple):
            return relax.Tuple([self._rewritten(field) for field in expr.fields])
        if isinstance(expr, relax.TupleGetItem):
            return relax.TupleGetItem(self._rewritten(expr.tuple_value), expr.index)
        if isinstance(expr, relax.Call):
            return relax.Call(expr.op, [self._rewritten(a) for a in expr.args], expr.attrs, expr.ty_args)
        return expr

    def _in_first(self, variable: Any) -> Any:
        handle = variable.__chandle__()
        if handle not in self.first:
            self.first[handle] = self.builder.emit(relax.op.permute_dims(self.last[handle], TO_FIRST))
        return self.first[handle]

    def _in_last(self, variable: Any) -> Any:
        handle = variable.__chandle__()
        if handle not in self.last:
            self.last[handle] = self.builder.emit(relax.op.permute_dims(self._rewritten(variable), TO_LAST))
        return self.last[handle]

    def _channels_last(self, call: relax.Call) -> Any | None:
        """Return the call over NHWC operands, or None where it stays as it is."""
        name = getattr(call.op, "name", "")
        if name == CONVOLUTION:
            return self._convolution(call)
        if not any(self._prefers_last(argument) for argument in call.args):
            return None
        if name in POOLINGS and call.attrs.layout == "NCHW":
            return self._pooling(call, name)
        if name in REDUCTIONS and call.attrs.keepdims and call.attrs.axis is not None:
            axes = sorted(AXES[int(axis) % 4] for axis in call.attrs.axis)
            return getattr(relax.op, name.removeprefix("relax."))(self._in_last(call.args[0]), axes, keepdims=True)
        if name in ELEMENTWISE:
            return self._elementwise(call)
        if name == "relax.concat" and int(call.attrs.axis) % 4 == 1 and isinstance(call.args[0], relax.Tuple):
            return relax.op.concat([self._in_last(field) for field in call.args[0].fields], 3)
        return None

    def _prefers_last(self, argument: Any) -> bool:
        """Whether an operand is there in NHWC and not in the model's layout."""
        if isinstance(argument, relax.Tuple):
            return any(self._prefers_last(field) for field in argument.fields)
        handle = argument.__chandle__()
        return handle in self.last and handle not in self.first

    def _convolution(self, call: relax.Call) -> Any | None:
        attrs = call.attrs
        if (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) != ("NCHW", "OIHW", "NCHW"):
            return None
        weight = self.builder.emit(relax.op.permute_dims(self._rewritten(call.args[1]), TO_LAST))
        data = self._in_last(call.args[0])
        return remade(call, data, weight, data_layout="NHWC", kernel_layout="OHWI", out_layout="NHWC")

    def _pooling(self, call: relax.Call, name: str) -> Any:
        data, attrs = self._in_last(call.args[0]), call.attrs
        if name == "relax.nn.adaptive_avg_pool2d":
            return relax.op.nn.adaptive_avg_pool2d(data, attrs.output_size, layout="NHWC")
        operator = getattr(relax.op.nn, name.removeprefix("relax.nn."))
        return operator(
            data,
            pool_size=attrs.pool_size,
            strides=attrs.strides,
            padding=attrs.padding,
            dilation=attrs.dilation,
            ceil_mode=attrs.ceil_mode,
            count_include_pad=attrs.count_include_pad,
            layout="NHWC",
        )

    def _elementwise(self, call: relax.Call) -> Any | None:
        operands: list[Any] = []
        plans: list[tuple[str, Any]] = [(_how(argument), argument) for argument in call.args]
        if any(how == "no" for how, _ in plans):
            return None
        for how, argument in plans:
            if how == "as it is":
                operands.append(self._rewritten(argument) if isinstance(argument, relax.Var) else argument)
            elif how == "channels":
                operands.append(self.builder.emit(relax.op.permute_dims(self._rewritten(argument), [1, 2, 0])))
            else:
                operands.append(self._in_last(argument))
        return relax.Call(call.op, operands, call.attrs, call.ty_args)


def _rank(variable: Any) -> bool:
    ty = variable.ty
    return isinstance(ty, relax.TensorType) and ty.ndim == 4


def _how(argument: Any) -> str:
    """Say how an operand of an elementwise operator follows its result to NHWC."""
    ty = argument.ty
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return "as it is" if not isinstance(ty, relax.TensorType) else "no"
    extents: Sequence[Any] = ty.shape.values
    if all(isinstance(extent, tirx.IntImm) and int(extent) == 1 for extent in extents) and len(extents) < 4:
        return "as it is"
    if len(extents) == 4 and isinstance(argument, relax.Var):
        return "last"
    return "channels" if len(extents) == 3 and isinstance(argument, relax.Var) else "no"
