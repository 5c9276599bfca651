"""Plan one run of a lowered model: the flat call sequence, the arena, the constants and the shape expressions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relax, tirx
from tvm.ir import GenericConst

from packager import symbolic
from packager.arena import Request, place
from packager.constants import ConstantBuilder
from packager.cost import estimate
from packager.dtypes import DTYPES, INSIDE
from packager.errors import BackendError, ModelError
from packager.ir import Call, CallPlan, CallSource, Copy, Extent, LoweredModel, NamedArray, Operand
from packager.lower import called_function
from packager.manifest import Dim, Primitive, Selection, TensorSpec
from packager.primitives import Cost, FunctionGroup, Kernel, Packing, PrimitiveFunction

# Below this many FLOPs plus bytes per call, waking threads costs more than it saves.
PARALLEL_WORK = 1 << 20


class _Tensor:
    """A tensor while it is planned: where it lies, or which buffer it is an alias of."""

    def __init__(self, operand: Operand | None, shape: tuple[Any, ...], dtype: str) -> None:
        self.operand = operand  # None until the arena is placed
        self.shape = shape
        self.dtype = dtype
        self.constant: tuple[str, NamedArray] | None = None  # what it holds, if it is one of main's constants
        self.first: int | None = None  # steps between which it is alive
        self.last: int | None = None


def plan(model: LoweredModel, *, packed_constants: bool = False) -> CallPlan:
    """Flatten ``main`` into calls and copies and place every intermediate tensor and workspace in one arena.

    ``packed_constants`` lays constants out without gaps, as an external safetensors file holds them.
    Raises ModelError for outputs or intermediates whose shape depends on data.
    """
    return _Planner(model).plan(packed_constants)


class _Planner:
    def __init__(self, model: LoweredModel) -> None:
        self.model = model
        self.dims: Mapping[str, Dim] = {dim.name: dim for dim in model.dims}
        self.names: dict[int, Extent] = {}  # main's shape variables
        self.constants = ConstantBuilder(reserved=[*model.constants, *model.weights])
        self.values: dict[int, Any] = {}  # Relax variable -> _Tensor or tuple of them
        self.tensors: list[_Tensor] = []  # those in the arena
        self.calls: list[tuple[PrimitiveFunction, list[_Tensor], tuple[Extent, ...], Extent | None, bool]] = []
        self.primitives: dict[str, Primitive] = {}

    def plan(self, packed_constants: bool) -> CallPlan:
        main = self.model.main
        self._bind_parameters(main)
        bindings = [binding for block in main.body.blocks for binding in block.bindings]
        sources = iter(self.model.call_sources)
        for binding in bindings:
            self.values[binding.var.__chandle__()] = self._evaluate(binding.value, binding.var.ty, sources)
        results = self._value(main.body.body)
        outputs = list(results) if isinstance(results, tuple) else [results]
        specs, copies = self._bind_outputs(outputs)
        arena_bytes = self._place()
        functions = {function.symbol: function for function, *_ in self.calls}
        selection = tuple(_selection(function) for function in functions.values() if function.candidates)
        numbers = {selected.symbol: number for number, selected in enumerate(selection)}
        steps: list[Call | Copy] = [
            Call(f.symbol, tuple(self._operand(t) for t in operands), scalars, extent, parallel, numbers.get(f.symbol))
            for f, operands, scalars, extent, parallel in self.calls
        ]
        steps += [Copy(self._operand(source), target, nbytes) for source, target, nbytes in copies]
        return CallPlan(
            source=self.model.source,
            inputs=self.model.inputs,
            outputs=specs,
            dims=self.model.dims,
            steps=tuple(steps),
            functions=tuple(functions.values()),
            primitives=tuple(self.primitives.values()),
            arena_bytes=arena_bytes,
            constants=self.constants.build(packed=packed_constants, originals=self.model.weights),
            selection=selection,
        )

    def _bind_parameters(self, main: relax.Function) -> None:
        count = len(self.model.inputs)
        for index, parameter in enumerate(main.params[:count]):
            for extent in parameter.ty.shape.values:
                if isinstance(extent, tirx.Var):
                    self.names[extent.__chandle__()] = extent.name
            operand = Operand("input", index)
            self.values[parameter.__chandle__()] = self._tensor(operand, parameter.ty)
        for parameter, constant in zip(main.params[count:], self.model.constants.items(), strict=True):
            tensor = self._tensor(None, parameter.ty)
            tensor.constant = constant  # gets a slot when something reads it as it is
            self.values[parameter.__chandle__()] = tensor

    def _tensor(self, operand: Operand | None, ty: Any) -> _Tensor:
        if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
            raise ModelError(f"a tensor of type {ty} has no static form", hint="shapes that depend on data are refused")
        if str(ty.dtype) not in (INSIDE if operand is None else DTYPES):
            raise ModelError(f"a tensor has the element type {ty.dtype}", hint="supported: " + ", ".join(DTYPES))
        return _Tensor(operand, tuple(ty.shape.values), str(ty.dtype))

    def _value(self, expr: Any) -> Any:
        if isinstance(expr, relax.Tuple):
            return tuple(self._value(field) for field in expr.fields)
        if isinstance(expr, GenericConst):
            array = np.asarray(expr.value.numpy())
            operand = Operand("constants", self.constants.add_anonymous(array))
            return self._tensor(operand, expr.ty)
        return self.values[expr.__chandle__()]

    def _evaluate(self, value: Any, ty: Any, sources: Iterator[CallSource]) -> Any:
        callee = called_function(value)
        if callee is not None:
            return self._call(callee, value, next(sources))
        if isinstance(value, relax.Call):  # lower() has left nothing but reshape: an alias with another shape
            source = self._value(value.args[0])
            return _Alias(source, self._tensor(None, ty))
        if isinstance(value, relax.TupleGetItem):
            return self._value(value.tuple_value)[value.index]
        if isinstance(value, relax.ShapeExpr):
            return self._shape_value(value)
        return self._value(value)

    def _shape_value(self, value: relax.ShapeExpr) -> _Tensor | None:
        """Return a shape as an int64 tensor, or None where it depends on dims: then it may only be a shape."""
        extents = [symbolic.to_extent(extent, self.names) for extent in value.values]
        if not all(isinstance(extent, int) for extent in extents):
            return None
        array = np.array(extents, dtype=np.int64)
        operand = Operand("constants", self.constants.add_anonymous(array))
        return _Tensor(operand, (tirx.const(len(extents), "int64"),), "int64")

    def _call(self, callee: str, value: relax.Call, source: CallSource) -> Any:
        group = self.model.groups[callee]
        arguments = [a if _is_scalar(a) else self._value(a) for a in value.args[1].fields]
        out_types = value.ty_args if len(value.ty_args) > 1 else [value.ty_args[0]]
        is_tuple = len(out_types) > 1 or isinstance(out_types[0], relax.TupleType)
        fields = out_types[0].fields if isinstance(out_types[0], relax.TupleType) else out_types
        results = [self._new_tensor(ty) for ty in fields]
        scalars = list(value.args[2].values) if len(value.args) > 2 else []
        names = self._bind_shapes(group.parameters, [*arguments, *results, *scalars])
        pools = {
            "argument": [*arguments, *results],
            "workspace": [self._workspace(nbytes, names) for nbytes in group.workspaces],
            "packed": [self._packed(callee, packing, arguments) for packing in group.packings],
        }
        for function in group.functions:
            operands = [
                self._table(parameter.name) if parameter.kind == "constant" else pools[parameter.kind][parameter.index]
                for parameter in function.parameters
            ]
            extents = tuple(symbolic.to_extent(scalar, names) for scalar in function.scalars)
            extent = None if function.extent is None else symbolic.to_extent(function.extent, names)
            cost = self._cost(group, function, names)
            self._record(function, group.composite, cost, source)
            work = group.cost or cost
            parallel = extent not in (None, 1) and work.flops + work.bytes_read + work.bytes_written >= PARALLEL_WORK
            for tensor in operands:
                self._touch(tensor, len(self.calls))
            self.calls.append((function, operands, extents, extent, parallel))
        return tuple(results) if is_tuple else results[0]

    def _cost(self, group: FunctionGroup, function: PrimitiveFunction, names: Mapping[int, Extent]) -> Cost:
        """Return the cost of a kernel; of several functions of a partition the last stands for the work of all."""
        if isinstance(function, Kernel):
            return estimate(function, names, self.dims)
        return group.cost if group.cost is not None and function is group.functions[-1] else Cost(0, 0, 0)

    def _packed(self, callee: str, packing: Packing, arguments: Sequence[Any]) -> _Tensor:
        """Return constant arguments in a backend's layout. Raises BackendError if two layouts have one name."""
        found = [arguments[index].constant for index in packing.arguments]  # the partition stage knows they are such
        name = found[0][0]
        array = np.asarray(packing.pack(*(constant.array for _, constant in found)))
        sources = dict.fromkeys(source for _, constant in found for source in constant.sources)
        try:
            slot = self.constants.add_derived(f"{name}:{packing.layout}", array, tuple(sources))
        except ValueError as error:
            raise BackendError(f"{callee}: layout {packing.layout!r}: {error}") from None
        return _Tensor(Operand("constants", slot), array.shape, array.dtype.name)

    def _table(self, name: str) -> _Tensor:
        array = np.asarray(self.model.tables[name])
        return _Tensor(Operand("constants", self.constants.add_derived(name, array)), array.shape, array.dtype.name)

    def _new_tensor(self, ty: Any) -> _Tensor:
        tensor = self._tensor(None, ty)
        self.tensors.append(tensor)
        return tensor

    def _workspace(self, nbytes: Any, names: Mapping[int, Extent]) -> _Tensor:
        tensor = _Tensor(None, (symbolic.maximum(nbytes, names, self.dims),), "uint8")
        self.tensors.append(tensor)
        return tensor

    def _bind_shapes(self, parameters: tuple[Any, ...], arguments: list[Any]) -> dict[int, Extent]:
        """Return the shape variables of a PrimFunc as extents, by matching its parameters with the arguments."""
        names: dict[int, Extent] = {}
        for parameter, argument in zip(parameters, arguments, strict=True):
            if not isinstance(parameter, tuple):
                names[parameter.__chandle__()] = symbolic.to_extent(argument, self.names)
                continue
            for declared, actual in zip(parameter, argument.shape, strict=True):
                if isinstance(declared, tirx.Var):
                    names.setdefault(declared.__chandle__(), symbolic.to_extent(actual, self.names))
        return names

    def _touch(self, tensor: _Tensor, step: int) -> None:
        root = self._read(tensor)
        root.first = step if root.first is None else root.first
        root.last = step

    def _read(self, tensor: _Tensor) -> _Tensor:
        """Return the tensor whose memory this is; give it a slot if it is a constant that has none yet."""
        root = _root(tensor)
        if root.constant is not None and root.operand is None:
            name, constant = root.constant
            root.operand = Operand("constants", self.constants.add(name, constant.array, constant.sources))
        return root

    def _record(self, function: PrimitiveFunction, composite: str | None, cost: Cost, source: CallSource) -> None:
        # Call sites of one function differ in their dims at most: the largest is what the manifest tells.
        known = self.primitives.get(function.symbol, Primitive(function.symbol, composite, source.ops, (), 0, 0, 0, 0))
        self.primitives[function.symbol] = replace(
            known,
            nodes=tuple(dict.fromkeys([*known.nodes, *source.nodes])),
            flops=max(known.flops, cost.flops),
            bytes_read=max(known.bytes_read, cost.bytes_read),
            bytes_written=max(known.bytes_written, cost.bytes_written),
            calls=known.calls + 1,
        )

    def _bind_outputs(self, outputs: list[Any]) -> tuple[tuple[TensorSpec, ...], list[tuple[_Tensor, Operand, Extent]]]:
        """Let producers write straight into the caller's outputs; what cannot be produced there is copied."""
        specs, copies = [], []
        for index, (name, tensor) in enumerate(zip(self.model.output_names, outputs, strict=True)):
            if tensor is None:
                raise ModelError(f"output {name!r} is a shape with symbolic dims", hint="fix the dims with --dim")
            if tensor.dtype not in DTYPES:
                hint = "supported: " + ", ".join(DTYPES)
                raise ModelError(f"output {name!r} has the element type {tensor.dtype}", hint=hint)
            shape = tuple(symbolic.to_extent(extent, self.names) for extent in tensor.shape)
            specs.append(TensorSpec(name, tensor.dtype, shape))
            operand = Operand("output", index)
            root = self._read(tensor)
            if root.operand is None:
                root.operand = operand
                continue
            copies.append((tensor, operand, symbolic.product((*shape, DTYPES[tensor.dtype].itemsize))))
        return tuple(specs), copies

    def _place(self) -> int:
        planned = [tensor for tensor in self.tensors if tensor.operand is None and tensor.first is not None]
        requests = [Request(self._nbytes(t), t.first or 0, t.last or 0) for t in planned]
        offsets, total = place(requests)
        for tensor, offset in zip(planned, offsets, strict=True):
            tensor.operand = Operand("arena", offset)
        return total

    def _nbytes(self, tensor: _Tensor) -> int:
        size = INSIDE[tensor.dtype].itemsize
        for extent in tensor.shape:
            size *= max(symbolic.maximum(extent, self.names, self.dims), 1)
        return size

    def _operand(self, tensor: _Tensor) -> Operand:
        operand = _root(tensor).operand
        assert operand is not None
        return operand


class _Alias(_Tensor):
    """A view of another tensor's memory with a shape of its own."""

    def __init__(self, source: _Tensor, view: _Tensor) -> None:
        super().__init__(None, view.shape, view.dtype)
        self.source = source


def _root(tensor: _Tensor) -> _Tensor:
    while isinstance(tensor, _Alias):
        tensor = tensor.source
    return tensor


def _is_scalar(argument: Any) -> bool:
    return bool(tvm.ir.is_prim_expr(argument))


def _selection(function: PrimitiveFunction) -> Selection:
    found = function.candidates
    assert found is not None
    return Selection(function.symbol, found.problem, found.revision, found.names, found.chosen)
