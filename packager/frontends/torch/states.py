"""Buffers that a program changes, a KV-cache for example: states of the session, with the buffer's value at first."""

from __future__ import annotations

from typing import Any

import torch
from torch.export.graph_signature import (
    ExportGraphSignature,
    InputKind,
    InputSpec,
    OutputKind,
    OutputSpec,
    TensorArgument,
)

from packager.errors import ModelError


def buffers_to_states(program: Any) -> dict[str, torch.Tensor]:
    """Make user inputs and outputs of the buffers that a functional program changes.

    Returns what they hold before the first run, by the names of the inputs, in the order of the outputs, which stand in
    front of the program's own. Raises ModelError for
    a program that changes parameters or inputs: what it leaves behind would be lost.
    """
    signature = program.graph_signature
    changed = {}
    for spec in signature.output_specs:
        if spec.kind in (OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION):
            what = "parameter" if spec.kind is OutputKind.PARAMETER_MUTATION else "input"
            raise ModelError(
                f"the program changes its {what} {str(spec.target)!r}, which is not supported",
                hint="make it a buffer, or let the program take the old value and return the new one",
            )
        if spec.kind is OutputKind.BUFFER_MUTATION:
            changed[spec.target] = spec
    if not changed:
        return {}
    placeholders = {node.name: node for node in program.graph.find_nodes(op="placeholder")}
    states: dict[str, str] = {}
    inputs = []
    for spec in signature.input_specs:
        if spec.kind is InputKind.BUFFER and spec.target in changed:
            name = _rename(placeholders, spec.arg.name, spec.target)
            states[name] = spec.target
            inputs.append(InputSpec(InputKind.USER_INPUT, TensorArgument(name), None))
        else:
            inputs.append(spec)
    outputs = [OutputSpec(OutputKind.USER_OUTPUT, spec.arg, None) for spec in changed.values()]
    own = [spec for spec in signature.output_specs if spec.kind is not OutputKind.BUFFER_MUTATION]
    program._graph_signature = ExportGraphSignature(inputs, [*outputs, *own])
    # TVM's importer would take what is no input of a program for the value of another one.
    initial = {target: _take(program, target) for target in changed}
    return {name: initial[target] for target in changed for name in states if states[name] == target}


def _take(program: Any, buffer: str) -> torch.Tensor:
    stores: tuple[dict[str, Any], ...] = (program.state_dict, program.constants)
    tensor: torch.Tensor = next(store.pop(buffer) for store in stores if buffer in store)
    return tensor


def _rename(placeholders: dict[str, Any], old: str, buffer: str) -> str:
    """Name an input after its buffer, without the prefix that torch gives it; return the name that it gets."""
    wanted = buffer.replace(".", "_")
    if wanted in placeholders:
        return old
    node = placeholders.pop(old)
    node._rename(wanted)
    node.target = node.name
    placeholders[node.name] = node
    return str(node.name)
