"""The table of packager's ONNX converters, for operators that TVM's importer lacks or converts to what no backend
matches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax
from tvm.ir import GenericConst

from packager.frontends.onnx.ops import (
    cumulative,
    elementwise,
    fourier,
    gather_scatter,
    random_numbers,
    rearrange,
    reductions,
    sequences,
    sorting,
    tfidf,
    topk,
)
from packager.frontends.onnx.ops.ml import linear, preprocessing, svm, trees
from packager.frontends.onnx.ops.nn import (
    activations,
    attention,
    convolution,
    deform_conv,
    einsum,
    normalization,
    padding,
    pooling,
    recurrent,
    resize,
    roi_align,
)
from packager.frontends.onnx.ops.operands import Convert, Converter, dtype_of, opset
from packager.frontends.onnx.ops.quantization import block_weights, integer_math, narrow_types, quantization
from packager.frontends.onnx.ops.run_time import choose, sizes
from packager.frontends.onnx.ops.shapes import checked_extents, slice_range

FAMILIES = (
    *(checked_extents, cumulative, elementwise, fourier, rearrange, random_numbers),
    *(choose, gather_scatter, reductions, sequences, sizes, slice_range, sorting, tfidf, topk),
    *(linear, preprocessing, svm, trees),
    *(activations, attention, convolution, deform_conv, einsum, normalization, padding),
    *(pooling, recurrent, resize, roi_align),
    *(block_weights, integer_math, narrow_types, quantization),
)


CLIP_OF_INPUTS = 11  # before, bounds are attributes whose defaults are the largest finite numbers: infinities are cut
LARGEST = float(np.finfo(np.float32).max)


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
        if opset(attributes) < CLIP_OF_INPUTS and dtype_of(data) in ("float32", "float64"):
            numbers = [side * LARGEST if n is None else n for side, n in zip((-1, 1), numbers, strict=True)]
    operators = zip(numbers, (relax.op.maximum, relax.op.minimum), strict=True)
    for number, operator in operators:
        if number is not None and not np.isnan(number):
            operand = builder.emit(data) if isinstance(data, relax.Call) else data
            data = operator(operand, relax.const(number, str(operand.ty.dtype)))
    return data


def _is_number(bound: Any) -> bool:
    return isinstance(bound, GenericConst) and bound.value.numpy().size == 1


CONVERTERS: Mapping[str, Converter] = {
    "Clip": _clip,
    **{name: converter for family in FAMILIES for name, converter in family.CONVERTERS.items()},
}
