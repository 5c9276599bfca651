"""Turn buffers that a program mutates, such as a KV-cache, into session states initialized with the buffer's value."""

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
    """Turn the mutated buffers of a functional program into user inputs and outputs.

    Returns the initial values by input name, in the order of the new outputs, which precede the program's own. Raises
    ModelError for a program that mutates parameters or inputs: the new values would be lost.
    """
    signature = program.graph_signature
    changed = {}
    for spec in signature.output_specs:
        if spec.kind in (OutputKind.PARAMETER_MUTATION, OutputKind.USER_INPUT_MUTATION):
            what = "parameter" if spec.kind is OutputKind.PARAMETER_MUTATION else "input"
            raise ModelError(
                f"the program mutates its {what} {str(spec.target)!r}, which is not supported",
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
    # Removed from the program: TVM's importer would confuse a constant that is no input with another one.
    initial = {target: _take(program, target) for target in changed}
    return {name: initial[target] for target in changed for name in states if states[name] == target}


def _take(program: Any, buffer: str) -> torch.Tensor:
    stores: tuple[dict[str, Any], ...] = (program.state_dict, program.constants)
    tensor: torch.Tensor = next(store.pop(buffer) for store in stores if buffer in store)
    return tensor


def _rename(placeholders: dict[str, Any], old: str, buffer: str) -> str:
    """Rename an input after its buffer, without torch's prefix; return the new name."""
    wanted = buffer.replace(".", "_")
    if wanted in placeholders:
        return old
    node = placeholders.pop(old)
    node._rename(wanted)
    node.target = node.name
    placeholders[node.name] = node
    return str(node.name)
