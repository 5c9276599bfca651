"""The values of ``main`` as planned tensors: parameters, constants and shapes, of all entries."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from tvm import relax, tirx
from tvm.ir import GenericConst

from packager.bundle.dtypes import INSIDE
from packager.bundle.manifest import Dim
from packager.errors import BackendError, ModelError
from packager.graph import symbolic
from packager.graph.dataflow import extents_of
from packager.graph.identity import IdentityMap
from packager.ir.call_plan import Operand
from packager.ir.model import LoweredModel
from packager.ir.primitives import Packing
from packager.ir.shapes import Extent
from packager.plan.arena import ALIGNMENTS
from packager.plan.calls import PlannedTensor, owners, root
from packager.plan.constants import ConstantBuilder


class Values:
    """Maps the variables of ``main`` to planned tensors; collects the constants that are read."""

    def __init__(self, model: LoweredModel) -> None:
        self.model = model
        self.alignment = ALIGNMENTS[model.device]
        self.dims: Mapping[str, Dim] = {dim.name: dim for dim in model.signature.dims}
        self.names: IdentityMap[Extent] = IdentityMap()  # main's shape variables
        self.constants = ConstantBuilder(reserved=[*model.constants, *model.weights])
        self.values: IdentityMap[Any] = IdentityMap()  # Relax variable -> PlannedTensor or tuple of them

    def _bind_constants(self, main: relax.Function) -> None:
        count = len(self.model.signature.inputs)
        for parameter, constant in zip(main.params[count:], self.model.constants.items(), strict=True):
            tensor = self._tensor(None, parameter.ty)
            tensor.constant = constant  # gets a slot when it is first read unchanged
            self.values[parameter] = tensor

    def _tensor(self, operand: Operand | None, ty: Any) -> PlannedTensor:
        extents = extents_of(ty)
        if extents is None:
            raise ModelError(
                f"a tensor of type {ty} has no static shape", hint="data-dependent shapes are not supported"
            )
        if str(ty.dtype) not in INSIDE:
            raise ModelError(f"a tensor has the element type {ty.dtype}", hint="supported: " + ", ".join(INSIDE))
        return PlannedTensor(operand, extents, str(ty.dtype))

    def _value(self, expr: Any) -> Any:
        if isinstance(expr, relax.Tuple):
            return tuple(self._value(field) for field in expr.fields)
        if isinstance(expr, GenericConst):
            array = np.asarray(expr.value.numpy())
            operand = Operand("constants", self.constants.add_anonymous(array)) if array.size else None
            return self._tensor(operand, expr.ty)
        return self.values[expr]

    def _shape_value(self, value: relax.ShapeExpr) -> PlannedTensor | None:
        """Return a static shape as an int64 tensor; None if it depends on dims, where it is only usable as a shape."""
        extents = [symbolic.to_extent(extent, self.names) for extent in value.values]
        if not all(isinstance(extent, int) for extent in extents):
            return None
        operand = Operand("constants", self.constants.add_anonymous(np.array(extents, dtype=np.int64)))
        return PlannedTensor(operand, (tirx.const(len(extents), "int64"),), "int64")

    def _packed(self, callee: str, packing: Packing, arguments: Sequence[Any]) -> PlannedTensor:
        """Repack constant arguments to a backend's layout. Raises BackendError if two layouts have the same name."""
        found = [arguments[index].constant for index in packing.arguments]  # constant, as checked by placement
        name = found[0][0]
        array = np.asarray(packing.pack(*(constant.array for _, constant in found)))
        sources = dict.fromkeys(source for _, constant in found for source in constant.sources)
        try:
            slot = self.constants.add_derived(f"{name}:{packing.layout}", array, tuple(sources))
        except ValueError as error:
            raise BackendError(f"{callee}: layout {packing.layout!r}: {error}") from None
        return PlannedTensor(Operand("constants", slot), array.shape, array.dtype.name)

    def _table(self, name: str) -> PlannedTensor:
        array = np.asarray(self.model.tables[name])
        return PlannedTensor(
            Operand("constants", self.constants.add_derived(name, array)), array.shape, array.dtype.name
        )

    def _read(self, tensor: PlannedTensor) -> PlannedTensor:
        """Return the tensor that owns the memory; assign a slot if it is a constant without one."""
        for whole, _ in owners(tensor):
            if whole.constant is not None and whole.operand is None:
                name, constant = whole.constant
                whole.operand = Operand("constants", self.constants.add(name, constant.array, constant.sources))
        return root(tensor)

    def nbytes(self, tensor: PlannedTensor) -> int:
        """Return the size of a tensor with the dims at their maxima."""
        size = INSIDE[tensor.dtype].itemsize
        for extent in tensor.shape:
            size *= max(symbolic.maximum(extent, self.names, self.dims), 1)
        return size

    def _bind_shapes(self, parameters: tuple[Any, ...], arguments: list[Any]) -> IdentityMap[Extent]:
        """Bind the shape variables of a PrimFunc to extents, by matching its parameters with the arguments."""
        names: IdentityMap[Extent] = IdentityMap()
        for parameter, argument in zip(parameters, arguments, strict=True):
            if not isinstance(parameter, tuple):
                names[parameter] = symbolic.to_extent(argument, self.names)
                continue
            if not any(isinstance(extent, tirx.Var) for extent in parameter):
                continue  # a schedule may see a static shape as another one of as many elements
            for declared, actual in _side_by_side(parameter, argument.shape):
                if isinstance(declared, tirx.Var):
                    names.setdefault(declared, symbolic.to_extent(actual, self.names))
        return names


def _side_by_side(declared: Sequence[Any], actual: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Return each extent that a schedule sees with that of the argument, of which it may have merged static ones."""
    if len(declared) != len(actual):
        declared, actual = ([e for e in each if not isinstance(e, int | tirx.IntImm)] for each in (declared, actual))
    return zip(declared, actual, strict=True)
