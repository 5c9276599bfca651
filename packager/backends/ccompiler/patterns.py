"""What the backend takes, as TVM patterns. Elementwise operators match one by one and are merged by packager."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

from tvm import relax, tirx
from tvm.relax.dpl import is_op, is_tuple, wildcard

from packager.backends.base import Match, Pattern
from packager.backends.ccompiler.expressions import ARITIES, DTYPES
from packager.backends.ccompiler.graph import VIEWS

# Element types that the operators other than elementwise ones are rendered for.
FLOATS = ("float32", "float16")
NUMBERS = (*FLOATS, "int8", "int32")


def make_patterns(groups: Sequence[str]) -> list[Pattern]:
    """Return the patterns of these groups of operators."""
    makers: dict[str, Callable[[], list[Pattern]]] = {
        "elementwise": _elementwise,
        "dense": lambda: [_anchor("dense", is_op("relax.matmul")(wildcard(), wildcard()), _is_dense)],
        "conv2d": lambda: [_anchor("conv2d", is_op("relax.nn.conv2d")(wildcard(), wildcard()), _is_conv2d)],
        "pool2d": _pool2d,
        "softmax": lambda: [
            _anchor(name, is_op(f"relax.nn.{name}")(wildcard()), _is_softmax) for name in ("softmax", "log_softmax")
        ],
        "layer_norm": _layer_norm,
    }
    return [pattern for group in groups for pattern in makers[group]()]


def _anchor(name: str, pattern: Any, check: Callable[[Match], bool]) -> Pattern:
    """Return the pattern of an operator that has a loop nest of its own; a partition holds one of them."""
    return Pattern(f"ccompiler.{name}", pattern, check=check, anchor=True)


def _elementwise() -> list[Pattern]:
    """Return a pattern per operator and per way in which its operands are views, which cost nothing to read."""
    patterns = []
    views = [is_op(f"relax.{name}") for name in sorted(VIEWS)]
    for name, arity in ARITIES.items():
        for viewed in product((True, False), repeat=arity if name != "where" else 0):
            operands = []
            for through in viewed or (False,) * arity:
                operand = wildcard()
                if through:
                    operand = _any(*(view(wildcard(), varg_default_wildcard=True) for view in views))
                operands.append(operand)
            call = is_op(f"relax.{name}")(*operands, varg_default_wildcard=True)
            patterns.append(Pattern("ccompiler.elementwise", call, check=_is_elementwise))
    for fields in (*(is_tuple([_broadcast() for _ in range(count)]) for count in (2, 3, 4)), wildcard()):
        total = is_op("relax.sum")(is_op("relax.stack")(fields))
        patterns.append(Pattern("ccompiler.elementwise", total, check=_is_sum_of_tensors))
    return patterns


def _broadcast() -> Any:
    return is_op("relax.broadcast_to")(wildcard(), varg_default_wildcard=True)


def _any(first: Any, *others: Any) -> Any:
    for other in others:
        first = first | other
    return first


def _pool2d() -> list[Pattern]:
    pools = [_anchor(name, is_op(f"relax.nn.{name}")(wildcard()), _is_pool2d) for name in ("max_pool2d", "avg_pool2d")]
    adaptive = is_op("relax.nn.adaptive_avg_pool2d")(wildcard())
    return [
        *pools,
        _anchor("avg_pool2d", adaptive, _is_global_pool),
        _anchor("avg_pool2d", is_op("relax.mean")(wildcard()), _is_spatial_mean),
    ]


def _layer_norm() -> list[Pattern]:
    whole = is_op("relax.nn.layer_norm")(wildcard(), wildcard(), wildcard())
    data = wildcard()
    centred = is_op("relax.subtract")(data, is_op("relax.mean")(data))
    square = is_op("relax.power")(centred, wildcard()) | is_op("relax.multiply")(centred, centred)
    deviation = is_op("relax.sqrt")(is_op("relax.add")(is_op("relax.mean")(square), wildcard()))
    parts = is_op("relax.divide")(centred, deviation)
    return [
        _anchor("layer_norm", whole, _is_layer_norm),
        _anchor("layer_norm", parts, _is_decomposed_layer_norm),
    ]


def shape_of(expr: Any) -> tuple[Any, ...] | None:
    """Return the extents of a tensor, or None if its rank is not known."""
    ty = getattr(expr, "ty", None)
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return None
    return tuple(ty.shape.values)


def _is_static(extents: Sequence[Any]) -> bool:
    return all(isinstance(extent, tirx.IntImm) for extent in extents)


def _dtypes(call: Any) -> set[str]:
    return {str(value.ty.dtype) for value in (*call.args, call) if isinstance(value.ty, relax.TensorType)}


def _is_elementwise(match: Match) -> bool:
    """Whether shapes are known, element types have a C type, and it computes more than a number from numbers."""
    if not shape_of(match.calls[-1]):
        return False
    for call in match.calls:
        tensors = [arg for arg in call.args if isinstance(arg.ty, relax.TensorType)]
        if any(shape_of(tensor) is None for tensor in (*tensors, call)) or not _dtypes(call) <= DTYPES.keys():
            return False
    return not _is_integer_power(match.calls[-1]) and not _is_copy(match.calls[-1])


def _is_copy(call: Any) -> bool:
    """Whether it does nothing: worth no loop of its own, nor a further result of a partition."""
    same = call.op.name == "relax.broadcast_to" and str(shape_of(call)) == str(shape_of(call.args[0]))
    return same or (call.op.name == "relax.astype" and len(_dtypes(call)) == 1)


def _is_integer_power(call: Any) -> bool:
    floats = ("float16", "float32", "float64")
    return call.op.name == "relax.power" and not _dtypes(call) <= set(floats)


def _is_sum_of_tensors(match: Match) -> bool:
    """Whether it is how the ONNX frontend writes Sum: tensors made to be of one shape, stacked, and summed up again."""
    stack, total = match.calls[-2:]
    axes = [int(axis) for axis in total.attrs.axis or ()]
    fields = stack.args[0].fields if isinstance(stack.args[0], relax.Tuple) else ()
    shapes = {str(shape_of(field)) for field in fields}
    same = len(shapes) == 1 and shape_of(total) is not None and shapes == {str(shape_of(total))}
    return bool(same and axes == [0] and int(stack.attrs.axis or 0) == 0 and _dtypes(total) <= {"float32", "int32"})


def _is_dense(match: Match) -> bool:
    (call,) = match.calls
    left, right = (shape_of(arg) for arg in call.args)
    dtype, result = str(call.args[0].ty.dtype), str(call.ty.dtype)
    if not left or not right or len(left) < 2 or len(right) < 2 or str(call.args[1].ty.dtype) != dtype:
        return False
    if dtype not in NUMBERS or result not in _results(dtype):
        return False
    if all(isinstance(extent, tirx.IntImm) and int(extent) == 1 for extent in right[:-2]):
        return True
    # A weight per batch: no broadcasting between the two.
    return len(left) == len(right) and all(str(a) == str(b) for a, b in zip(left[:-2], right[:-2], strict=True))


def _results(dtype: str) -> tuple[str, ...]:
    return {"int8": ("int8", "int32"), "float16": ("float16", "float32")}.get(dtype, (dtype,))


def _is_conv2d(match: Match) -> bool:
    (call,) = match.calls
    data, weight = call.args
    attrs, extents = call.attrs, shape_of(weight)
    plain = (attrs.data_layout, attrs.kernel_layout, attrs.out_layout) == ("NCHW", "OIHW", "NCHW")
    if not plain or extents is None or not _is_static(extents) or not match.is_constant(weight):
        return False
    channels = (shape_of(data) or (None, None))[1]
    dtype = str(data.ty.dtype)
    same = str(weight.ty.dtype) == dtype and dtype in NUMBERS and str(call.ty.dtype) in _results(dtype)
    return same and isinstance(channels, tirx.IntImm) and shape_of(call) is not None


def _is_pool2d(match: Match) -> bool:
    (call,) = match.calls
    attrs = call.attrs
    plain = attrs.layout == "NCHW" and attrs.out_layout in ("", "NCHW")
    return plain and shape_of(call.args[0]) is not None and shape_of(call) is not None and _dtypes(call) <= set(NUMBERS)


def _is_global_pool(match: Match) -> bool:
    (call,) = match.calls
    shape = shape_of(call)
    size = [int(extent) for extent in shape[2:] if isinstance(extent, tirx.IntImm)] if shape else []
    return size == [1, 1] and call.attrs.layout == "NCHW" and _dtypes(call) <= set(FLOATS)


def _is_spatial_mean(match: Match) -> bool:
    (call,) = match.calls
    shape = shape_of(call.args[0])
    axes = sorted(int(axis) % 4 for axis in call.attrs.axis or ())
    return shape is not None and len(shape) == 4 and axes == [2, 3] and _dtypes(call) <= set(FLOATS)


def _is_softmax(match: Match) -> bool:
    (call,) = match.calls
    shape = shape_of(call)
    if not shape or not _dtypes(call) <= set(FLOATS):
        return False
    inner = shape[int(call.attrs.axis) % len(shape) + 1 :]
    return all(isinstance(extent, tirx.IntImm) and int(extent) == 1 for extent in inner)


def _is_layer_norm(match: Match) -> bool:
    (call,) = match.calls
    shape = shape_of(call)
    axes = sorted(int(axis) % len(shape) for axis in call.attrs.axes) if shape else []
    return bool(shape and axes == list(range(len(shape) - len(axes), len(shape))) and _dtypes(call) <= set(FLOATS))


def _is_decomposed_layer_norm(match: Match) -> bool:
    """Whether both means are over the last axis and keep it, and the square and epsilon are what they should be."""
    division = match.calls[-1]
    rank = len(shape_of(division) or ())
    for call in match.calls:
        if call.op.name == "relax.mean":
            axes = [int(axis) % rank for axis in call.attrs.axis or ()] if rank else []
            if axes != [rank - 1] or not call.attrs.keepdims:
                return False
        if call.op.name == "relax.power" and _scalar(call.args[1]) != 2.0:
            return False
        if call.op.name == "relax.add" and _scalar(call.args[1]) is None:
            return False
    return _dtypes(division) == {"float32"}


def _scalar(expr: Any) -> float | None:
    """Return the value of a constant that stands in the graph, None for anything else."""
    value: Any = getattr(expr, "value", None)
    return float(value.numpy().item()) if hasattr(value, "numpy") and value.numpy().size == 1 else None
