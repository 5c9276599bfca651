"""Which rows of an operator's result depend on which rows of its arguments.

A value has *parts* if its first axis is as many equal stretches of rows as there are micro-batches, and stretch i
depends on stretch i of the inputs alone; any other value is the same for all of them. A rule says that of a result,
given it of the arguments. A model with an operator that no rule knows is not taken apart. After Huang et al. 2019,
"GPipe: Efficient Training of Giant Neural Networks using Pipeline Parallelism", section 2: micro-batches.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvm import relax, tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_equal, structural_map

from packager.graph.dataflow import extents_of, operator_of

# How many parts there are: an int, or the batch itself, a dim's tirx.Var; then a part is one row of it.
Count = Any
# Of each field of a value, whether it has parts.
Parts = tuple[bool, ...]
Rule = Callable[[relax.Call, Sequence[bool], Count], Parts]
# They are told the shape of their result, and make something of nothing, or repeat it.
SHAPED = frozenset(("reshape", "broadcast_to", "full", "zeros", "ones"))


class NotSeparableError(Exception):
    """A part of the result depends on other parts of the arguments, as far as the rules can tell."""


def parts_of_call(call: relax.Call, arguments: Sequence[bool], count: Count) -> Parts:
    """Return which fields of a call's result have parts, of which there are ``count``; ``arguments`` says that of the
    arguments. Raises NotSeparableError."""
    if not any(arguments):
        return (_is_repeated(call, count),) * fields_of(call.ty)
    rule = _RULES.get(operator_of(call))
    if rule is None:
        raise NotSeparableError(f"{call.op} of a batch")
    return rule(call, arguments, count)


def fields_of(ty: Any) -> int:
    """Return how many tensors a value of this type is."""
    return len(ty.fields) if isinstance(ty, relax.TupleType) else 1


def known_extents(value: Any) -> tuple[Any, ...]:
    """Return the extents of a tensor or of its type. Raises NotSeparableError where they are not known."""
    extents = extents_of(value)
    if extents is None:
        raise NotSeparableError("a tensor of a shape that is not known")
    return extents


def part_of(extent: Any, count: Count) -> Any:
    """Return the part that each of ``count`` parts has of an extent; None if they have no equal ones."""
    if isinstance(count, int):
        divides = isinstance(extent, tirx.IntImm) and int(extent) > 0 and int(extent) % count == 0
        return tirx.IntImm("int64", int(extent) // count) if divides else None
    unit = tirx.IntImm("int64", 1)
    one = Analyzer().simplify(structural_map(extent, (tirx.Var, lambda v: unit if v.same_as(count) else v)))
    return one if Analyzer().can_prove_equal(one * count, extent) else None


def _demand(holds: bool, call: relax.Call) -> None:
    if not holds:
        raise NotSeparableError(f"{call.op.name} mixes what is in the batch")


def _rank(expr: Any) -> int:
    """Return the number of axes; 0 for a number."""
    return len(known_extents(expr)) if isinstance(expr.ty, relax.TensorType) else 0


def _elementwise(call: relax.Call, arguments: Sequence[bool], _parts: Count) -> Parts:
    """Arguments with parts have the result's first axis; the others have none there, or are the same along it."""
    first, *_ = extents = known_extents(call)
    for argument, parted in zip(call.args, arguments, strict=True):
        if parted:
            own = known_extents(argument)
            _demand(len(own) == len(extents) and bool(structural_equal(own[0], first)), call)
        else:
            _demand(_rank(argument) < len(extents) or _is_one(known_extents(argument)[0]), call)
    return (True,)


def _is_one(extent: Any) -> bool:
    return isinstance(extent, tirx.IntImm) and int(extent) == 1


def _reshape(call: relax.Call, _arguments: Sequence[bool], count: Count) -> Parts:
    """A reshape keeps the order of elements, and parts are stretches of these."""
    extents = known_extents(call)
    _demand(bool(extents) and part_of(extents[0], count) is not None, call)
    return (True,)


def _is_repeated(call: relax.Call, count: Count) -> bool:
    """Whether a result is the same for each row of a batch that is a dim: nothing else has that as an extent."""
    if isinstance(count, int) or operator_of(call) not in SHAPED - {"reshape"}:
        return False
    extents = known_extents(call)
    sources = [a for a in call.args if _rank(a) == len(extents) and not _is_one(known_extents(a)[0])]
    return not sources and bool(extents) and part_of(extents[0], count) is not None


def _first_stays(call: relax.Call, arguments: Sequence[bool], _parts: Count) -> Parts:
    """Only the first argument may have parts; what is along its first axis stays so."""
    _demand(arguments[0] and not any(arguments[1:]), call)
    return (True,) * fields_of(call.ty)


def _permute(call: relax.Call, arguments: Sequence[bool], count: Count) -> Parts:
    axes = call.attrs.axes
    _demand(axes is not None and int(axes[0]) % _rank(call.args[0]) == 0, call)
    return _first_stays(call, arguments, count)


def _along(attribute: str) -> Rule:
    """What happens along some axes, of which the first is none."""

    def rule(call: relax.Call, arguments: Sequence[bool], count: Count) -> Parts:
        given, rank = getattr(call.attrs, attribute), _rank(call.args[0])
        axes = list(given) if hasattr(given, "__len__") else [given]
        _demand(bool(axes) and all(axis is not None and int(axis) % rank != 0 for axis in axes), call)
        return _first_stays(call, arguments, count)

    return rule


def _expand_dims(call: relax.Call, arguments: Sequence[bool], count: Count) -> Parts:
    _demand(all(int(axis) % _rank(call) != 0 for axis in call.attrs.axis), call)
    return _first_stays(call, arguments, count)


def _concat(call: relax.Call, arguments: Sequence[bool], _parts: Count) -> Parts:
    """All that is joined has parts: what is the same in all of them has as many rows as the batch, but no parts."""
    (joined,) = call.args
    fields = joined.fields if isinstance(joined, relax.Tuple) else ()
    _demand(bool(fields) and all(arguments), call)
    _demand(call.attrs.axis is not None and int(call.attrs.axis) % _rank(call) != 0, call)
    return (True,)


def _matmul(call: relax.Call, arguments: Sequence[bool], _parts: Count) -> Parts:
    """Rows of a first operand of two axes, or the first axis of a batch of matrices that both have or one lacks."""
    ranks = [_rank(argument) for argument in call.args]
    for rank, parted, argument in zip(ranks, arguments, call.args, strict=True):
        if parted:
            _demand(rank == _rank(call), call)
        elif rank == _rank(call) and rank > 2:
            _demand(_is_one(known_extents(argument)[0]), call)
    _demand(not arguments[1] or ranks[1] > 2, call)
    return (True,)


def _windows(attribute: str) -> Rule:
    """What has a layout, as convolutions and poolings have: images come first in it, on both sides."""

    def rule(call: relax.Call, arguments: Sequence[bool], count: Count) -> Parts:
        layouts = [str(getattr(call.attrs, attribute)), str(getattr(call.attrs, "out_layout", "") or "N")]
        _demand(all(layout.startswith("N") for layout in layouts), call)
        return _first_stays(call, arguments, count)

    return rule


def _pad(call: relax.Call, arguments: Sequence[bool], count: Count) -> Parts:
    _demand(all(int(width) == 0 for width in list(call.attrs.pad_width)[:2]), call)
    return _first_stays(call, arguments, count)


def _slice(call: relax.Call, arguments: Sequence[bool], count: Count) -> Parts:
    axes = call.args[1]
    _demand(isinstance(axes, relax.Tuple) and all(int(axis.value) % _rank(call) != 0 for axis in axes.fields), call)
    return _first_stays(call, arguments, count)


def _take(call: relax.Call, arguments: Sequence[bool], count: Count) -> Parts:
    """Rows of a table that is the same in all parts, or places along an axis of what has parts."""
    rank = _rank(call.args[0])
    axis = None if call.attrs.axis is None else int(call.attrs.axis) % rank
    if arguments[0]:
        _demand(axis not in (None, 0), call)
        return _first_stays(call, arguments, count)
    _demand((axis == 0 or rank == 1) and _rank(call.args[1]) > 0, call)
    return (True,)


def _gather_elements(call: relax.Call, arguments: Sequence[bool], _parts: Count) -> Parts:
    _demand(all(arguments) and int(call.attrs.axis) % _rank(call) != 0, call)
    return (True,)


def _quantize(call: relax.Call, arguments: Sequence[bool], count: Count) -> Parts:
    """Scale and zero point are numbers, or along an axis that is not the first."""
    along = any(_rank(argument) > 0 for argument in call.args[1:])
    _demand(not along or int(call.attrs.axis) % _rank(call) != 0, call)
    return _first_stays(call, arguments, count)


def _batch_norm(call: relax.Call, arguments: Sequence[bool], count: Count) -> Parts:
    """As in inference, which is what packager builds: the statistics are those that it is given, and stay."""
    _demand(int(call.attrs.axis) % _rank(call.args[0]) != 0, call)
    _first_stays(call, arguments, count)
    return (True, *[False] * (fields_of(call.ty) - 1))


def _channels(call: relax.Call, arguments: Sequence[bool], count: Count) -> Parts:
    """Norms of groups of channels: no statistics across images."""
    _demand(all(int(axis) % _rank(call) != 0 for axis in (call.attrs.channel_axis, *call.attrs.axes)), call)
    return _first_stays(call, arguments, count)


def _named(rule: Rule, *names: str) -> dict[str, Rule]:
    return dict.fromkeys(names, rule)


def is_written(call: relax.Call) -> bool:
    """Whether a result goes to memory: what an operator does element by element to another's result need not, nor do
    views, nor the scores of attention, which are products of two activations."""
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
    **_named(_along("axis"), "squeeze", "split", "flip", "nn.softmax", "nn.log_softmax", "cumsum", "cumprod"),
    **_named(_along("axis"), "sum", "mean", "max", "min", "prod", "variance", "std", "argmax", "argmin", "sort"),
    **_named(_along("axes"), "nn.layer_norm", "nn.rms_norm"),
    **_named(_expand_dims, "expand_dims"),
    **_named(_concat, "concat"),
    **_named(_matmul, "matmul"),
    **_named(_windows("data_layout"), "nn.conv1d", "nn.conv2d", "nn.conv3d"),
    **_named(_windows("data_layout"), "nn.conv1d_transpose", "nn.conv2d_transpose", "nn.conv3d_transpose"),
    **_named(
        _windows("layout"), *(f"nn.{kind}_pool{n}d" for kind in ("max", "avg", "adaptive_avg") for n in (1, 2, 3))
    ),
    **_named(_windows("layout"), "image.resize2d", "image.resize3d"),
    **_named(_pad, "nn.pad"),
    **_named(_slice, "strided_slice"),
    **_named(_take, "take"),
    **_named(_gather_elements, "gather_elements"),
    **_named(_quantize, "quantize", "dequantize"),
    **_named(_batch_norm, "nn.batch_norm"),
    **_named(_channels, "nn.group_norm", "nn.instance_norm"),
}
