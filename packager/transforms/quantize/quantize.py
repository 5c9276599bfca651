"""Converts QDQ (QuantizeLinear/DequantizeLinear) to integer arithmetic: 8-bit products with int32 accumulation.

``DequantizeLinear`` computes ``scale * (q - zero)``, ``QuantizeLinear`` ``saturate(round_half_to_even(x / scale) +
zero)`` (https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html and onnx__DequantizeLinear.html). A product of two
dequantized tensors is an integer product with a data-independent correction:

    sum sx (x - zx) sw w  =  sx sw (sum x w  -  zx sum w)

The correction for ``zx`` and the bias are one int32 vector, computed at build time, and the next ``QuantizeLinear`` is
a multiplication by ``sx sw / sy`` per channel. The same applies to ``ConvInteger`` and ``MatMulInteger``
(onnx__ConvInteger.html and so on); ``QLinearConv`` and ``QLinearMatMul`` are imported as dequantized operands and a
quantized result. Convolutions pad with ``zx``, which represents zero.

Supports uint8 or int8 data, and int8 weights with zero point 0 (or uint8 with 128, which is equivalent). Everything
else is computed in float32, as in the model. Results may differ from float32 by one quantum, due to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping

import tvm

from packager.graph.dataflow import bindings_of
from packager.graph.rewrite import with_main
from packager.ir.model import NamedArray
from packager.transforms.quantize.constants import Constants
from packager.transforms.quantize.rewrite import MARKS, Rewriter


def convert_qdq(
    module: tvm.IRModule, num_inputs: int, constants: Mapping[str, NamedArray]
) -> tuple[tvm.IRModule, dict[str, NamedArray]]:
    """Convert quantized products of ``main`` to integers; return the module and its constants.

    ``constants`` are the values of main's parameters after the ``num_inputs`` inputs, in order, and so is the result,
    with biases and scales added. Leaves dead code.
    """
    main = module["main"]
    operators = {
        getattr(binding.value.op, "name", "") for binding in bindings_of(main) if isinstance(binding.value, tvm.ir.Call)
    }
    if not operators & MARKS:
        return module, dict(constants)
    known = Constants(main, num_inputs, constants)
    rewritten, values = known.lift(Rewriter(main, known).rewrite())
    return with_main(module, rewritten), values
