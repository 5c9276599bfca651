"""TVM's ExportedProgram importer, with packager's converters taking precedence.

TVM's converters guess element types and lose symbolic extents. torch annotates every node with its shape and type:
packager's converters use the annotation, and the result of every converter is checked against it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any

import torch
import tvm
from tvm import relax
from tvm.relax.frontend.torch.exported_program_translator import ExportedProgramImporter

from packager.errors import ModelError, PackagerError, last_line
from packager.frontends.torch.complex_pairs.arithmetic import Complex, is_complex
from packager.frontends.torch.complex_pairs.converters import PAIRS, convert_complex
from packager.frontends.torch.complex_pairs.fourier import FOURIER
from packager.frontends.torch.inputs import Inputs, read_inputs
from packager.frontends.torch.ops.convolution import CONVOLUTIONS
from packager.frontends.torch.ops.elementwise import OPERATORS
from packager.frontends.torch.ops.embedding_bag import EMBEDDING_BAGS
from packager.frontends.torch.ops.grouped import GROUPED
from packager.frontends.torch.ops.images import IMAGES
from packager.frontends.torch.ops.indexing import INDEXING
from packager.frontends.torch.ops.moves import MOVES
from packager.frontends.torch.ops.nn import NETWORK
from packager.frontends.torch.ops.ordering import ORDERING
from packager.frontends.torch.ops.pooling import POOLING
from packager.frontends.torch.ops.program import is_scalar, operator_of
from packager.frontends.torch.ops.quantization import QUANTIZATION
from packager.frontends.torch.ops.recurrent import RECURRENT
from packager.frontends.torch.ops.reductions import REDUCTIONS
from packager.frontends.torch.ops.scatter import SCATTERS
from packager.frontends.torch.ops.updates import UPDATES
from packager.frontends.torch.ops.views import VIEWS
from packager.frontends.torch.shapes import Symbols, is_extent
from packager.graph.dataflow import extents_of

Converter = Callable[["Importer", Any], Any]
CONVERTERS: Mapping[str, Converter] = {
    **OPERATORS,
    **REDUCTIONS,
    **ORDERING,
    **VIEWS,
    **INDEXING,
    **UPDATES,
    **SCATTERS,
    **MOVES,
    **PAIRS,
    **FOURIER,
    **NETWORK,
    **CONVOLUTIONS,
    **POOLING,
    **EMBEDDING_BAGS,
    **IMAGES,
    **RECURRENT,
    **GROUPED,
    **QUANTIZATION,
}

# TVM imports these wrongly: random numbers as zeros, dropout as a no-op, sparse tensors as dense.
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
# TVM's table has these by their bare names, as if they were of torch.
OTHER_LIBRARIES = {"roi_align.default": "torchvision::roi_align.default"}


_PARTS = {torch.complex64: "float32", torch.complex128: "float64"}


class Importer(ExportedProgramImporter):  # type: ignore[misc]
    """Imports one program.

    ``known`` holds precomputed values of nodes, ``sizes`` what torch's symbols of sizes of constants stand for;
    ``node_of_variable`` is filled by the import.
    """

    def __init__(self, known: Mapping[Any, torch.Tensor], sizes: Mapping[str, int]) -> None:
        self.known = known
        self.node_of_variable: dict[str, str] = {}
        self.symbols = Symbols(sizes)
        self.inputs = Inputs({}, {}, {}, {}, {}, self.symbols)
        self.converters: dict[str, Converter] = {}
        super().__init__()

    def create_convert_map(self) -> Mapping[str, Callable[[Any], Any]]:
        """Return a table that maps every operator to ``_convert``; fill ``converters``, packager's overriding TVM's."""
        theirs = super().create_convert_map()
        self.converters = {
            OTHER_LIBRARIES.get(name, name): _wrap_tvm(convert)
            for name, convert in theirs.items()
            if name not in REFUSED
        }
        self.converters.update(CONVERTERS)
        return defaultdict(lambda: self._convert)

    def create_input_vars(self, exported_program: Any) -> Any:
        """Create the input variables, and record the shape variables of torch's symbols."""
        self.inputs = read_inputs(exported_program, self.symbols, self.element_type)
        return self.inputs.weights, self.inputs.given, {}

    def _translate_fx_graph(self, graph_module: Any, nodes: Any, inputs_vars: Any, custom_ops: Any = None) -> Any:
        """Give inputs with derived dims the shapes that the program computes with; each run checks that they are."""
        unified = {
            name: self.emit(relax.op.reshape(inputs_vars[name], shape)) for name, shape in self.inputs.shapes.items()
        }
        return super()._translate_fx_graph(graph_module, nodes, {**inputs_vars, **unified}, custom_ops)

    def _check_unsupported_func_type(self, nodes: Any) -> None:
        """Do nothing: ``check_operators`` has checked the nodes that are converted."""

    def _convert(self, node: Any) -> Any:
        if node in self.known:
            return self._constant(self.known[node])
        if is_scalar(node):
            value = node.meta.get("val")
            return self.symbols.extent(value) if isinstance(value, int | torch.SymInt) else None
        name = operator_of(node)
        try:
            if is_complex(node) or any(map(is_complex, node.all_input_nodes)):
                result = convert_complex(self, node, self.converters[name])
            else:
                result = self.converters[name](self, node)
            if isinstance(result, relax.Expr) and not isinstance(result, relax.Var):
                result = self.emit(result)
            self._check(node, result)
        except PackagerError:
            raise
        except Exception as error:  # TVM's converters raise errors of many types
            raise ModelError(
                f"{name} ({node.name}) cannot be imported",
                detail=last_line(error),
                hint="it uses the operator in a way that is not supported",
            ) from error
        if isinstance(result, relax.Var):
            self.node_of_variable[result.name] = node.name
        return result

    def _constant(self, value: torch.Tensor) -> Any:
        if value.dtype.is_complex:
            return Complex(*(self._constant(part.contiguous()) for part in (value.real, value.imag)))
        tensor = self._convert_pytorch_tensor_to_tvm(value)
        return relax.const(tensor, tensor.dtype)

    def _check(self, node: Any, result: Any) -> None:
        """Raise ValueError for a tensor whose type, rank or extents differ from torch's."""
        if isinstance(result, Complex):
            self._check(node, result.real)
            self._check(node, result.imaginary)
            return
        meta = node.meta.get("val")
        if not isinstance(meta, torch.Tensor):
            return
        ty = getattr(result, "ty", None)
        if isinstance(ty, relax.TupleType) and len(ty.fields) and operator_of(node) != "getitem":
            return  # more results than torch's operator has; each is checked by its getitem
        got = extents_of(ty)
        if got is None:
            raise ValueError("the shape of the result is unknown")
        if str(result.ty.dtype) != self.dtype(node):
            raise ValueError(f"the result would be {result.ty.dtype}, in torch it is {self.dtype(node)}")
        wanted = self.symbols.shape(meta)
        if len(got) != len(wanted) or not all(map(_may_be_equal, got, wanted)):
            raise ValueError(f"the result would be of shape {list(got)}, in torch it is {wanted}")

    # Used by converters.

    def emit(self, expr: Any) -> Any:
        """Bind an expression to a variable."""
        return self.block_builder.emit(expr)

    def shape(self, node: Any) -> list[Any]:
        """Return torch's shape of a node's tensor."""
        return self.symbols.shape(node.meta["val"])

    def dtype(self, node: Any) -> str:
        """Return torch's element type of a node's tensor."""
        return self.element_type(node.meta["val"].dtype)

    def element_type(self, dtype: Any) -> str:
        """Return TVM's name of a torch dtype; of complex numbers that of their parts."""
        return _PARTS.get(dtype) or str(self._convert_data_type(dtype))

    def value(self, argument: Any) -> Any:
        """Return the expression of a node; other arguments unchanged."""
        return self._retrieve_args(argument)

    def tensor(self, argument: Any, dtype: str | None = None) -> Any:
        """Return an argument as a tensor of ``dtype``; numbers become constants, extents tensors of rank 0."""
        value = self.value(argument)
        if isinstance(value, relax.Expr) and isinstance(value.ty, relax.TensorType):
            return value if dtype is None else self.cast(value, dtype)
        if isinstance(value, bool | int | float):
            return relax.const(value, dtype)
        if is_extent(value):
            one = self.emit(relax.op.arange(value, value + 1, 1, "int64"))  # an extent as a tensor of shape [1]
            return self.cast(self.emit(relax.op.reshape(one, [])), dtype or "int64")
        raise ValueError(f"an operand is {type(value).__name__}, which is not supported")

    def cast(self, value: Any, dtype: str) -> Any:
        """Cast a tensor to ``dtype``."""
        have = str(value.ty.dtype)
        if have == dtype:
            return value
        if dtype == "bool":
            return self.emit(relax.op.not_equal(value, relax.const(0, have)))
        return self.emit(relax.op.astype(value, dtype))


def _wrap_tvm(convert: Callable[[Any], Any]) -> Converter:
    return lambda _importer, node: convert(node)


def _may_be_equal(a: Any, b: Any) -> bool:
    """Tell whether two extents are not provably different; symbolic ones may be equal without a proof."""
    a, b = (int(extent) if isinstance(extent, int | tvm.tirx.IntImm) else extent for extent in (a, b))
    return a == b if isinstance(a, int) and isinstance(b, int) else True
