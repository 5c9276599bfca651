"""Turn complex parameters, buffers and constants of a program into real ones, of which it makes complex numbers."""

from __future__ import annotations

from typing import Any

import torch
from torch.export.graph_signature import InputKind

from packager.errors import ModelError
from packager.frontends.torch.complex_pairs.arithmetic import is_complex

_VIEW = torch.ops.aten.view_as_complex.default


def complex_to_real(program: Any) -> None:
    """Give stored complex tensors a last axis of two parts. Raises ModelError for complex inputs and outputs."""
    kinds = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    placeholders = list(program.graph.find_nodes(op="placeholder"))
    first = next(node for node in program.graph.nodes if node.op != "placeholder")
    for node in filter(is_complex, placeholders):
        spec = kinds[node.name]
        if spec.kind is InputKind.USER_INPUT:
            _refuse("input", node.name)
        store = program.state_dict if spec.target in program.state_dict else program.constants
        real = torch.view_as_real(store[spec.target].detach().resolve_conj()).contiguous()
        trained = spec.kind is InputKind.PARAMETER
        store[spec.target] = torch.nn.Parameter(real, requires_grad=False) if trained else real
        with program.graph.inserting_before(first):
            view = program.graph.call_function(_VIEW, (node,))
        view.meta["val"] = node.meta["val"]
        node.meta["val"] = torch.view_as_real(node.meta["val"])
        node.replace_all_uses_with(view, delete_user_cb=lambda user, view=view: user is not view)
    (output,) = program.graph.find_nodes(op="output")
    for node in output.args[0]:
        if is_complex(node):
            _refuse("output", node.name)


def _refuse(kind: str, name: str) -> None:
    raise ModelError(
        f"{kind} {name!r} is complex: inputs and outputs of bundles are real",
        hint="let the program take or return torch.view_as_real of it, a tensor whose last axis has both parts",
    )
