"""softmax, log_softmax and layer norm: what needs a whole row before it can give the first element of it."""

from __future__ import annotations

from typing import Any

from packager.backends.ccompiler.core.expressions import literal
from packager.backends.ccompiler.core.functions import FunctionDraft, GroupDraft
from packager.backends.ccompiler.core.operations import Literal, Operand, Operation, Tensor
from packager.backends.ccompiler.core.program import make_program
from packager.backends.ccompiler.core.shapes import c_text, product
from packager.backends.ccompiler.core.stages import Stage
from packager.backends.ccompiler.ops.dense import total_value

VALUES = {
    "nn.softmax": "y[j] * scale",
    "nn.log_softmax": "y[j] - shift",
    "layer_norm": "(y[j] - mean) * scale",
    "nn.layer_norm": "(y[j] - mean) * scale",
}


def add_rows(stage: Stage, anchor: Operation, group: GroupDraft) -> None:
    """Add the function of a stage to its group. Raises CannotRender.

    A row is computed in float, in place: in a result of that type if the stage has one, else in a workspace.
    """
    template = "softmax" if "softmax" in anchor.name else "layer_norm"
    draft = group.function(template)
    made_before = {operation.result.index for operation in stage.before}
    early = [tensor for tensor in stage.stored if tensor.index in made_before]
    late = [tensor for tensor in stage.stored if tensor.index not in made_before]
    before = make_program(
        stage.before,
        inner=stage.inner,
        given=[],
        stored=early,
        pointer_of=draft.tensor,
        last=(anchor.uses[0], "y[j]"),
    )
    value = VALUES[anchor.name] + (_gain(anchor, draft) if anchor.name == "nn.layer_norm" else "")
    after = make_program(
        stage.after,
        inner=stage.inner,
        given=[(anchor.result, total_value(anchor.result, f"({value})"))],
        stored=late,
        pointer_of=draft.tensor,
    )
    draft.finish(
        f"ops/{template}",
        stage.rows,
        {
            "before": before,
            "after": after,
            "y": _scratch(stage, late, group, draft),
            "count": c_text(stage.inner),
            "is_log": anchor.name == "nn.log_softmax",
            "epsilon": literal(_epsilon(anchor), "float32") if template == "layer_norm" else "",
        },
    )


def _scratch(stage: Stage, results: list[Tensor], group: GroupDraft, draft: FunctionDraft) -> str:
    """Return the name of memory for all rows, as float."""
    for tensor in results:
        if tensor.dtype == "float32":
            return draft.tensor(tensor, True)
    return draft.workspace(group.workspace(product((stage.rows, stage.inner)), 4), "float", True)


def _gain(anchor: Operation, draft: FunctionDraft) -> str:
    """Return what layer norm's own scale and shift append to its value."""
    text = ""
    attributes: Any = anchor.attributes
    wanted = (attributes.scale, attributes.center)
    for operand, is_wanted, operator in zip(anchor.operands[1:], wanted, "*+", strict=True):
        if is_wanted:
            text += f" {operator} {_element(operand, draft)}"
    return text


def _element(operand: Operand, draft: FunctionDraft) -> str:
    """Return element j of a row of scales, as float; of rows of one element it may be a number."""
    if isinstance(operand, Literal):
        return literal(float(operand.value), "float32")
    element = f"{draft.tensor(operand.tensor, False)}[j]"
    return f"pk_widen({element})" if operand.tensor.dtype == "float16" else element


def _epsilon(anchor: Operation) -> float:
    return anchor.numbers[0] if anchor.name == "layer_norm" else float(anchor.attributes.epsilon)
