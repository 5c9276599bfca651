"""Adds a run-time check where operand extents must be equal but cannot be proved so: ``h`` and ``(h // 2) * 2``.

TVM rejects such operands. Here one operand is reshaped to the other's extents, and their equality becomes a condition
of every run (``graph.conditions``). A symbolic extent is assumed equal to the other one, never broadcast.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax, tirx
from tvm.sym import Analyzer
from tvm_ffi import structural_equal

from packager.frontends.onnx.ops.operands import text
from packager.graph.conditions import Relations, einsum_constraints
from packager.graph.dataflow import extents_of, static_shape_of

BROADCASTING = {
    *("Add", "And", "BitShift", "BitwiseAnd", "BitwiseOr", "BitwiseXor", "Div", "Equal", "Greater", "GreaterOrEqual"),
    *("Less", "LessOrEqual", "Max", "Mean", "Min", "Mod", "Mul", "Or", "Pow", "Sub", "Sum", "Where", "Xor"),
}
# Operators whose other operands have an element for each channel of the first, and those that have its last axes.
CHANNELS = {"BatchNormalization", "InstanceNormalization"}
NORMALIZED = {"LayerNormalization", "RMSNormalization"}


def agree(
    builder: Any, relations: Relations, node: str, name: str, operands: Sequence[Any], attributes: Mapping[str, Any]
) -> list[Any]:
    """Return the operands of a node with matching extents; record the assumed equalities in ``relations``."""
    if any(extents_of(o) is None for o in operands) or all(static_shape_of(o) is not None for o in operands):
        return [*operands]
    known = [extents_of(operand) or () for operand in operands]
    if name == "Einsum":
        for left, relation, right in einsum_constraints(text(attributes, "equation", ""), known):
            relations.require(left, relation, right, node)
    wanted = _wanted(name, known, attributes)
    return [_with_extents(builder, relations, node, *each) for each in zip(operands, known, wanted, strict=True)]


def _wanted(name: str, shapes: Sequence[Sequence[Any]], attributes: Mapping[str, Any]) -> Sequence[Sequence[Any]]:
    """Return the shapes that the operator requires of its operands."""
    if name in BROADCASTING:
        return _aligned(shapes)
    if name == "MatMul" and all(len(shape) > 2 for shape in shapes):
        batches = _aligned([shape[:-2] for shape in shapes])
        return [[*batch, *shape[-2:]] for batch, shape in zip(batches, shapes, strict=True)]
    if name == "Gemm" and len(shapes) == 3:
        a, b, bias = ([*shape] for shape in shapes)
        row, column = (1 if attributes.get("transA", 0) else 0), (0 if attributes.get("transB", 0) else 1)
        product, bias = _aligned([[a[row], b[column]], bias])
        a[row], b[column] = product
        return [a, b, bias]
    if name == "Concat" and len({len(shape) for shape in shapes}) == 1:
        axis = attributes.get("axis", 0) % len(shapes[0])
        same = [_same(extents) for extents in zip(*shapes, strict=True)]
        return [[*same[:axis], own[axis], *same[axis + 1 :]] for own in shapes]
    if name in CHANNELS and len(shapes) > 1:
        channel = _same([shapes[0][1], *(shape[0] for shape in shapes[1:])])
        return [[shapes[0][0], channel, *shapes[0][2:]], *([channel] for _ in shapes[1:])]
    if name in NORMALIZED and len(shapes) > 1:
        axis = attributes.get("axis", -1) % len(shapes[0])
        aligned = _aligned([shapes[0][axis:], *shapes[1:]])
        return [[*shapes[0][:axis], *aligned[0]], *aligned[1:]]
    if name == "PRelu":
        return [_aligned(shapes)[0], _aligned(shapes)[1]] if len(shapes[1]) <= len(shapes[0]) else shapes
    if name == "ScatterND":
        data, indices, _ = shapes
        if isinstance(depth := indices[-1], tirx.IntImm):
            return [data, indices, [*indices[:-1], *data[int(depth) :]]]
    return shapes


def _same(extents: Sequence[Any]) -> Any:
    """Return what all of these extents have to be: a number if one of them is."""
    return next((extent for extent in extents if isinstance(extent, tirx.IntImm)), extents[0])


def _aligned(shapes: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Return the shapes with a common extent per right-aligned axis for all operands that do not broadcast on it."""
    results = [[*shape] for shape in shapes]
    for offset in range(1, max(map(len, shapes)) + 1):
        extents = [shape[-offset] for shape in shapes if len(shape) >= offset and not _is_one(shape[-offset])]
        numbers = [extent for extent in extents if isinstance(extent, tirx.IntImm)]
        for result in results:
            if len(result) >= offset and not _is_one(result[-offset]):
                result[-offset] = (numbers or extents)[0]
    return results


def _with_extents(
    builder: Any, relations: Relations, node: str, operand: Any, have: Sequence[Any], wanted: Sequence[Any]
) -> Any:
    changed = False
    for extent, chosen in zip(have, wanted, strict=True):
        if not relations.analyzer.can_prove_equal(extent, chosen):
            relations.require(extent, "==", chosen, node)
            changed = True
        changed = changed or not _seen_equal(extent, chosen)
    return builder.emit(relax.op.reshape(operand, [*wanted])) if changed else operand


def _seen_equal(a: Any, b: Any) -> bool:
    """Tell whether TVM sees that extents are equal as it infers shapes: there it does not know the bounds of dims.

    It may find one of ``a - b`` and ``b - a`` to be 0, but not the other.
    """
    if structural_equal(a, b):
        return True
    analyzer = Analyzer()
    return bool(analyzer.can_prove_equal(a, b)) and bool(analyzer.can_prove_equal(b, a))


def _is_one(extent: Any) -> bool:
    return isinstance(extent, tirx.IntImm) and extent.value == 1
