"""TVM's importer of ExportedPrograms, with packager's converters in front of its own.

TVM's converters guess element types and lose symbolic extents. torch says of every node what it computes, so packager's
converters take shapes and types from there, and the result of any converter is held against them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
import tvm
from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from packager.errors import ModelError, PackagerError, last_line
from packager.frontends.torch.ops.elementwise import OPERATORS
from packager.frontends.torch.ops.nn import NETWORK
from packager.frontends.torch.ops.program import is_scalar, operator_of
from packager.frontends.torch.ops.reductions import REDUCTIONS
from packager.frontends.torch.ops.updates import UPDATES
from packager.frontends.torch.ops.views import VIEWS
from packager.frontends.torch.shapes import Symbols, is_extent
from packager.graph.dataflow import extents_of

Converter = Callable[["Importer", Any], Any]
CONVERTERS: Mapping[str, Converter] = {**OPERATORS, **REDUCTIONS, **VIEWS, **UPDATES, **NETWORK}

# TVM imports them as something else: random numbers as zeros, dropout as nothing, sparse tensors as dense ones.
REFUSED = (
    "_sparse_addmm.default",
    "_sparse_mm.default",
    "bernoulli.p",
    "exponential.default",
    "native_dropout.default",
    "randn.default",
    "randn_like.default",
    "to_sparse.default",
    "_native_batch_norm_legit_functional.default",
)


class Importer(ExportedProgramImporter):  # type: ignore[misc]
    """``known`` holds the values of nodes that need no conversion; ``node_of_variable`` is filled by the import."""

    def __init__(self, known: Mapping[Any, torch.Tensor]) -> None:
        self.known = known
        self.node_of_variable: dict[str, str] = {}
        self.symbols = Symbols({})
        self.converters: dict[str, Converter] = {}
        super().__init__()

    def create_convert_map(self) -> Mapping[str, Callable[[Any], Any]]:
        """Return a table that sends every operator to ``_convert``; fill ``converters``, packager's before TVM's."""
        theirs = super().create_convert_map()
        self.converters = {name: _of_tvm(convert) for name, convert in theirs.items() if name not in REFUSED}
        self.converters.update(CONVERTERS)
        return _Every(self._convert)

    def create_input_vars(self, exported_program: Any) -> Any:
        """Do what TVM does, and remember the shape variables of its symbols."""
        parameters, inputs, constraints = super().create_input_vars(exported_program)
        for node in exported_program.graph.find_nodes(op="placeholder"):
            if node.name in inputs:
                for extent, expr in zip(node.meta["val"].shape, inputs[node.name].ty.shape.values, strict=True):
                    if isinstance(extent, torch.SymInt) and extent.node.expr.is_Symbol:
                        self.symbols.variables.setdefault(str(extent.node.expr), expr)
        return parameters, inputs, constraints

    def _check_unsupported_func_type(self, nodes: Any) -> None:
        """``check_operators`` has done so, for nodes that are converted alone."""

    def _convert(self, node: Any) -> Any:
        if node in self.known:
            tensor = self._convert_pytorch_tensor_to_tvm(self.known[node])
            return relax.const(tensor, tensor.dtype)
        if is_scalar(node):
            value = node.meta.get("val")
            return self.symbols.extent(value) if isinstance(value, int | torch.SymInt) else None
        name = operator_of(node)
        try:
            result = self.converters[name](self, node)
            if isinstance(result, relax.Expr) and not isinstance(result, relax.Var):
                result = self.emit(result)
            self._check(node, result)
        except PackagerError:
            raise
        except Exception as error:  # converters of TVM raise whatever they run into
            raise ModelError(
                f"{name} ({node.name}) cannot be imported",
                detail=last_line(error),
                hint="it uses the operator in a way that is not supported",
            ) from error
        if isinstance(result, relax.Var):
            self.node_of_variable[result.name] = node.name
        return result

    def _check(self, node: Any, result: Any) -> None:
        """Raise ValueError for a tensor of another type, rank or extents than torch says."""
        meta = node.meta.get("val")
        if not isinstance(meta, torch.Tensor):
            return
        ty = getattr(result, "ty", None)
        if isinstance(ty, relax.TupleType) and len(ty.fields) and operator_of(node) != "getitem":
            return  # of a converter that gives more results than torch wants; each is checked when it is taken
        got = extents_of(ty)
        if got is None:
            raise ValueError("the shape of the result is not known")
        if str(result.ty.dtype) != self.dtype(node):
            raise ValueError(f"the result would be {result.ty.dtype}, which torch has as {self.dtype(node)}")
        wanted = self.symbols.shape(meta)
        if len(got) != len(wanted) or not all(map(_may_be_equal, got, wanted)):
            raise ValueError(f"the result would be of shape {list(got)}, which torch has as {wanted}")

    # What converters use.

    def emit(self, expr: Any) -> Any:
        """Bind an expression to a variable."""
        return self.block_builder.emit(expr)

    def shape(self, node: Any) -> list[Any]:
        """Return the extents of a node's tensor, as torch has them."""
        return self.symbols.shape(node.meta["val"])

    def dtype(self, node: Any) -> str:
        """Return the element type of a node's tensor, as torch has it."""
        return self.element_type(node.meta["val"].dtype)

    def element_type(self, dtype: Any) -> str:
        """Return TVM's name of a type of torch's."""
        return str(self._convert_data_type(dtype))

    def value(self, argument: Any) -> Any:
        """Return what an argument of a node is: an expression for a node, anything else as it stands."""
        return self._retrieve_args(argument)

    def tensor(self, argument: Any, dtype: str | None = None) -> Any:
        """Return an argument as a tensor of ``dtype``; a number becomes a constant, an extent a tensor of rank 0."""
        value = self.value(argument)
        if isinstance(value, relax.Expr) and isinstance(value.ty, relax.TensorType):
            return value if dtype is None else self.cast(value, dtype)
        if isinstance(value, bool | int | float):
            return relax.const(value, dtype)
        if is_extent(value):
            return self.cast(self.emit(relax.op.reshape(self.extents([value]), [])), dtype or "int64")
        raise ValueError(f"an operand is {type(value).__name__}, which is not supported")

    def cast(self, value: Any, dtype: str) -> Any:
        """Return a tensor with its elements in another type."""
        have = str(value.ty.dtype)
        if have == dtype:
            return value
        if dtype == "bool":
            return self.emit(relax.op.not_equal(value, relax.const(0, have)))
        return self.emit(relax.op.astype(value, dtype))

    def extents(self, values: list[Any]) -> Any:
        """Return one extent as an int64 tensor of ``[1]``: a sequence of length one that starts there."""
        (value,) = values
        return self.emit(relax.op.arange(value, value + 1, 1, "int64"))


class _Every(dict[str, Callable[[Any], Any]]):
    """The same converter for every operator."""

    def __init__(self, convert: Callable[[Any], Any]) -> None:
        super().__init__()
        self.convert = convert

    def __missing__(self, key: str) -> Callable[[Any], Any]:
        return self.convert


def _of_tvm(convert: Callable[[Any], Any]) -> Converter:
    return lambda _importer, node: convert(node)


def _may_be_equal(a: Any, b: Any) -> bool:
    """Whether two extents are equal as far as can be seen: those with symbols may be in ways that TVM cannot prove."""
    a, b = (int(extent) if isinstance(extent, int | tvm.tirx.IntImm) else extent for extent in (a, b))
    return a == b if isinstance(a, int) and isinstance(b, int) else True
