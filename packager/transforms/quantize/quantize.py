"""Compute what is quantized in integers: products of 8-bit numbers that are summed in 32 bits.

Quantized models say where: ``DequantizeLinear`` gives the numbers ``scale * (q - zero)`` that integers stand for, and
``QuantizeLinear`` rounds numbers to such integers, ``saturate(round_half_to_even(x / scale) + zero)``
(https://onnx.ai/onnx/operators/onnx__QuantizeLinear.html and onnx__DequantizeLinear.html). A product of two such
tensors is one of integers, and a number that does not depend on the data:

    sum sx (x - zx) sw w  =  sx sw (sum x w  -  zx sum w)

so the correction for ``zx`` and the bias are one int32 vector, computed at build time, and the next ``QuantizeLinear``
is a multiplication by ``sx sw / sy`` per channel. The same holds where the integers are plain in the model
(``ConvInteger``, ``MatMulInteger``: onnx__ConvInteger.html and so on; ``QLinearConv`` and ``QLinearMatMul`` are
imported as dequantized operands and a quantized result). Where a convolution pads, it pads with ``zx``: that is what
stands for zero.

Products take data of uint8 or int8, and weights of int8 whose zero point is 0 (or of uint8 with 128, which is the
same). Whatever does not fit is computed in float32, as the model says. Results may differ from those by one quantum,
where the float32 computation rounds the other way.
"""

from __future__ import annotations

from collections.abc import Mapping

import tvm

from packager.graph.dataflow import bindings_of
from packager.graph.rewrite import with_main
from packager.ir.model import NamedArray
from packager.transforms.quantize.constants import Constants
from packager.transforms.quantize.rewrite import MARKS, Rewriter


def to_integers(
    module: tvm.IRModule, num_inputs: int, constants: Mapping[str, NamedArray]
) -> tuple[tvm.IRModule, dict[str, NamedArray]]:
    """Return ``module`` with quantized products of ``main`` in integers, and the constants it takes then.

    ``constants`` are the values of main's parameters after the ``num_inputs`` inputs, in order, and so is the result,
    which adds biases and scales to them. What nothing reads any more is left to dead code elimination.
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
