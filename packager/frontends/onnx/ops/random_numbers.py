"""Converters of operators that draw random numbers, by a generator without state: Philox4x32-10.

ONNX operators RandomNormal, RandomUniform and their Like forms (version 22), Bernoulli (22), Multinomial (22) and
Dropout (22) in training mode. The generator is a keyed bijection of a 128-bit counter, so that each element has numbers
of its own, in any order and on any machine. Source: Salmon et al. 2011, "Parallel Random Numbers: As Easy as 1, 2, 3".

The counter is (element, stream, copy): the element's index in two words, the number of the node in the file, and the
number of the copy if a loop was unrolled (``graph.random_nodes``). The key is the seed of the run. A node with an
attribute ``seed`` has the bits of that float as its key, and the same stream as all others that have one: equal seeds
give equal numbers, in each run. In a loop that is not unrolled each iteration has a key of its own: the numbers that
the generator gives for the iteration's number, by the key that there would be without the loop.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from typing import Any

import numpy as np
from onnx import TensorProto, helper
from tvm import relax, te, tirx

from packager.frontends.onnx.graph.random_nodes import COPY, FOLD_IN, STREAM
from packager.frontends.onnx.ops.cumulative import CONVERTERS as CUMULATIVE
from packager.frontends.onnx.ops.operands import (
    Convert,
    Converter,
    constant,
    dtype_of,
    extents,
    output_count,
    tensor_constant,
)
from packager.ir.pattern_kinds import OPAQUE

ROUNDS = 10
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)  # the golden ratio, the square root of 3 less 1
SEEDED = 0xFFFFFFFF  # stream of the nodes with a seed of their own
FOLDED = 0xFFFFFFFF  # copy in the counters of keys of iterations
WIDE = "uint64"
MASK = 0xFFFFFFFF

# Returns an element's value, given its four random words (uint64 below 2^32).
_Value = Callable[[Sequence[Any]], Any]


def _word(value: int) -> Any:
    return tirx.const(value, WIDE)


def philox(counter: Sequence[Any], key: Sequence[Any], value: _Value) -> Any:
    """Return ``value`` of the four words of Philox4x32-10; ``counter`` and ``key`` are uint64 below 2^32.

    Each product is bound to a variable: an expression in which both uses are spelled out has 2^10 times the size.
    """
    words = list(counter)
    bound: list[tuple[Any, Any]] = []
    for number in range(ROUNDS):
        products = []
        for lane, factor in ((0, MULTIPLIERS[0]), (2, MULTIPLIERS[1])):
            variable = tirx.Var(f"product_{number}_{lane}", WIDE)
            bound.append((variable, words[lane] * _word(factor)))
            products.append(variable)
        keys = [(part + _word(number * step)) & _word(MASK) for part, step in zip(key, KEY_STEPS, strict=True)]
        first, second = products
        words = [
            (second >> _word(32)) ^ words[1] ^ keys[0],
            second & _word(MASK),
            (first >> _word(32)) ^ words[3] ^ keys[1],
            first & _word(MASK),
        ]
    result = value(words)
    for variable, product in reversed(bound):
        result = tirx.Let(variable, product, result)
    return result


def _draw(
    builder: Any, shape: Sequence[Any], seed: Any | None, attributes: Mapping[str, Any], dtype: str, value: _Value
) -> Any:
    """Emit a tensor of ``value`` of each element's random words."""
    stream, copy = SEEDED if "seed" in attributes else attributes[STREAM], attributes[COPY]
    fixed = [int(part) for part in shape if isinstance(part, int)]
    symbolic = [part for part in shape if not isinstance(part, int)]
    whole = _own_key(attributes) if seed is None else 0

    def compute(*given: Any) -> Any:
        sizes = iter(given if seed is None else given[1:])
        numbers = iter(fixed)
        sides = [tirx.const(next(numbers), "int64") if isinstance(part, int) else next(sizes) for part in shape]

        def element(*index: Any) -> Any:
            flat = tirx.const(0, "int64")
            for position, side in zip(index, sides, strict=True):
                flat = flat * side + position.astype("int64")
            place = flat.astype(WIDE)
            key = _word(whole) if seed is None else given[0]().astype(WIDE)
            counter = [place & _word(MASK), place >> _word(32), _word(stream), _word(copy)]
            return philox(counter, [key & _word(MASK), key >> _word(32)], value).astype(dtype)

        return te.compute(sides, element, name="random")

    operands = [*([] if seed is None else [seed]), *symbolic]
    return builder.emit(
        # A consumer could compute each number many times.
        builder.call_te(compute, *operands, primfunc_name_hint="random", primfunc_attrs={"op_pattern": OPAQUE})
    )


def _own_key(attributes: Mapping[str, Any]) -> int:
    """Return the key of a node with a seed of its own: the bits of the float."""
    return int(struct.unpack("<I", struct.pack("<f", attributes["seed"]))[0])


def _fold_in(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """Return a key, an int64 scalar, for numbers of iterations of nested loops, and a seed.

    Source: ``fold_in`` of JAX's random number generators.
    """
    seed, *numbers = inputs
    if seed is None:
        seed = relax.const(_own_key(attributes), "int64")

    def compute(seed: Any, *numbers: Any) -> Any:
        def folded(word: Any, number: Any) -> Any:
            place = number.astype(WIDE)
            counter = [place & _word(MASK), place >> _word(32), _word(SEEDED), _word(FOLDED)]
            return philox(counter, [word & _word(MASK), word >> _word(32)], lambda w: w[0] | (w[1] << _word(32)))

        def key() -> Any:
            return reduce(lambda word, number: folded(word, number()), numbers, seed().astype(WIDE)).astype("int64")

        return te.compute([], key, name="key")

    return builder.call_te(compute, seed, *numbers, primfunc_name_hint="fold_in")


def _unit(words: Sequence[Any], work: str) -> Any:
    """Return a number in [0, 1) with all the bits of ``work``, from one word (float32) or two (float64)."""
    if work == "float64":
        whole = (words[0] >> _word(5)) * _word(1 << 26) + (words[1] >> _word(6))
        return whole.astype("int64").astype(work) * tirx.const(2.0**-53, work)
    return (words[0] >> _word(8)).astype("int32").astype(work) * tirx.const(2.0**-24, work)


def _normal(words: Sequence[Any], work: str) -> Any:
    """Return a standard normal number. Source: Box and Muller 1958, "A Note on the Generation of Random Normal
    Deviates"."""
    half = len(words) // 2
    if work == "float64":
        radius, turn = _unit(words[:half], work) + tirx.const(2.0**-54, work), _unit(words[half:], work)
    else:  # all 32 bits: the smallest is 2^-33, and the largest normal number 6.8
        whole = words[0].astype("int64").astype(work)
        radius = (whole + tirx.const(0.5, work)) * tirx.const(2.0**-32, work)
        turn = _unit(words[half:], work)
    angle = turn * tirx.const(2 * math.pi, work)
    return tirx.sqrt(tirx.const(-2.0, work) * tirx.log(radius)) * tirx.cos(angle)


def _work(dtype: str) -> str:
    return "float64" if dtype == "float64" else "float32"


def _element_type(attributes: Mapping[str, Any], default: str) -> str:
    if "dtype" not in attributes:
        return default
    return str(helper.tensor_dtype_to_np_dtype(int(attributes["dtype"])).name)


def _shape_and_type(inputs: Sequence[Any], attributes: Mapping[str, Any]) -> tuple[list[Any], str, Any | None]:
    """Return the shape and element type of the result, and the seed of the run."""
    *like, seed = inputs
    if like:
        shape, dtype = extents(like[0]), _element_type(attributes, dtype_of(like[0]))
    else:
        shape = [int(extent) for extent in attributes["shape"]]
        dtype = _element_type(attributes, helper.tensor_dtype_to_np_dtype(TensorProto.FLOAT).name)
    if not dtype.startswith(("float", "bfloat")):
        raise ValueError(f"random numbers of type {dtype}")
    return shape, dtype, seed


def _random_normal(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    shape, dtype, seed = _shape_and_type(inputs, attributes)
    work = _work(dtype)
    mean, scale = (tirx.const(attributes.get(name, default), work) for name, default in (("mean", 0.0), ("scale", 1.0)))
    return _draw(builder, shape, seed, attributes, dtype, lambda words: mean + scale * _normal(words, work))


def _random_uniform(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """Draw from [low, high): what rounding makes ``high`` is the number before it."""
    shape, dtype, seed = _shape_and_type(inputs, attributes)
    work = _work(dtype)
    low, high = (float(attributes.get(name, default)) for name, default in (("low", 0.0), ("high", 1.0)))
    most = _before(high, dtype) if low < high else high

    def value(words: Sequence[Any]) -> Any:
        drawn = tirx.const(low, work) + _unit(words, work) * tirx.const(high - low, work)
        return tirx.min(drawn, tirx.const(most, work))

    return _draw(builder, shape, seed, attributes, dtype, value)


def _before(number: float, dtype: str) -> float:
    """Return the greatest number of a type that is less than ``number``."""
    kind = helper.tensor_dtype_to_np_dtype(TensorProto.BFLOAT16) if dtype == "bfloat16" else np.dtype(dtype)
    return float(np.nextafter(np.asarray(number, kind), np.asarray(-np.inf, kind)))


def _uniform(builder: Any, shape: Sequence[Any], seed: Any, attributes: Mapping[str, Any], work: str) -> Any:
    return _draw(builder, shape, seed, attributes, work, lambda words: _unit(words, work))


def _bernoulli(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    chances, seed = inputs
    work, dtype = _work(dtype_of(chances)), _element_type(attributes, dtype_of(chances))
    drawn = _uniform(builder, extents(chances), seed, attributes, work)
    chosen = builder.emit(relax.op.less(drawn, builder.emit(relax.op.astype(chances, work))))
    return relax.op.astype(chosen, dtype)


def _multinomial(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
    """Draw classes from unnormalized log-probabilities [batch, classes], by inverting the distribution function."""
    logits, seed = inputs
    emit, work = builder.emit, "float64"
    samples, dtype = int(attributes.get("sample_size", 1)), _element_type(attributes, "int32")
    batch = extents(logits)[0]
    wide = emit(relax.op.astype(logits, work))
    shifted = emit(relax.op.subtract(wide, emit(relax.op.max(wide, axis=1, keepdims=True))))
    axis = tensor_constant(np.asarray(1, np.int64))
    weights = emit(relax.op.exp(shifted))
    sums = emit(CUMULATIVE["CumSum"](builder, [weights, axis], {"tvm_custom": attributes["tvm_custom"]}, convert))
    total = emit(relax.op.max(sums, axis=1, keepdims=True))
    drawn = emit(relax.op.multiply(_uniform(builder, [batch, samples], seed, attributes, work), total))
    below = emit(relax.op.less_equal(emit(relax.op.expand_dims(sums, 1)), emit(relax.op.expand_dims(drawn, 2))))
    return relax.op.sum(emit(relax.op.astype(below, dtype)), axis=2)


def _dropout(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    """Return the input and a mask of ones; in training zero elements with the chance ``ratio``, and scale the others by
    1 / (1 - ratio)."""
    data, emit, dtype = inputs[0], builder.emit, dtype_of(inputs[0])
    if COPY not in attributes:
        if output_count(attributes) == 1:
            return data
        return relax.Tuple([data, emit(relax.op.full(extents(data), relax.const(True, "bool"), "bool"))])
    _, ratio, training, seed = inputs
    work = _work(dtype)
    chance = relax.const(0.5, work) if ratio is None else emit(relax.op.astype(_scalar(builder, ratio), work))
    drawn = _uniform(builder, extents(data), seed, attributes, work)
    kept = emit(relax.op.greater_equal(drawn, chance))
    share = emit(relax.op.subtract(relax.const(1.0, work), chance))
    scaled = emit(relax.op.divide(emit(relax.op.astype(data, work)), share))
    result = emit(relax.op.astype(emit(relax.op.where(kept, scaled, relax.const(0.0, work))), dtype))
    if constant(training, attributes) is None:
        mode = _scalar(builder, training)
        result = emit(relax.op.where(mode, result, data))
        kept = emit(relax.op.logical_or(kept, emit(relax.op.logical_not(mode))))
    return relax.Tuple([result, kept]) if output_count(attributes) > 1 else result


def _scalar(builder: Any, value: Any) -> Any:
    """Return a scalar that may be a vector of one element."""
    return value if not extents(value) else builder.emit(relax.op.reshape(value, []))


CONVERTERS: Mapping[str, Converter] = {
    FOLD_IN: _fold_in,
    "RandomNormal": _random_normal,
    "RandomNormalLike": _random_normal,
    "RandomUniform": _random_uniform,
    "RandomUniformLike": _random_uniform,
    "Bernoulli": _bernoulli,
    "Multinomial": _multinomial,
    "Dropout": _dropout,
}
