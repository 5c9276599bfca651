"""Converts QDQ (QuantizeLinear/DequantizeLinear) to integer arithmetic: 8-bit products with int32 accumulation.

``DequantizeLinear`` computes ``scale * (q - zero)``, ``QuantizeLinear`` ``saturate(round_half_to_even(x / scale) +
zero)`` (https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html and onnx__DequantizeLinear.html). A product of two
dequantized tensors is an integer product with a data-independent correction:

    sum sx (x - zx) sw w  =  sx sw (sum x w  -  zx sum w)

The correction for ``zx`` and the bias are one int32 vector, computed at build time, and the next ``QuantizeLinear`` is
a multiplication by ``sx sw / sy`` per channel. The same applies to ``ConvInteger`` and ``MatMulInteger``
(onnx__ConvInteger.html and so on); ``QLinearConv`` and ``QLinearMatMul`` are imported as dequantized operands and a
quantized result. Convolutions pad with ``zx``, which represents zero.

Supports uint8 or int8 data, and weights that are int8 after their zero point is subtracted, as of 128 from uint8. CPUs
multiply unsigned data by signed weights, cuBLASLt signed data: for these all data becomes uint8 or int8, by flipping
the sign bit, with a zero point of 128 more or less. There weights are any of 8 bits, without groups and, on GPUs, of
matmuls: of those beyond int8 a number is subtracted first, and that many times the sum of the data that a window reads
is added after.
Everything else is computed in float32, as in the model. Results may differ from float32 by one quantum, by rounding.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import tvm
from tvm import relax
from tvm.ir import GenericConst

from packager.bundle.arrays import Array
from packager.graph.dataflow import bindings_of, extents_of, operator_of, static_shape_of
from packager.graph.rewrite import rebuild_main, with_main
from packager.ir.model import NamedArray
from packager.transforms.quantize import arithmetic, movement
from packager.transforms.quantize.constants import Constants
from packager.transforms.quantize.limits import limit_of
from packager.transforms.quantize.products import convolution, matmul
from packager.transforms.quantize.signedness import OTHER, shifted
from packager.transforms.quantize.values import NO_BOUNDS, Linear, Quantized, Shifted, Value, compact, per_axis, union

# A model without these is not quantized.
MARKS = ("quantize", "dequantize", "astype")
INTEGERS = ("int8", "uint8", "int16", "uint16", "int32")
RESULTS = ("int8", "uint8", "int16", "uint16")
MAX_TERMS = 4


def convert_qdq(
    module: tvm.IRModule, num_inputs: int, constants: Mapping[str, NamedArray], *, data: str | None = None
) -> tuple[tvm.IRModule, dict[str, NamedArray]]:
    """Convert quantized products of ``main`` to integers; return the module and its constants.

    ``constants`` are the values of main's parameters after the ``num_inputs`` inputs, in order, and so is the result,
    with biases and scales added. Data of products becomes ``data``, ``uint8`` (of CPUs) or ``int8``. Leaves dead code.
    """
    main = module["main"]
    if not any(operator_of(binding.value) in MARKS for binding in bindings_of(main)):
        return module, dict(constants)
    known = Constants(main, num_inputs, constants)
    rewritten, values = known.lift(_Rewriter(main, known, data=data).rewrite())
    return with_main(module, rewritten), values


class _Rewriter(arithmetic.Emitter):
    """Rewrites ``main`` in one pass; quantized tensors, and linear functions of them, are emitted lazily."""

    def __init__(self, main: relax.Function, constants: Constants, *, data: str | None) -> None:
        super().__init__(constants, data=data)
        self.main = main
        self.operators: dict[str, Callable[[Any, relax.Call], Value | None]] = {
            "dequantize": self._dequantize,
            "astype": self._widen,
            "subtract": self._subtract,
            "add": self._add,
            "nn.relu": lambda _, call: self._clip(call.args[0], 0.0, np.inf),
            "clip": self._clip_call,
            "maximum": lambda _, call: self._bound(call, upper=False),
            "minimum": lambda _, call: self._bound(call, upper=True),
            "concat": partial(movement.concat, self),
            "nn.pad": partial(movement.pad, self),
            **dict.fromkeys(("nn.conv1d", "nn.conv2d", "nn.conv3d"), partial(convolution, self)),
            "matmul": lambda variable, call: matmul(self, variable, call),
            **dict.fromkeys(("reshape", "permute_dims", "expand_dims", "squeeze"), partial(movement.move, self)),
            **dict.fromkeys(
                ("broadcast_to", "take", "strided_slice", *movement.MAXIMA), partial(movement.select, self)
            ),
        }

    def rewrite(self) -> relax.Function:
        """Return the rewritten function, with new constants inline."""
        self.real.update((parameter, parameter) for parameter in self.main.params)
        return rebuild_main(self.builder, self.main, self._bind, self.computed)

    def _bind(self, binding: Any) -> None:
        variable, value = binding.var, binding.value
        if isinstance(value, relax.Call):
            self.constants.propagate(variable, value)
            if operator_of(value) == "quantize" and self._quantize(variable, value):
                return
            stands_for = self.operators.get(operator_of(value), lambda _variable, _call: None)(variable, value)
            if stands_for is not None:
                self.values[variable] = stands_for
            if stands_for is not None or variable in self.real:
                return
        elif isinstance(value, relax.Var) and value in self.values:
            self.values[variable] = self.values[value]
            return
        if isinstance(value, relax.Call):
            self.limits[variable] = limit_of(value, self.limit, self._least)
        elif isinstance(value, relax.Var):
            self.limits[variable] = self.limit(value)
        self.real[variable] = self.builder.emit(self.computed(value), variable.name)

    def _least(self, expr: Any) -> float:
        array = self.constants.array(expr)
        return (
            0.0 if array is None else float(np.nan_to_num(np.abs(array.astype(np.float64)), nan=0).min(initial=np.inf))
        )

    def _dequantize(self, _: Any, call: relax.Call) -> Value | None:
        source = call.args[0]
        known = self._parameters(call)
        if known is None or str(source.ty.dtype) not in INTEGERS or str(call.attrs.out_dtype) != "float32":
            return None
        array, sources = self.constants.array(source), self.constants.sources_of(*call.args)
        made = self.value(source)
        if isinstance(made, Shifted):
            scale, zero = known
            stored = str(made.value.ty.dtype)
            return Quantized(made.value, scale, shifted(zero, stored), "float32", None, sources)
        return Quantized(self.computed(source), *known, "float32", array, sources)

    def _quantize(self, variable: Any, call: relax.Call) -> bool:
        """Bind the variable to integers; return whether it was converted."""
        source, *parameters = call.args
        known, stored = self._parameters(call), str(call.attrs.out_dtype)
        if known is None or stored not in RESULTS or str(source.ty.dtype) != "float32":
            return False
        sources = self.constants.sources_of(*parameters)
        if self.data is not None and stored == OTHER[self.data]:
            zero = shifted(known[1], self.data)
            quantize = arithmetic.Quantizer(self, known[0], zero, self.data, sources)
            self.values[variable] = Shifted(quantize.apply(self.value(source), source, ""))
            return True
        quantize = arithmetic.Quantizer(self, *known, stored, sources)
        self.real[variable] = quantize.apply(self.value(source), source, variable.name)
        return True

    def _parameters(self, call: relax.Call) -> tuple[Array, Array] | None:
        """Return scale and zero point, reshaped to broadcast to the operand; None if they or its rank are unknown."""
        source, *parameters = call.args
        scale, zero = (self.constants.array(parameter) for parameter in parameters)
        extents = extents_of(source)
        if scale is None or zero is None or scale.dtype != np.float32 or extents is None:
            return None
        rank, axis = len(extents), int(call.attrs.axis)
        return per_axis(scale, axis, rank), per_axis(zero.astype(np.int32), axis, rank)

    def _widen(self, _: Any, call: relax.Call) -> Value | None:
        """Convert a cast from 8 bits to int32 in the model."""
        source = call.args[0]
        if str(source.ty.dtype) not in ("int8", "uint8") or str(call.ty.dtype) != "int32":
            return None
        if extents_of(source) is None:
            return None
        one, none = np.ones((), np.float32), np.zeros((), np.int32)
        array = self.constants.array(source)
        return Quantized(self.computed(source), one, none, "int32", array, self.constants.sources_of(source))

    def _subtract(self, _: Any, call: relax.Call) -> Value | None:
        """Convert a subtraction of the zero point in the model."""
        data, zero = self.value(call.args[0]), call.args[1]
        if not isinstance(data, Quantized) or data.dtype != "int32" or not arithmetic.is_unscaled(data):
            return None
        if str(call.ty.shape) != str(call.args[0].ty.shape):
            return None
        rank = len(call.ty.shape.values)
        origin = self.value(zero)
        array = origin.array if isinstance(origin, Quantized) else self.constants.array(zero)
        if array is not None:
            missing = rank - array.ndim
            shaped = compact(array.astype(np.int32).reshape((1,) * missing + array.shape))
            sources = union(data.sources, self.constants.sources_of(zero))
            return replace(data, zero=shaped, sources=sources)
        extents = static_shape_of(zero)
        if extents is None or any(extent != 1 for extent in extents) or data.array is not None:
            return None
        return replace(data, zero=self.computed(zero))

    def _add(self, _: Any, call: relax.Call) -> Value | None:
        left, right = call.args
        one, two = self.linear(left), self.linear(right)
        shape = str(call.ty.shape)
        if one is not None and two is not None and str(left.ty.shape) == str(right.ty.shape) == shape:
            plain = one.bounds == two.bounds == NO_BOUNDS and len(one.terms) + len(two.terms) <= MAX_TERMS
            if not plain:
                return None
            return Linear(one.terms + two.terms, one.offset + two.offset, NO_BOUNDS, union(one.sources, two.sources))
        if one is None:
            left, right, one = right, left, two
        if one is None or one.bounds != NO_BOUNDS or str(left.ty.shape) != shape:
            return None
        return self._add_constant(one, right)

    def _add_constant(self, sum_: Linear, bias: Any) -> Linear | None:
        """Add a constant: in int32 if it is quantized with the scale of the accumulators."""
        value = self.value(bias)
        if isinstance(value, Quantized) and value.array is not None:
            sources = union(sum_.sources, value.sources)
            whole = arithmetic.int32_bias(sum_, value)
            if whole is not None:
                term = replace(sum_.terms[0], whole=whole)
                return Linear((term,), sum_.offset, sum_.bounds, sources)
            numbers = arithmetic.dequantized(value)
        else:
            array = self.constants.array(bias)
            if array is None or array.dtype != np.float32:
                return None
            numbers, sources = array, union(sum_.sources, self.constants.sources_of(bias))
        return replace(sum_, offset=sum_.offset + compact(numbers.astype(np.float64)), sources=sources)

    def _clip(self, source: Any, low: float, high: float) -> Value | None:
        found = self.linear(source)
        return None if found is None else found.clipped(low, high)

    def _clip_call(self, _: Any, call: relax.Call) -> Value | None:
        bounds: list[Any] = [getattr(argument, "value", None) for argument in call.args[1:3]]
        if not all(isinstance(bound, int | float) for bound in bounds):
            return None
        return self._clip(call.args[0], float(bounds[0]), float(bounds[1]))

    def _bound(self, call: relax.Call, *, upper: bool) -> Value | None:
        for source, bound in (call.args, reversed(call.args)):
            array = self.constants.array(bound) if isinstance(bound, GenericConst | relax.Var) else None
            if array is not None and array.size == 1 and str(source.ty.shape) == str(call.ty.shape):
                number = float(array.item())
                return self._clip(source, -np.inf, number) if upper else self._clip(source, number, np.inf)
        return None
