"""Converters of operators on sequences.

TVM 0.27 counts negative insert positions from behind the last element, supports the length of few sequences only, and
goes on forever with the elements of an operand that is no sequence. A sequence is a tuple of static length.

ONNX operators SequenceInsert (version 11): position -1 is before the last element; SequenceAt, SequenceErase,
SequenceLength, ConcatFromSequence (11).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from packager.frontends.onnx.ops.operands import Convert, Converter, known, optional


def _tensors(builder: Any, sequence: Any) -> list[Any]:
    """Return the elements. Raises ValueError for what is no sequence."""
    if not isinstance(getattr(sequence, "ty", None), relax.TupleType):
        raise ValueError("the operand is not a sequence")
    if isinstance(sequence, relax.Tuple):
        return list(sequence.fields)
    return [builder.emit(relax.TupleGetItem(sequence, number)) for number in range(len(sequence.ty.fields))]


def _length(builder: Any, inputs: Sequence[Any], _attributes: dict[str, Any], _convert: Convert) -> Any:
    return relax.const(len(_tensors(builder, inputs[0])), "int64")


def _insert(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], _convert: Convert) -> Any:
    tensors = _tensors(builder, inputs[0])
    position = len(tensors)
    if optional(inputs, 2) is not None:
        position = int(known(inputs[2], attributes, "the position of SequenceInsert").item())
    if not -len(tensors) <= position <= len(tensors):
        raise ValueError(f"SequenceInsert at {position} of {len(tensors)} tensors")
    tensors.insert(position, inputs[1])
    return relax.Tuple(tensors)


def _checked(operator: str) -> Converter:
    def converted(builder: Any, inputs: Sequence[Any], attributes: dict[str, Any], convert: Convert) -> Any:
        if not _tensors(builder, inputs[0]):
            raise ValueError("the sequence is empty")
        return convert(operator, list(inputs), attributes)

    return converted


CONVERTERS: Mapping[str, Converter] = {
    "SequenceInsert": _insert,
    "SequenceLength": _length,
    **{operator: _checked(operator) for operator in ("SequenceAt", "SequenceErase", "ConcatFromSequence")},
}
