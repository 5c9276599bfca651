"""Numbers of inputs and constants, and which results may go on to operators that have steps."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
FLOATS = ("float32", "float64", "float16", "bfloat16", "float8e4m3fn", "float8e5m2", "float8e4m3fnuz", "float8e5m2fnuz")
# Values whose sums and products are exact: multiples of 1/first, below second.
FEW_BITS = {"float32": (64, 4096), "float64": (64, 4096), "float16": (8, 64), "bfloat16": (2, 32)}
COARSE = {"float16": 1e-2, "bfloat16": 4e-2}  # of the greatest magnitude in a tensor
EXACT = ("Add", "Sub", "Mul", "Abs", "Neg", "Relu", "Max", "Min", "Where", "Clip", "Identity", "Cast", "Floor", "Ceil")
LARGEST = {"float32": 1e4, "float64": 1e4}
SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 0.0, 1e-40, -1e-40)


def numpy_dtype(dtype: str) -> np.dtype[Any]:
    """Return the type of the arrays that stand for values: float32 for what numpy lacks."""
    return np.dtype("float32" if dtype.startswith(("bfloat", "float8")) else dtype)


def numbers(rng: np.random.Generator, dtype: str, shape: tuple[int, ...], exact: bool, special: bool) -> Array:
    """Return random numbers: small ones, a tenth of them at the ends of the type if ``special``."""
    kind = numpy_dtype(dtype)
    if kind.kind == "b":
        return np.asarray(rng.integers(0, 2, shape), bool)
    if kind.kind in "iu":
        array = np.asarray(rng.integers(0 if kind.kind == "u" else -5, 9, shape)).astype(kind)
        limits = np.iinfo(kind)
        choices = np.array([limits.min, limits.max, limits.max - 1, limits.min + 1], kind)
    else:
        array = rng.integers(-12, 13, shape) / 4 if exact or special else rng.standard_normal(shape)
        array = np.asarray(array).astype(kind)
        choices = np.array(SPECIAL).astype(kind)
    if special:
        array = np.where(rng.random(shape) < 0.15, rng.choice(choices, shape), array).astype(kind)
    return array


def few_bits(array: Array, dtype: str) -> bool:
    """Return whether numbers are so coarse that sums and products of them are exact."""
    if dtype not in FLOATS:
        return True
    if dtype not in FEW_BITS:
        return False
    parts, limit = FEW_BITS[dtype]
    with np.errstate(all="ignore"):
        finite = array[np.isfinite(array) & (np.abs(array) >= 1e-30)].astype(np.float64)
    return bool(np.all(finite * parts == np.rint(finite * parts)) and np.all(np.abs(finite) < limit))


# What the standard leaves open, see docs/onnx.md. Operators that must have finite numbers,
FINITE = {
    *("MaxPool", "AveragePool", "LpPool", "GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool", "MaxUnpool", "Conv"),
    *("ConvTranspose", "DeformConv", "TopK", "ArgMax", "ArgMin", "Hardmax", "QuantizeLinear", "DynamicQuantizeLinear"),
    *("RNN", "GRU", "LSTM", "Resize", "Upsample", "GridSample", "RoiAlign", "MaxRoiPool", "AffineGrid", "Attention"),
    *("InstanceNormalization", "GroupNormalization", "LayerNormalization", "RMSNormalization", "BatchNormalization"),
    *("MeanVarianceNormalization", "LRN", "LpNormalization", "RotaryEmbedding", "Einsum", "MatMul", "Gemm"),
    *("Det", "DFT", "Col2Im", "Cast", "ScatterElements", "ScatterND", "LeakyRelu", "PRelu"),
}
# or that compare, and must not have NaN,
NUMBERS = {
    *("Max", "Min", "ReduceMax", "ReduceMin", "ReduceLogSumExp", "Clip", "Relu", "HardSigmoid", "HardSwish", "Elu"),
    *("Selu", "Celu", "ThresholdedRelu", "Shrink", "Sign"),
}
# and those of integers whose steps may leave the type.
SMALL = {
    *("ReduceMean", "ReduceSum", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceSumSquare"),
    *("Mean", "Pow", "Mod", "QLinearConv", "Shrink"),
}


def is_defined(operator: str, array: Array, result: bool = False) -> bool:
    """Return whether the standard says what an operator makes of these values, or how it comes to them."""
    if array.dtype.kind in "iu":
        return operator not in SMALL or bool(np.all(np.abs(array.astype(np.float64)) < 1e6))
    if result:  # beside a pole of the tangent every bit counts
        return operator != "Tan" or not bool(np.any(np.abs(array) > 5))
    if operator in ("Softmax", "LogSoftmax"):  # of masks
        return not bool(np.any(np.isnan(array) | (array == np.inf)))
    if operator in FINITE:
        return bool(np.all(np.isfinite(array)))
    return operator not in NUMBERS or not bool(np.any(np.isnan(array)))


def tame(array: Array, dtype: str) -> bool:
    """Return whether a model without special values may go on from these numbers."""
    if dtype not in FLOATS:
        return True
    return bool(np.all(np.isfinite(array)) and np.all(np.abs(array) <= LARGEST.get(dtype, 500)))
