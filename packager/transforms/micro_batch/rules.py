"""Separability rules: whether rows of an operator's result depend only on the same rows of its arguments.

A value has *parts* if its first axis splits evenly into micro-batches, and part i depends only on part i of the inputs;
any other value is the same for all micro-batches. A rule infers this for a result from the arguments. A model with an
operator without a rule is not split. After Huang et al. 2019, "GPipe: Efficient Training of Giant Neural Networks using
Pipeline Parallelism", section 2: micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_equal, structural_map

from packager.graph.dataflow import extents_of, is_one, operator_of

# The number of parts: an int, or the batch's dim as a tirx.Var; then a part is one row.
Count = Any
# For each field of a value, whether it has parts.
Parts = tuple[bool, ...]
Rule = Callable[[relax.Call, Sequence[bool], Count], Parts]
# Take the shape of their result as an argument, and fill or repeat a value.
SHAPED = frozenset(("reshape", "broadcast_to", "full", "zeros", "ones"))


class NotSeparableError(Exception):
    """A part of the result may depend on other parts of the arguments."""


def parts_of_call(call: relax.Call, arguments: Sequence[bool], count: Count) -> Parts:
    """Return which fields of a call's result have parts, given that of its arguments. Raises NotSeparableError."""
    if not any(arguments):
        return (_is_repeated(call, count),) * fields_of(call.ty)
    rule = _RULES.get(operator_of(call))
    if rule is None:
        raise NotSeparableError(f"{call.op} of a batch")
    return rule(call, arguments, count)


def fields_of(ty: Any) -> int:
    """Return the number of tensors in a value of this type."""
    return len(ty.fields) if isinstance(ty, relax.TupleType) else 1


def known_extents(value: Any) -> tuple[Any, ...]:
    """Return the extents of a tensor or of its type. Raises NotSeparableError if unknown."""
    extents = extents_of(value)
    if extents is None:
        raise NotSeparableError("a tensor of unknown shape")
    return extents


def part_of(extent: Any, count: Count) -> Any:
    """Return an extent divided by ``count``; None if it is not divisible."""
    if isinstance(count, int):
        divides = isinstance(extent, tirx.IntImm) and int(extent) > 0 and int(extent) % count == 0
        return tirx.IntImm("int64", int(extent) // count) if divides else None
    unit = tirx.IntImm("int64", 1)
    one = Analyzer().simplify(structural_map(extent, (tirx.Var, lambda v: unit if v.same_as(count) else v)))
    return one if Analyzer().can_prove_equal(one * count, extent) else None


def _require(holds: bool, call: relax.Call) -> None:
    if not holds:
        raise NotSeparableError(f"{call.op.name} mixes rows of the batch")


def _rank(expr: Any) -> int:
    """Return the rank; 0 for a scalar."""
    return len(known_extents(expr)) if isinstance(expr.ty, relax.TensorType) else 0


def _elementwise(call: relax.Call, arguments: Sequence[bool], _parts: Count) -> Parts:
    """Arguments with parts have the result's first axis; others lack it or broadcast along it."""
    first, *_ = extents = known_extents(call)
    for argument, parted in zip(call.args, arguments, strict=True):
        if parted:
            own = known_extents(argument)
            _require(len(own) == len(extents) and bool(structural_equal(own[0], first)), call)
        else:
            _require(_rank(argument) < len(extents) or is_one(known_extents(argument)[0]), call)
    return (True,)


def _reshape(call: relax.Call, _arguments: Sequence[bool], count: Count) -> Parts:
    """A reshape keeps the order of elements, in which parts are contiguous."""
    extents = known_extents(call)
    _require(bool(extents) and part_of(extents[0], count) is not None, call)
    return (True,)


def _is_repeated(call: relax.Call, count: Count) -> bool:
    """Whether a result is repeated for each row of a symbolic batch: no other axis has that extent."""
    if isinstance(count, int) or operator_of(call) not in SHAPED - {"reshape"}:
        return False
    extents = known_extents(call)
    sources = [a for a in call.args if _rank(a) == len(extents) and not is_one(known_extents(a)[0])]
    return not sources and bool(extents) and part_of(extents[0], count) is not None


def _keep_first_axis(call: relax.Call, arguments: Sequence[bool], _parts: Count) -> Parts:
    """Only the first argument may have parts; its first axis is preserved."""
    _require(arguments[0] and not any(arguments[1:]), call)
    return (True,) * fields_of(call.ty)


def _permute(call: relax.Call, arguments: Sequence[bool], count: Count) -> Parts:
    axes = call.attrs.axes
    _require(axes is not None and int(axes[0]) % _rank(call.args[0]) == 0, call)
    return _keep_first_axis(call, arguments, count)


def _along_axes(attribute: str) -> Rule:
    """Operators along some axes, none of which may be the first."""

    def rule(call: relax.Call, arguments: Sequence[bool], count: Count) -> Parts:
        given, rank = getattr(call.attrs, attribute), _rank(call.args[0])
        axes = list(given) if hasattr(given, "__len__") else [given]
        _require(bool(axes) and all(axis is not None and int(axis) % rank != 0 for axis in axes), call)
        return _keep_first_axis(call, arguments, count)

    return rule


def _expand_dims(call: relax.Call, arguments: Sequence[bool], count: Count) -> Parts:
    _require(all(int(axis) % _rank(call) != 0 for axis in call.attrs.axis), call)
    return _keep_first_axis(call, arguments, count)


def _concat(call: relax.Call, arguments: Sequence[bool], _parts: Count) -> Parts:
    """All operands must have parts: one that is the same for all would have to be split too."""
    (joined,) = call.args
    fields = joined.fields if isinstance(joined, relax.Tuple) else ()
    _require(bool(fields) and all(arguments), call)
    _require(call.attrs.axis is not None and int(call.attrs.axis) % _rank(call) != 0, call)
    return (True,)


def _matmul(call: relax.Call, arguments: Sequence[bool], _parts: Count) -> Parts:
    """Rows of a 2-D first operand, or the first batch axis, which both operands have or one lacks."""
    ranks = [_rank(argument) for argument in call.args]
    for rank, parted, argument in zip(ranks, arguments, call.args, strict=True):
        if parted:
            _require(rank == _rank(call), call)
        elif rank == _rank(call) and rank > 2:
            _require(is_one(known_extents(argument)[0]), call)
    _require(not arguments[1] or ranks[1] > 2, call)
    return (True,)


def _spatial(attribute: str) -> Rule:
    """Operators with a layout (convolution, pooling): N must be first in data and result."""

    def rule(call: relax.Call, arguments: Sequence[bool], count: Count) -> Parts:
        layouts = [str(getattr(call.attrs, attribute)), str(getattr(call.attrs, "out_layout", "") or "N")]
        _require(all(layout.startswith("N") for layout in layouts), call)
        return _keep_first_axis(call, arguments, count)

    return rule


def _pad(call: relax.Call, arguments: Sequence[bool], count: Count) -> Parts:
    _require(all(int(width) == 0 for width in list(call.attrs.pad_width)[:2]), call)
    return _keep_first_axis(call, arguments, count)


def _slice(call: relax.Call, arguments: Sequence[bool], count: Count) -> Parts:
    axes = call.args[1]
    _require(isinstance(axes, relax.Tuple) and all(int(axis.value) % _rank(call) != 0 for axis in axes.fields), call)
    return _keep_first_axis(call, arguments, count)


def _take(call: relax.Call, arguments: Sequence[bool], count: Count) -> Parts:
    """Take rows of a table without parts, or along another axis of a tensor with parts."""
    rank = _rank(call.args[0])
    axis = None if call.attrs.axis is None else int(call.attrs.axis) % rank
    if arguments[0]:
        _require(axis not in (None, 0), call)
        return _keep_first_axis(call, arguments, count)
    _require((axis == 0 or rank == 1) and _rank(call.args[1]) > 0, call)
    return (True,)


def _gather_elements(call: relax.Call, arguments: Sequence[bool], _parts: Count) -> Parts:
    _require(all(arguments) and int(call.attrs.axis) % _rank(call) != 0, call)
    return (True,)


def _quantize(call: relax.Call, arguments: Sequence[bool], count: Count) -> Parts:
    """Scale and zero point are per tensor, or per an axis other than the first."""
    along = any(_rank(argument) > 0 for argument in call.args[1:])
    _require(not along or int(call.attrs.axis) % _rank(call) != 0, call)
    return _keep_first_axis(call, arguments, count)


def _batch_norm(call: relax.Call, arguments: Sequence[bool], count: Count) -> Parts:
    """Inference mode: statistics are given and unchanged."""
    _require(int(call.attrs.axis) % _rank(call.args[0]) != 0, call)
    _keep_first_axis(call, arguments, count)
    return (True, *[False] * (fields_of(call.ty) - 1))


def _channels(call: relax.Call, arguments: Sequence[bool], count: Count) -> Parts:
    """Normalizes groups of channels, with statistics per image."""
    _require(all(int(axis) % _rank(call) != 0 for axis in (call.attrs.channel_axis, *call.attrs.axes)), call)
    return _keep_first_axis(call, arguments, count)


def _named(rule: Rule, *names: str) -> dict[str, Rule]:
    return dict.fromkeys(names, rule)


def is_materialized(call: relax.Call) -> bool:
    """Whether a result is materialized in memory. Fused elementwise operators and views are not, nor are the scores of
    attention, which are matmuls of two activations."""
    name = operator_of(call)
    if name == "matmul":
        return _rank(call.args[1]) == 2
    is_view = name in ("squeeze", "nn.softmax")
    return _RULES.get(name) not in (_elementwise, _reshape, _expand_dims, _quantize) and not is_view


_RULES: dict[str, Rule] = {
    **_named(
        _elementwise,
        *("abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf", "exp", "floor"),
        *("isfinite", "isinf", "isnan", "log", "logical_not", "bitwise_not", "negative", "round", "rsqrt", "sigmoid"),
        *("sign", "sin", "sinh", "sqrt", "square", "tan", "tanh", "trunc", "astype", "clip", "where", "ewise_fma"),
        *("add", "subtract", "multiply", "divide", "floor_divide", "mod", "floor_mod", "power", "maximum", "minimum"),
        *("equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "atan2", "log_add_exp"),
        *("logical_and", "logical_or", "logical_xor", "bitwise_and", "bitwise_or", "bitwise_xor"),
        *("left_shift", "right_shift", "nn.relu", "nn.relu6", "nn.leakyrelu", "nn.gelu", "nn.gelu_tanh", "nn.silu"),
        *("nn.selu", "nn.softplus", "broadcast_to"),
    ),
    **_named(_reshape, "reshape", "flatten", "nn.batch_flatten"),
    **_named(_permute, "permute_dims"),
    **_named(_along_axes("axis"), "squeeze", "split", "flip", "nn.softmax", "nn.log_softmax", "cumsum", "cumprod"),
    **_named(_along_axes("axis"), "sum", "mean", "max", "min", "prod", "variance", "std", "argmax", "argmin", "sort"),
    **_named(_along_axes("axes"), "nn.layer_norm", "nn.rms_norm"),
    **_named(_expand_dims, "expand_dims"),
    **_named(_concat, "concat"),
    **_named(_matmul, "matmul"),
    **_named(_spatial("data_layout"), "nn.conv1d", "nn.conv2d", "nn.conv3d"),
    **_named(_spatial("data_layout"), "nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose"),
    **_named(
        _spatial("layout"), *(f"nn.{kind}_pool{n}d" for kind in ("max", "avg", "adaptive_avg") for n in (1, 2, 3))
    ),
    **_named(_spatial("layout"), "image.resize2d", "image.resize3d"),
    **_named(_pad, "nn.pad"),
    **_named(_slice, "strided_slice"),
    **_named(_take, "take"),
    **_named(_gather_elements, "gather_elements"),
    **_named(_quantize, "quantize", "dequantize"),
    **_named(_batch_norm, "nn.batch_norm"),
    **_named(_channels, "nn.group_norm", "nn.instance_norm"),
}
