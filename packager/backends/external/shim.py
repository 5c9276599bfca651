"""Render the C function that calls an operator of a library for one partition.

It converts the pointers and extents of a primitive function to the arguments of the library's description: plain
pointers or DLTensors, sizes, and the node's attributes as constants.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import GenericConst
from tvm.sym import Analyzer
from tvm_ffi import structural_equal

from packager.bundle.dtypes import DTYPES
from packager.codegen.c_text import c_float, c_type
from packager.codegen.escape import CText, c_string
from packager.custom_ops.library import OpLibrary, decode_call
from packager.custom_ops.rules import Argument, AttributeValue, Given, TensorRule, bind, counts, product, spelled
from packager.custom_ops.symbolic import SYMBOLIC
from packager.graph.dataflow import bindings_of
from packager.graph.identity import IdentityMap
from packager.ir.primitives import FunctionGroup, Parameter, Partition, PrimitiveFunction

if TYPE_CHECKING:
    from packager.bundle.arrays import Array

_ATTRIBUTE_TYPES = {"float": "float", "string": "const char *", "ints": "const int64_t *", "floats": "const float *"}


@dataclass(frozen=True)
class Shim:
    """The function for one partition: ``view`` are the template's values, ``constants`` inline ones by name."""

    library: OpLibrary
    group: FunctionGroup
    view: Mapping[str, Any]
    constants: Mapping[str, Array]


def make_shim(partition: Partition, libraries: Sequence[OpLibrary]) -> Shim:
    """Return the function of a partition, which is one call of an operator of ``libraries``."""
    return _Writer(partition, libraries).shim()


class _Writer:
    def __init__(self, partition: Partition, libraries: Sequence[OpLibrary]) -> None:
        self.partition = partition
        self.call, self.results = _call_and_results(partition.function)
        decoded = decode_call(str(self.call.args[0].global_symbol), libraries)
        assert decoded is not None  # the pattern has matched it
        self.library, self.operator, self.attributes = decoded
        types = list(self.call.ty_args)
        types = list(types[0].fields) if isinstance(types[0], relax.TupleType) else types
        self.tensors = {
            rule.name: tuple(ty.shape.values)
            for rule, ty in zip(
                (*self.operator.inputs, *self.operator.outputs),
                (*(argument.ty for argument in self.call.args[1].fields), *types),
                strict=True,
            )
        }
        self.values = self._values()
        self.analyzer = Analyzer()
        self.parameters: list[Parameter] = []
        self.pointers: dict[str, str] = {}
        self.workspaces: list[Any] = []
        self.scalars: list[Any] = []
        self.constants: dict[str, Array] = {}
        self.statements: list[str] = []

    def shim(self) -> Shim:
        """Return the function."""
        self._place_tensors()
        names, types = zip(*map(self._argument, self.operator.arguments), strict=True)
        call = f"pk_callee_{self.partition.name}({', '.join(names)});"
        self.statements += [f"return {call}"] if self.operator.returns == "int32" else [call, "return 0;"]
        symbol = f"pk_{self.partition.name}"
        parameters = [f"{'' if p.written else 'const '}void *p{index}" for index, p in enumerate(self.parameters)]
        parameters += [f"int64_t s{index}" for index in range(len(self.scalars))]
        view = {
            "operator": self.operator.name,
            "returns": "int32_t" if self.operator.returns == "int32" else "void",
            "callee": f"pk_callee_{self.partition.name}",
            "callee_symbol": self.operator.symbol,
            "prototype": ", ".join(types),
            "symbol": symbol,
            "parameters": ", ".join(parameters),
            "statements": tuple(map(CText, self.statements)),  # their strings are escaped
        }
        shapes = [tuple(p.ty.shape.values) for p in self.partition.function.params]
        function = PrimitiveFunction(symbol, tuple(self.parameters), tuple(self.scalars))
        group = FunctionGroup(
            functions=(function,),
            parameters=(*shapes, *(self.tensors[self.operator.outputs[index].name] for index in self.results)),
            workspaces=tuple(self.workspaces),
            composite=self.operator.name,
            cost=self.partition.cost,
        )
        return Shim(self.library, group, view, self.constants)

    def _values(self) -> dict[str, Any]:
        """Return the values of names in the description's expressions."""
        given = [Given(rule.dtype, self.tensors[rule.name]) for rule in self.operator.inputs]
        values = bind(self.operator, given, lambda _a, _b: True)  # they were equal when the call was made
        values |= {f"numel_{rule.name}": product(self.tensors[rule.name]) for rule in self.operator.outputs}
        return values | counts(self.operator, self.attributes)

    def _place_tensors(self) -> None:
        """Add a pointer parameter for every tensor of the operator; unused outputs go to a workspace."""
        places = IdentityMap((p, index) for index, p in enumerate(self.partition.function.params))
        for rule, expr in zip(self.operator.inputs, self.call.args[1].fields, strict=True):
            if isinstance(expr, GenericConst):
                name = f"{self.partition.name}.{rule.name}"
                self.constants[name] = np.asarray(expr.value.numpy())
                self._add(rule.name, Parameter("constant", name=name))
            else:
                self._add(rule.name, Parameter("argument", places[expr]))
        for index, rule in enumerate(self.operator.outputs):
            if index in self.results:
                argument = len(places) + self.results.index(index)
                self._add(rule.name, Parameter("argument", argument, written=True))
            else:
                nbytes = product(self.tensors[rule.name]) * DTYPES[rule.dtype].itemsize
                self._add(rule.name, self._workspace(nbytes))
        if self.operator.workspace is not None:
            self._add("workspace", self._workspace(self._evaluate(self.operator.workspace)))

    def _workspace(self, nbytes: Any) -> Parameter:
        self.workspaces.append(self.analyzer.simplify(nbytes) if not isinstance(nbytes, int) else nbytes)
        return Parameter("workspace", len(self.workspaces) - 1, written=True)

    def _add(self, name: str, parameter: Parameter) -> None:
        self.pointers[name] = f"p{len(self.parameters)}"
        self.parameters.append(parameter)

    def _evaluate(self, expression: str) -> Any:
        return self.analyzer.simplify(SYMBOLIC.evaluate(spelled(expression), self.values))

    def _size(self, extent: Any) -> str:
        """Return C for an extent: a number, or a parameter."""
        extent = self.analyzer.simplify(extent)
        if isinstance(extent, tirx.IntImm):
            return _c_int64(int(extent.value))
        for index, known in enumerate(self.scalars):
            if structural_equal(known, extent):
                return f"s{index}"
        self.scalars.append(extent)
        return f"s{len(self.scalars) - 1}"

    def _argument(self, argument: Argument) -> tuple[str, str]:
        """Return the C text of an argument of the operator, and its type."""
        if argument.kind == "size":
            return self._size(self._evaluate(argument.text)), "int64_t"
        if argument.kind == "workspace":
            return self.pointers["workspace"], "void *"
        if argument.kind == "attribute":
            kind = next(rule.type for rule in self.operator.attributes if rule.name == argument.text)
            return self._attribute(argument.text, kind, self.attributes[argument.text]), _ATTRIBUTE_TYPES[kind]
        rule = next(r for r in (*self.operator.inputs, *self.operator.outputs) if r.name == argument.text)
        qualifier = "const " if rule in self.operator.inputs else ""
        if self.operator.signature == "dltensor":
            return self._dltensor(rule), f"{qualifier}DLTensor *"
        return self.pointers[rule.name], f"{qualifier}{c_type(rule.dtype)} *"

    def _dltensor(self, rule: TensorRule) -> str:
        name, dtype, rank = f"tensor_{rule.name}", DTYPES[rule.dtype], len(self.tensors[rule.name])
        statement = f"DLTensor {name} = {{"
        if statement not in "".join(self.statements):  # it may be an argument twice
            if rank:
                extents = ", ".join(self._size(extent) for extent in self.tensors[rule.name])
                self.statements.append(f"int64_t shape_{rule.name}[{rank}] = {{{extents}}};")
                self.statements.append(f"int64_t strides_{rule.name}[{rank}];")
                self.statements.append(f"set_strides(strides_{rule.name}, shape_{rule.name}, {rank});")
            shape, strides = (f"shape_{rule.name}", f"strides_{rule.name}") if rank else ("0", "0")
            self.statements.append(
                f"{statement}(void *){self.pointers[rule.name]}, {{kDLCPU, 0}}, {rank},"
                f" {{{dtype.code}, {dtype.bits}, 1}}, {shape}, {strides}, 0}};"
            )
        return f"&{name}"

    def _attribute(self, name: str, kind: str, value: AttributeValue) -> str:
        if isinstance(value, str):
            return c_string(value)
        if not isinstance(value, tuple):
            return c_float(float(value))
        if not value:
            return "0"
        items = [_c_int64(int(item)) if kind == "ints" else c_float(float(item)) for item in value]
        line = f"static {_ATTRIBUTE_TYPES[kind].rstrip(' *')} list_{name}[{len(value)}] = {{{', '.join(items)}}};"
        if line not in self.statements:
            self.statements.append(line)
        return f"list_{name}"


def _c_int64(value: int) -> str:
    return "INT64_MIN" if value == -(1 << 63) else f"INT64_C({value})"


def _call_and_results(function: relax.Function) -> tuple[relax.Call, list[int]]:
    """Return the call of a partition, and the indices of the operator's outputs that are results."""
    call = None
    outputs: IdentityMap[int | None] = IdentityMap()  # variable -> index of the output; None: all outputs
    bindings: IdentityMap[Any] = IdentityMap()
    for binding in bindings_of(function):
        value = binding.value
        bindings[binding.var] = value
        if isinstance(value, relax.Call):
            call = value
            outputs[binding.var] = None if isinstance(binding.var.ty, relax.TupleType) else 0
        elif isinstance(value, relax.TupleGetItem):
            outputs[binding.var] = int(value.index)
        elif isinstance(value, relax.Var):
            outputs[binding.var] = outputs[value]
    assert call is not None  # of the pattern
    body = function.body.body
    body = bindings[body] if isinstance(bindings.get(body), relax.Tuple) else body
    results = []
    for field in body.fields if isinstance(body, relax.Tuple) else [body]:
        number = outputs[field]
        results += [number] if number is not None else list(range(len(field.ty.fields)))
    return call, results
