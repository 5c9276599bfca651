"""TVM's ONNX importer, extended with packager's converters, symbolic shapes and constants."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from typing import Any

import onnx
import tvm
from tvm import relax, tirx
from tvm.relax.frontend.onnx import onnx_frontend
from tvm.sym import Analyzer

from packager.bundle import shape_expr
from packager.bundle.arrays import Array
from packager.bundle.manifest import Dim
from packager.errors import ModelError
from packager.frontends.dims import DimRequest
from packager.frontends.onnx.graph.branches import Branch, branch_of, not_imported
from packager.frontends.onnx.graph.custom_ops import CustomNode, convert
from packager.frontends.onnx.graph.nodes import inner_graphs, is_standard, title_of
from packager.frontends.onnx.loops import convert_loop
from packager.frontends.onnx.ops.broadcast import agree
from packager.frontends.onnx.ops.converters import CONVERTERS
from packager.frontends.onnx.ops.run_time.choose import choice
from packager.frontends.onnx.ops.run_time.deciding import INTEGERS, Bounds, deciding_values, is_small
from packager.frontends.onnx.ops.run_time.extents import RunTimeExtents
from packager.frontends.onnx.ops.run_time.shapes import read_shapes
from packager.frontends.onnx.ops.shapes import arithmetic as onnx_shapes
from packager.frontends.onnx.parameters import Parameters, with_parameters
from packager.graph.conditions import Relations
from packager.graph.dataflow import shape_of
from packager.graph.lift_constants import stays_inline
from packager.graph.symbolic import to_expr

# Operators whose single output is a sequence or optional, represented as a Relax tuple.
WHOLE_TUPLES = {
    *("Optional", "OptionalGetElement", "SequenceConstruct", "SequenceEmpty", "SequenceErase", "SequenceInsert"),
    *("ConcatFromSequence", "SplitToSequence"),
}


class Importer(onnx_frontend.ONNXGraphImporter):  # type: ignore[misc]
    """TVM's importer, extended to map variables to nodes, inline small constants, call custom operators, and evaluate
    symbolic shape arithmetic."""

    def __init__(
        self,
        custom: Mapping[str, CustomNode],
        dims: Sequence[Dim],
        arrays: Callable[[str], Array],
        types: Mapping[str, int],
        expressions: Mapping[str, str],
        fixed: Mapping[str, int],
        declared: Mapping[str, DimRequest],
    ) -> None:
        super().__init__(None, "float32", keep_params_in_input=True)
        self._params = Parameters(arrays)
        self.custom = custom
        self.types = types  # element type of each value, where inferred
        self.expressions = expressions  # dims that the file names by expressions over others
        self.fixed = fixed
        self.bounds = {dim.name: dim for dim in dims}
        self.analyzer = Analyzer()  # bound to the ranges of the input dims
        self.branches: dict[str, Branch] = {}  # node -> the run-time extents and values under which it is computed
        self.relations = Relations(self.analyzer, branches=self.branches)
        self.extents = RunTimeExtents(self.analyzer, declared, [*self.bounds, *fixed, *types])
        self.current_branch: list[Any] = []
        self.forgotten = False  # whether values were forgotten by ``restore``
        self.unfinished = False  # whether an error left blocks open in the builder
        self.node_of_variable: dict[str, str] = {}
        self.current_node = ""

    def _check_for_unsupported_ops(self, _graph: onnx.GraphProto) -> None:
        """Do nothing: ``load`` has checked the operators, including those that TVM does not know."""

    def _parse_graph_input(self, graph: onnx.GraphProto) -> None:
        super()._parse_graph_input(graph)
        for value in graph.input:  # TVM's importer treats an extent of 0 as unknown
            extents = [dim.dim_value for dim in value.type.tensor_type.shape.dim if dim.HasField("dim_value")]
            if 0 in extents and len(extents) == len(value.type.tensor_type.shape.dim):
                old = self._inputs[value.name]
                self._inputs[value.name] = relax.Var(old.name, relax.TensorType(extents, old.ty.dtype))
                self._nodes[value.name] = self._inputs[value.name]
        for parameter in self._inputs.values():
            for extent in parameter.ty.shape.values:
                if isinstance(extent, tvm.tirx.Var):
                    dim = self.bounds[extent.name]
                    self.analyzer.bind(extent, tvm.ir.Range.from_min_extent(dim.min, dim.max - dim.min + 1), True)

    def _parse_graph_initializers(self, graph: onnx.GraphProto) -> None:
        for tensor in graph.initializer:
            array = self._params.array(tensor.name)
            if stays_inline(array):
                self._nodes[tensor.name] = relax.const(tvm.runtime.tensor(array))
                continue
            # Keep the name: TVM's importer drops the prefix onnx::.
            variable = self._new_var(tensor.name, shape=array.shape, dtype=array.dtype.name)
            self._nodes[tensor.name] = variable
            self._params.add(tensor.name, variable)

    def _construct_nodes(self, graph: onnx.GraphProto) -> None:
        self._unify_extents()
        loops = [inner for node in graph.node for inner in inner_graphs(node)]
        self.deciding = {name: wanted for one in (graph, *loops) for name, wanted in deciding_values(one).items()}
        self.value_bounds = Bounds(graph, self.types, self._extents_of, self._known)
        for value in graph.input:
            self._nodes[value.name] = self._read_extents(value.name, self._nodes[value.name], value.name)
        self.results = {value.name for value in graph.output}
        self.unfinished = True
        self.convert_nodes(graph.node)
        self.unfinished = False
        graph.output.extend(self.extents.value_infos())
        self._nodes.update(self.extents.results())

    def convert_nodes(self, nodes: Iterable[onnx.NodeProto]) -> None:
        """Convert nodes in order; their values are added to ``_nodes``."""
        for node in nodes:
            self.current_node = self.extents.node = title_of(node)
            self._enter_branch(branch_of(node))
            attributes = self._parse_attr(node.attribute)
            attributes["tvm_custom"] = {
                **{"name": node.name, "num_outputs": len(node.output)},
                **{"types": [self._element_type(name) for name in node.output], "read": [*map(bool, node.output)]},
                **{"opset": self.opset, "params": self._params, "analyzer": self.analyzer, "extents": self.extents},
                **{"relations": self.relations, "node": self.current_node},
            }
            inputs = onnx_frontend.onnx_input([self._nodes[name] if name else None for name in node.input])
            is_loop = is_standard(node, "Loop")
            outputs = convert_loop(self, node) if is_loop else self._convert_node(node, inputs, attributes)
            for name, output in zip(node.output, outputs, strict=False):
                self._nodes[name] = output
                value = self._read_extents(name, output, node.op_type)
                is_shape = name in self.results and onnx_shapes.is_symbolic(value)
                self._nodes[name] = (
                    onnx_shapes.as_tensor(self.bb, value, self._element_type(name)) if is_shape else value
                )

    def _enter_branch(self, branch: Branch) -> None:
        """Note under which conditions the current node is computed."""
        literals: list[tuple[str, int]] = []
        self.current_branch = []
        for name, wanted in branch:
            self.extents.node = name
            self.branches.setdefault(name, tuple(literals))
            taken = choice(self.bb, self._nodes[name], self._known(name), self.extents)
            if not isinstance(taken, int):
                literals.append((str(taken.name), wanted))
                self.current_branch.append(taken if wanted else 1 - taken)
        self.extents.node = self.current_node
        if literals:
            self.branches[self.current_node] = tuple(literals)

    def taken(self) -> list[Any]:
        """Return expressions that are all 1 in runs that compute the current node, and 0 otherwise."""
        return list(self.current_branch)

    def _read_extents(self, name: str, value: Any, kind: str) -> Any:
        """Return a tensor whose elements decide shapes as run-time extents; other values unchanged."""
        if name not in self.deciding or self.types.get(name) not in INTEGERS or onnx_shapes.is_symbolic(value):
            return value
        if not isinstance(value, relax.Var) or value.name in self._params or not is_small(value):
            return value
        kind = re.sub(r"[^a-z]", "", kind.lower()) or "extent"
        count = int(prod(value.ty.shape.values, start=1))
        bound = self.value_bounds.bound(name)
        if bound is None and not self.deciding[name]:
            return value
        vector = value if value.ty.ndim else self.bb.emit(relax.op.reshape(value, [1]))
        extents = self.extents.as_shape(self.bb, vector, [bound] * count, kind)
        return relax.ShapeExpr(extents) if value.ty.ndim else relax.prim_value(extents[0])

    def _extents_of(self, name: str) -> Sequence[Any] | None:
        value = self._nodes.get(name)
        return None if value is None or onnx_shapes.is_symbolic(value) else shape_of(value)

    def _known(self, name: str) -> Any:
        value = self._nodes.get(name)
        return None if value is None else onnx_shapes.known(value, {"tvm_custom": {"params": self._params}})

    def save(self) -> Any:
        """Return what ``restore`` takes back of the nodes that are converted from now on."""
        return dict(self._nodes), self.extents.save(), dict(self.relations.found)

    def restore(self, saved: Any) -> None:
        """Forget the values, extents and conditions since ``save``."""
        self.forgotten = True
        self._nodes, extents, found = dict(saved[0]), saved[1], saved[2]
        self.extents.restore(extents)
        self.relations.found = found

    def _unify_extents(self) -> None:
        """Give inputs with a dim such as ``past + new`` that extent in place of a variable: each run checks it."""
        variables = {
            extent.name: extent
            for parameter in self._inputs.values()
            for extent in parameter.ty.shape.values
            if isinstance(extent, tirx.Var)
        }
        known = variables | {name: tirx.IntImm("int64", size) for name, size in self.fixed.items()}
        meant: dict[str, Any] = {}
        for name, text in self.expressions.items():
            if name in variables and shape_expr.names(text) <= known.keys():
                meant[name] = to_expr(text, known)
                self.relations.require(variables[name], "==", meant[name], f"dim {name}")
        for name, parameter in self._inputs.items():
            extents = [meant.get(getattr(e, "name", ""), e) for e in parameter.ty.shape.values]
            if any(extent is not old for extent, old in zip(extents, parameter.ty.shape.values, strict=True)):
                self._nodes[name] = self.bb.emit(relax.op.reshape(parameter, extents))

    def _element_type(self, name: str) -> str:
        """Return the element type of a shape or of an extent, which is int64 unless the model casts it."""
        found = self.types.get(name, onnx.TensorProto.UNDEFINED)
        return str(onnx.helper.tensor_dtype_to_np_dtype(found).name) if found else "int64"

    def _convert_node(self, node: onnx.NodeProto, inputs: list[Any], attributes: dict[str, Any]) -> Sequence[Any]:
        operator = node.op_type
        if operator not in self.custom:
            shapes = onnx_shapes.compute(operator, inputs, attributes, self.analyzer)
            if shapes is not None:
                return shapes
            inputs = onnx_frontend.onnx_input(read_shapes(self.bb, operator, inputs, attributes))
        taken = onnx_shapes.SHAPE_INPUTS.get(operator, ())
        for place, value in enumerate(inputs):
            sized = place in taken and not isinstance(value, onnx_shapes.Elements)
            if onnx_shapes.is_symbolic(value) and not sized:
                inputs[place] = onnx_shapes.as_tensor(self.bb, value, self._element_type(node.input[place]))
        agreed = agree(self.bb, self.relations, self.current_node, operator, inputs, attributes)
        inputs = onnx_frontend.onnx_input(agreed)
        result = self._convert_operator(operator, inputs, attributes, self.opset)
        if operator in WHOLE_TUPLES:
            return [result]
        if not isinstance(result, relax.Tuple):
            if not isinstance(result.ty, relax.TupleType):
                return [result]
            fields = range(len(result.ty.fields))
            return [self.bb.emit(relax.TupleGetItem(result, field)) for field in fields]
        return list(result.fields)

    def _convert_operator(self, op_name: str, inputs: Any, attrs: Any, opset: int) -> Any:
        def convert_standard(name: str, operands: Any, attributes: Any) -> Any:
            complete = onnx_frontend.onnx_input(operands)  # a list in which omitted trailing inputs are None
            return super(Importer, self)._convert_operator(name, complete, attributes, opset)

        try:
            if op_name in self.custom:
                result = convert(self.custom[op_name], [*inputs], self.analyzer)
            elif op_name in CONVERTERS:
                result = self.bb.normalize(CONVERTERS[op_name](self.bb, inputs, attrs, convert_standard))
            else:
                result = convert_standard(op_name, inputs, attrs)
        except ModelError:
            raise
        except Exception as error:  # converters raise errors of many types
            raise not_imported(f"{self.current_node!r} of operator {op_name}", error, self.current_branch) from error
        return self._bound(result)

    def _bound(self, result: Any) -> Any:
        """Bind the result to a variable, and record the current node as its source."""
        if isinstance(result, relax.Call):
            result = self.bb.emit(result, name_hint=f"source_{len(self.node_of_variable)}")
            self.node_of_variable[result.name] = self.current_node
        elif isinstance(result, relax.Tuple):
            for field in result.fields:
                if isinstance(field, relax.Var):
                    self.node_of_variable.setdefault(field.name, self.current_node)
        return result


def run_importer(importer: Importer, graph: onnx.GraphProto, opset: int) -> tvm.IRModule:
    """Return the module of a graph. Raises ModelError."""
    # The importer prints before it raises, and warns when it renames: noise for users.
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module = importer.from_onnx(graph, opset)
        except ModelError:
            raise
        except Exception as error:  # TVM raises errors of many types
            raise not_imported(repr(importer.current_node), error, importer.current_branch) from error
        finally:
            if importer.unfinished:  # or TVM warns of it on the user's terminal
                importer.bb._end_block()
    if importer.forgotten:  # bindings of attempts at importing a loop have variables that nothing defines
        module = relax.transform.DeadCodeElimination()(module)
    made = [importer._params.variable(name) for name in importer._params.made]
    return with_parameters(module, importer._num_input, importer.extents.parameters(), made)
