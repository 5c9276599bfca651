"""Prepare an ExportedProgram for the importer: decompose operators, precompute nodes that depend on no input."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import torch
from torch.export._remove_effect_tokens_pass import _remove_effect_tokens

from packager.errors import UnsupportedOperatorsError
from packager.frontends.torch.constant_sizes import is_size_of_data, masks_of_buffers
from packager.frontends.torch.decompositions.table import DECOMPOSITIONS

_ATEN = torch.ops.aten
# Not decomposed: attention would become a dozen operators that no backend recognizes, matmuls would become reshapes
# around 2-D matmuls, and instance norms batch norms of one image that has the channels of all.
KEPT = (
    *(_ATEN.scaled_dot_product_attention.default, _ATEN.linear.default, _ATEN.matmul.default),
    _ATEN.instance_norm.default,
)
# Decomposed they are unrolled.
RECURRENT = (_ATEN.lstm.input, _ATEN.gru.input, _ATEN.rnn_tanh.input, _ATEN.rnn_relu.input)
# Decomposed they are dozens of operators; those of known extents are weighted sums by tables.
RESIZING = (
    *(_ATEN.upsample_linear1d.vec, _ATEN.upsample_bicubic2d.vec, _ATEN.upsample_trilinear3d.vec),
    *(_ATEN.upsample_nearest1d.vec, _ATEN.upsample_nearest3d.vec, _ATEN._upsample_nearest_exact1d.vec),
    *(_ATEN._upsample_nearest_exact2d.vec, _ATEN._upsample_nearest_exact3d.vec),
)
# The largest precomputed result, in elements.
LARGEST_KNOWN = 2**22
HINT = "replace them in the model by operators that are supported, or by what torch decomposes into these"
RANDOM_HINT = (
    "torch.export programs cannot draw random numbers at run time: call model.eval() before the export, or make the "
    "numbers an input"
)
# Prefixes of torch's names for literals of the source, which users cannot name as constants.
LITERALS = ("lifted_tensor_", "_lifted_tensor_constant")


def decompose(program: Any) -> Any:
    """Decompose to core operators. Raises ModelError for a program that mutates its buffers or inputs."""
    for node in program.graph.nodes:
        # A view may be invalid when torch retraces the program, since the decomposition of an operator may return
        # other strides.
        if node.op == "call_function" and node.target is _ATEN.view.default:
            node.target = _ATEN.reshape.default
    _drop_ranges_of_expressions(program)
    program.example_inputs = None  # torch would check them, and their containers may have types that are not there
    table = torch.export.default_decompositions()
    table.update(DECOMPOSITIONS)
    for operator in (*KEPT, *_kept_recurrent(program), *_kept_resizing(program)):
        table.pop(operator, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns about deprecated calls of its own
        program = program.run_decompositions(table)
    return _without_assertions(_remove_effect_tokens(program))


def _without_assertions(program: Any) -> Any:
    """Drop assertions about values of tensors, which a bundle does not check, and what computes only these."""
    for node in reversed(program.graph.nodes):
        if node.op != "call_function":
            continue
        if operator_of(node) in _VALUE_CHECKS or (operator_of(node) in _CHECKS and _is_of_data(node)):
            program.graph.erase_node(node)
    program.graph.eliminate_dead_code()
    program.graph_module.recompile()
    return program


def _is_of_data(check: Any) -> bool:
    """Tell whether a check reads a number from a tensor, as that a mask takes as many elements as there are."""
    pending, seen = list(check.all_input_nodes), set()
    while pending:
        node = pending.pop()
        if node in seen or isinstance(node.meta.get("val"), torch.Tensor):
            continue
        if operator_of(node) in _READS:
            return True
        seen.add(node)
        pending += node.all_input_nodes
    return False


def _kept_recurrent(program: Any) -> list[Any]:
    """Return the recurrent operators of a program, unless one projects its hidden states (``proj_size``)."""
    kept = []
    for operator in RECURRENT:
        nodes = [node for node in program.graph.nodes if node.op == "call_function" and node.target is operator]
        if nodes and not any(has_projection(node) for node in nodes):
            kept.append(operator)
    return kept


def _kept_resizing(program: Any) -> list[Any]:
    """Return the operators that resize nothing but floats of known extents in a program."""
    kept = []
    for operator in RESIZING:
        nodes = [node for node in program.graph.nodes if node.op == "call_function" and node.target is operator]
        metas = [meta for node in nodes for meta in (node.args[0].meta["val"], node.meta["val"])]
        if all(m.is_floating_point() and all(isinstance(extent, int) for extent in m.shape[2:]) for m in metas):
            kept.append(operator)
    return kept


def has_projection(node: Any) -> bool:
    """Tell whether a recurrent layer has a third matrix."""
    weights = [weight.meta["val"] for weight in node.args[2]]
    matrices = sum(weight.ndim == 2 for weight in weights)
    return bool(matrices != 2 * int(node.args[4]) * (1 + int(node.args[7])))


def _drop_ranges_of_expressions(program: Any) -> None:
    """Leave the ranges of symbols alone: a file has those of inputs' extents too, at which torch stumbles."""
    for node in program.graph.find_nodes(op="placeholder"):
        for extent in getattr(node.meta.get("val"), "shape", ()):
            if isinstance(extent, torch.SymInt):
                ranges = extent.node.shape_env.var_to_range
                for expr in [expr for expr in ranges if not expr.is_Symbol]:
                    del ranges[expr]


def known_values(program: Any) -> dict[Any, torch.Tensor]:
    """Compute the nodes that depend only on literals of the source, and return their tensors.

    Exported position ids, masks and anchors are many integer operators, not all of which the importer supports. A
    buffer that is a mask is known as well, where it is to be: it says how many elements it takes.
    """
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    constant = torch.export.graph_signature.InputKind.CONSTANT_TENSOR
    masks = masks_of_buffers(program)
    known: dict[Any, torch.Tensor] = {}
    with torch.no_grad():
        for node in program.graph.nodes:
            if node.op == "placeholder":
                spec = specs.get(node.name)
                if spec is not None and spec.kind is constant and str(spec.target).startswith(LITERALS):
                    known[node] = program.constants[spec.target].detach().cpu()
                elif node in masks:
                    known[node] = masks[node]
            elif node.op == "call_function" and _can_be_known(node, known):
                arguments = torch.fx.node.map_arg((node.args, node.kwargs), lambda argument: known[argument])
                result = node.target(*arguments[0], **arguments[1])
                if isinstance(result, torch.Tensor):
                    known[node] = result
    return known


def _can_be_known(node: Any, known: Mapping[Any, torch.Tensor]) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload) or not all(a in known for a in node.all_input_nodes):
        return False
    if _is_random(node.target) or node.target._schema.is_mutable:
        return False
    meta = node.meta.get("val")
    if not isinstance(meta, torch.Tensor) or meta.layout is not torch.strided:
        return False
    extents = [extent for extent in meta.shape if not is_size_of_data(extent)]  # of a constant, the others are known
    return all(isinstance(extent, int) for extent in extents) and math.prod(extents) <= LARGEST_KNOWN


def check_operators(program: Any, known: Mapping[Any, Any], supported: Mapping[str, Any]) -> None:
    """Raise UnsupportedOperatorsError if a node to convert has an operator that is not ``supported``."""
    refused: dict[str, list[str]] = {}
    random = False
    for node in program.graph.nodes:
        if node.op == "call_function" and node not in known and not is_scalar(node):
            operator = operator_of(node)
            if operator not in supported:
                refused.setdefault(operator, []).append(node.name)
                random |= _is_random(node.target)
    if refused:
        raise UnsupportedOperatorsError(refused, hint=RANDOM_HINT if random else HINT)


def _is_random(target: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in getattr(target, "tags", ())


def operator_of(node: Any) -> str:
    """Return the name of a node's operator and overload: ``add.Tensor``, of other libraries ``library::add.Tensor``."""
    name = str(getattr(node.target, "__name__", node.target))
    library = getattr(node.target, "namespace", "aten")
    return name if library == "aten" else f"{library}::{name}"


def argument(node: Any, index: int, name: str, default: Any = None) -> Any:
    """Return an argument of a node, positional or by keyword, or ``default``."""
    return node.args[index] if len(node.args) > index else node.kwargs.get(name, default)


def axis_of(node: Any, index: int, default: int = 0) -> int:
    """Return an argument of a node, ``dim``, as an axis of its first operand, counted from the front."""
    axis: int = argument(node, index, "dim", default) % max(node.args[0].meta["val"].ndim, 1)
    return axis


def is_scalar(node: Any) -> bool:
    """Tell whether a node computes or checks extents, which torch did at export."""
    value = node.meta.get("val")
    return isinstance(value, int | torch.SymInt | torch.SymBool) or operator_of(node) in _CHECKS


_READS = frozenset(("_local_scalar_dense.default", "item.default"))
_VALUE_CHECKS = frozenset(("_assert_async.default", "_assert_async.msg", "_linalg_check_errors.default"))
_CHECKS = frozenset(
    (
        "_assert_scalar.default",
        "_assert_tensor_metadata.default",
        "sym_constrain_range.default",
        "sym_constrain_range_for_size.default",
    )
)
