"""The table of packager's ONNX converters, for operators that TVM's importer lacks or converts to what no backend
matches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from packager.frontends.onnx.ops.cumulative import SCANS
from packager.frontends.onnx.ops.data_dependent import SIZED_CONVERTERS
from packager.frontends.onnx.ops.fill_beyond import COUNT_CONVERTERS
from packager.frontends.onnx.ops.fourier import SIGNAL
from packager.frontends.onnx.ops.gather_pad import SELECTION
from packager.frontends.onnx.ops.nn.activations import ACTIVATIONS
from packager.frontends.onnx.ops.nn.attention import ATTENTION
from packager.frontends.onnx.ops.nn.deform_conv import SAMPLING
from packager.frontends.onnx.ops.nn.normalization import NORMS
from packager.frontends.onnx.ops.nn.pooling import POOLING
from packager.frontends.onnx.ops.nn.recurrent import RECURRENT
from packager.frontends.onnx.ops.nn.resize import RESIZE
from packager.frontends.onnx.ops.operands import Convert, Converter
from packager.frontends.onnx.ops.quantization.integer_math import INTEGERS
from packager.frontends.onnx.ops.quantization.narrow_types import NARROW_CONVERTERS
from packager.frontends.onnx.ops.quantization.quantization import QUANTIZED
from packager.frontends.onnx.ops.sequences import SEQUENCES
from packager.frontends.onnx.ops.slice_range import BOUNDS
from packager.frontends.onnx.ops.tfidf import NGRAMS
from packager.frontends.onnx.ops.topk import PLACING
from packager.frontends.onnx.ops.tree_ensemble import TREES


def _clip(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """Clip by minimum and maximum; TVM calls functions of its own. A NaN bound is ignored, as in onnxruntime."""
    data, *bounds = inputs
    if bounds:
        low, high = [*bounds, None][:2]
        if not all(bound is None or _is_number(bound) for bound in (low, high)):
            return convert("Clip", [data, low, high], attributes)
        numbers = [None if bound is None else bound.value.numpy().reshape(()).item() for bound in (low, high)]
    else:
        numbers = [attributes.get("min"), attributes.get("max")]
    operators = zip(numbers, (relax.op.maximum, relax.op.minimum), strict=True)
    for number, operator in operators:
        if number is not None and not np.isnan(number):
            operand = builder.emit(data) if isinstance(data, relax.Call) else data
            data = operator(operand, relax.const(number, str(operand.ty.dtype)))
    return data


def _is_number(bound: Any) -> bool:
    return isinstance(bound, GenericConst) and bound.value.numpy().size == 1


CONVERTERS: Mapping[str, Converter] = {
    **QUANTIZED,
    **ATTENTION,
    **ACTIVATIONS,
    **NARROW_CONVERTERS,
    **NORMS,
    **BOUNDS,
    "Clip": _clip,
    **INTEGERS,
    **RESIZE,
    **POOLING,
    **SAMPLING,
    **RECURRENT,
    **SELECTION,
    **SIGNAL,
    **SIZED_CONVERTERS,
    **COUNT_CONVERTERS,
    **TREES,
    **PLACING,
    **NGRAMS,
    **SCANS,
    **SEQUENCES,
}
