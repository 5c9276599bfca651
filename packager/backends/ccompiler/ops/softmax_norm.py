"""Operators that reduce whole rows: softmax, log_softmax, layer norm, and means of neighboring elements of a row."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from packager.backends.ccompiler.core.expressions import as_result, element, literal
from packager.backends.ccompiler.core.functions import FunctionDraft, GroupDraft
from packager.backends.ccompiler.core.operations import (
    NORMALIZE,
    CannotRender,
    Literal,
    Operand,
    Operation,
    Tensor,
)
from packager.backends.ccompiler.core.problems import MOST_ELEMENTS, MOST_NEIGHBORS
from packager.backends.ccompiler.core.shapes import c_text, product
from packager.backends.ccompiler.core.stages import Stage, is_full
from packager.graph.normalize import attributes_of_call

# Vectors of a row that softmax keeps in registers, and such rows of which what comes before is computed at once.
KEPT, TOGETHER = 8, 8
VALUES = {
    "nn.softmax": "y[j] * scale",
    "nn.log_softmax": "x[j] - most - shift",
    "layer_norm": "(x[j] - mean) * scale",
    "nn.layer_norm": "(x[j] - mean) * scale",
    NORMALIZE: "(x[j] - mean) * scale",
}


def add_rows(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the function of a stage to its group. Raises CannotRender.

    What is computed before, and the summands of a softmax, are rows of float: in a result of that type if the stage has
    one, else in a workspace.
    """
    template = "softmax" if "softmax" in anchor.name else "layer_norm"
    draft = group.function(template)
    lanes = group.machine.vector_bytes // 4
    early, late = _stored(stage)
    data = anchor.uses[0]
    is_read = not stage.before and data.tensor.dtype == "float32" and is_full(data, anchor.result.shape)
    before = None if is_read else draft.program(stage, "y[j]", before=True, stored=early)
    value = VALUES[anchor.name] + (_gain(anchor, draft) if anchor.name == "nn.layer_norm" else "")
    values = {
        "before": before,
        "x": draft.tensor(data.tensor, False) if is_read else "",
        "after": draft.program(stage, as_result(f"({value})", anchor.result.dtype), stored=late),
        "y": "" if is_read and anchor.name != "nn.softmax" else _scratch(stage, late, group, draft),
        "count": c_text(stage.inner),
        "kept": isinstance(stage.inner, int) and 1 < stage.inner <= KEPT * lanes,
        "length": stage.inner,
        "lanes": lanes,
        "together": TOGETHER,
        "target": draft.tensor(late[0], True) if _is_alone(stage, late) else "",
        "is_log": anchor.name == "nn.log_softmax",
        "centered": anchor.name != NORMALIZE or attributes_of_call(anchor.attributes).centered,
        "epsilon": literal(_epsilon(anchor), "float32") if template == "layer_norm" else "",
    }
    draft.finish(f"ops/{template}", stage.rows, values)


def add_neighbors(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the function of avg_pool1d along rows, as in local response normalization. Raises CannotRender."""
    (window,), (first, last) = map(int, anchor.attributes.pool_size), map(int, anchor.attributes.padding)
    if not isinstance(stage.inner, int) or stage.inner > MOST_ELEMENTS or window > MOST_NEIGHBORS:
        raise CannotRender(f"means of {window} neighbors in rows of {stage.inner}")
    draft = group.function("neighbors")
    early, late = _stored(stage)
    values = {
        "before": draft.program(stage, "y[j]", before=True, stored=early),
        "after": draft.program(stage, as_result(f"(sums[j] / {window})", anchor.result.dtype), stored=late),
        "inner": stage.inner,
        "window": window,
        "before_count": first,
        "after_count": last,
    }
    draft.finish("ops/channel_mean", stage.rows, values)


def _is_alone(stage: Stage, late: Sequence[Tensor]) -> bool:
    """Whether the anchor's result is all that is made from its rows, and is written as it is, as float."""
    return not stage.after and stage.placed is None and [tensor.dtype for tensor in late] == ["float32"]


def _stored(stage: Stage) -> tuple[list[Tensor], list[Tensor]]:
    """Return what is stored before the anchor of a stage, and from it on."""
    made_before = {operation.result.index for operation in stage.before}
    early = [tensor for tensor in stage.stored if tensor.index in made_before]
    return early, [tensor for tensor in stage.stored if tensor.index not in made_before]


def _scratch(stage: Stage, results: list[Tensor], group: GroupDraft, draft: FunctionDraft) -> str:
    """Return the pointer to memory for all rows, as float."""
    for tensor in results:
        if tensor.dtype == "float32":
            return draft.tensor(tensor, True)
    return draft.workspace(group.workspace(product((stage.rows, stage.inner))), "float", True)


def _gain(anchor: Operation, draft: FunctionDraft) -> str:
    """Return C for the scale and shift of layer norm, to append to its value."""
    text = ""
    attributes: Any = anchor.attributes
    wanted = (attributes.scale, attributes.center)
    for operand, is_wanted, operator in zip(anchor.operands[1:], wanted, "*+", strict=True):
        if is_wanted:
            text += f" {operator} {_element(operand, draft)}"
    return text


def _element(operand: Operand, draft: FunctionDraft) -> str:
    """Return C for element j of a row of scales, as float; for rows of one element it may be a number."""
    if isinstance(operand, Literal):
        return literal(float(operand.value), "float32")
    return element(f"{draft.tensor(operand.tensor, False)}[j]", operand.tensor.dtype)


def _epsilon(anchor: Operation) -> float:
    if anchor.name == NORMALIZE:
        return attributes_of_call(anchor.attributes).epsilon
    return anchor.numbers[0] if anchor.name == "layer_norm" else float(anchor.attributes.epsilon)
