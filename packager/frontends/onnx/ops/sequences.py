"""Converters of SequenceInsert and SequenceLength.

TVM 0.27 counts negative insert positions from behind the last element, and supports the length of few sequences only.
ONNX operators SequenceInsert (version 11): position -1 is before the last element; SequenceLength (11). A sequence is a
tuple of static length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tvm import relax

from packager.frontends.onnx.ops.operands import Convert, Converter, known, optional


def _tensors(builder: Any, sequence: Any) -> list[Any]:
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


CONVERTERS: Mapping[str, Converter] = {"SequenceInsert": _insert, "SequenceLength": _length}
