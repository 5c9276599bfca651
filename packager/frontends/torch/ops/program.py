"""An ExportedProgram as the importer wants it: few operators, and what depends on no input computed."""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import sympy  # type: ignore[import-untyped]
import torch

from packager.errors import ModelError, UnsupportedOperatorsError

_ATEN = torch.ops.aten
# torch would take these apart: attention into a dozen operators that no backend knows as such, and products of
# matrices into reshapes around products of two axes.
KEPT = (_ATEN.scaled_dot_product_attention.default, _ATEN.linear.default, _ATEN.matmul.default)
# What is computed here for good: the largest result, in elements.
LARGEST_KNOWN = 2**22
# Names that torch gives to literals of the source, which are no constants that a user could name.
LITERALS = ("lifted_tensor_", "_lifted_tensor_constant")


def check_inputs(program: Any) -> None:
    """Raise ModelError for an input with an extent that is an expression, as ``2 * Dim("half")`` makes it."""
    for node in program.graph.nodes:
        value = node.meta.get("val") if node.op == "placeholder" else None
        for axis, extent in enumerate(value.shape if isinstance(value, torch.Tensor) else ()):
            if isinstance(extent, torch.SymInt) and not extent.node.expr.is_Symbol and not extent.node.expr.is_number:
                raise ModelError(
                    f"input {node.name!r}: axis {axis} is {extent.node.expr}, and only a dim itself can be an extent",
                    hint="export it to ONNX with a plain dim: that its sizes are multiples is checked at run time",
                )


def decompose(program: Any) -> Any:
    """Return the program in few operators. Raises ModelError for one that changes its buffers or its inputs."""
    for node in program.graph.nodes:
        # torch says "view" and takes it back where it traces the program anew: the strides of a kernel's result and
        # of what takes its place may differ.
        if node.op == "call_function" and node.target is _ATEN.view.default:
            node.target = _ATEN.reshape.default
    table = torch.export.default_decompositions()
    for operator in KEPT:
        table.pop(operator, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of its own deprecated calls
        return program.run_decompositions(table)


def known_values(program: Any) -> dict[Any, torch.Tensor]:
    """Compute the nodes that depend on nothing but literals of the source, and return their tensors.

    Exporters write positions, masks and anchors as a score of operators on integers; only torch computes them all.
    """
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    constant = torch.export.graph_signature.InputKind.CONSTANT_TENSOR
    known: dict[Any, torch.Tensor] = {}
    with torch.no_grad():
        for node in program.graph.nodes:
            if node.op == "placeholder":
                spec = specs.get(node.name)
                if spec is not None and spec.kind is constant and str(spec.target).startswith(LITERALS):
                    known[node] = program.constants[spec.target].detach().cpu()
            elif node.op == "call_function" and _can_be_known(node, known):
                arguments = torch.fx.node.map_arg((node.args, node.kwargs), lambda argument: known[argument])
                result = node.target(*arguments[0], **arguments[1])
                if isinstance(result, torch.Tensor):
                    known[node] = result
    return known


def _can_be_known(node: Any, known: Mapping[Any, torch.Tensor]) -> bool:
    if not isinstance(node.target, torch._ops.OpOverload) or not all(a in known for a in node.all_input_nodes):
        return False
    if torch.Tag.nondeterministic_seeded in node.target.tags or node.target._schema.is_mutable:
        return False
    meta = node.meta.get("val")
    static = isinstance(meta, torch.Tensor) and all(isinstance(extent, int) for extent in meta.shape)
    return static and meta.layout is torch.strided and math.prod(meta.shape) <= LARGEST_KNOWN


def check_operators(program: Any, known: Mapping[Any, Any], supported: Mapping[str, Any]) -> None:
    """Raise UnsupportedOperatorsError if a node is to be converted whose operator is not ``supported``."""
    refused: dict[str, list[str]] = {}
    for node in program.graph.nodes:
        if node.op == "call_function" and node not in known and not is_scalar(node):
            operator = operator_of(node)
            if operator not in supported:
                refused.setdefault(operator, []).append(node.name)
    if refused:
        raise UnsupportedOperatorsError(refused)


def check_conditions(program: Any, bounds: Mapping[str, tuple[int, int]]) -> None:
    """Raise ModelError unless the program's conditions on its dims hold for all sizes within their ``bounds``.

    torch writes them where it was told to defer what it cannot prove.
    """
    for node in program.graph.nodes:
        condition = node.args[0].meta.get("val") if operator_of(node) == "_assert_scalar.default" else None
        if isinstance(condition, torch.SymBool) and not _always(condition.node.expr, bounds):
            raise ModelError(
                f"the program demands {condition.node.expr}, which cannot be shown for all sizes of its dims",
                hint="narrow the dims with --dim, or fix them",
            )


def _always(condition: Any, bounds: Mapping[str, tuple[int, int]]) -> bool:
    """Whether a condition holds for all sizes: these are tried."""
    symbols = sorted(condition.free_symbols, key=str)
    if not symbols:
        return bool(condition)
    if any(str(symbol) not in bounds for symbol in symbols):
        return False
    ranges = [bounds[str(symbol)] for symbol in symbols]
    if math.prod(high - low + 1 for low, high in ranges) > LARGEST_KNOWN:
        return False
    axes = [np.arange(low, high + 1) for low, high in ranges]
    grid = np.meshgrid(*axes, indexing="ij", sparse=True)
    functions = {"FloorDiv": np.floor_divide, "CleanDiv": np.floor_divide, "PythonMod": np.mod, "Mod": np.mod}
    return bool(np.all(sympy.lambdify(symbols, condition, [functions, "numpy"])(*grid)))


def operator_of(node: Any) -> str:
    """Return the name of a node's operator and overload: ``add.Tensor``."""
    return str(getattr(node.target, "__name__", node.target))


def argument(node: Any, index: int, name: str, default: Any = None) -> Any:
    """Return an argument of a node, which is given by its place, by its name, or not at all."""
    return node.args[index] if len(node.args) > index else node.kwargs.get(name, default)


def is_scalar(node: Any) -> bool:
    """Whether a node computes extents, or checks them: torch has done so when it exported the program."""
    value = node.meta.get("val")
    return isinstance(value, int | torch.SymInt | torch.SymBool) or operator_of(node) in _CHECKS


_CHECKS = frozenset(
    ("_assert_scalar.default", "_assert_tensor_metadata.default", "sym_constrain_range_for_size.default")
)
