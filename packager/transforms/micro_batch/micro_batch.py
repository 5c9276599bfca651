"""Micro-batching: rewrites a model to compute a part of the batch, which a run repeats for all parts.

Activations of a part stay in a core's cache, and threads run separate parts without barriers between calls. The cost is
that each part reads the weights again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
from tvm import relax
from tvm_ffi import structural_equal

from packager.graph.dataflow import bindings_of, operator_of
from packager.graph.identity import IdentityMap
from packager.graph.rewrite import map_operands, rebuild_main, with_main
from packager.ir.model import ImportedModel
from packager.ir.shapes import Extent, MicroBatches
from packager.transforms.micro_batch.cost import count_batches, is_row_profitable
from packager.transforms.micro_batch.rules import (
    SHAPED,
    Count,
    NotSeparableError,
    Parts,
    fields_of,
    known_extents,
    part_of,
    parts_of_call,
)

if TYPE_CHECKING:
    from packager.bundle.arrays import Array


def split_batch(model: ImportedModel, rows: int = 0) -> ImportedModel:
    """Return a model that computes ``rows`` of the batch, if they divide it and the model is separable; else the model
    unchanged. 0 picks the smallest micro-batch whose activations are larger than the weights and not too few.

    The batch is the first axis of the first input and of all outputs. A symbolic batch is computed row by row, or not
    split.
    """
    signature = model.signature
    batch = next((spec.shape[0] for spec in signature.inputs if spec.shape), 1)
    count = _count(model, batch, rows)
    if count == 1 or signature.states or signature.extents:
        return model
    inputs = [bool(spec.shape) and spec.shape[0] == batch for spec in signature.inputs]
    repeated = _repeated(model, batch, count)
    main = model.module["main"]
    parts = count if isinstance(count, int) else main.params[inputs.index(True)].ty.shape.values[0]
    try:
        splitter = _Splitter(main, parts)
        splitter.find_parts([*inputs, *(name in repeated for name in model.weights)])
        main = splitter.rewrite()
    except NotSeparableError:
        return model
    whole = tuple(spec.name for spec, parted in zip(signature.inputs, inputs, strict=True) if not parted)
    return replace(
        model,
        signature=replace(signature, batches=MicroBatches(count, whole)),
        module=with_main(model.module, main),
        weights={**model.weights, **repeated},
    )


def _count(model: ImportedModel, batch: Extent, rows: int) -> Extent:
    """Return the number of micro-batches: an integer, or the batch's dim."""
    if isinstance(batch, str):
        return batch if rows == 1 or (rows == 0 and is_row_profitable(model, batch)) else 1
    if rows == 0:
        return count_batches(model, batch)
    return batch // rows if batch >= rows and batch % rows == 0 else 1


def _repeated(model: ImportedModel, batch: Extent, count: Extent) -> dict[str, Array]:
    """Return the weights that repeat a row for each row of the batch, restricted to one part."""
    if not (isinstance(batch, int) and isinstance(count, int)):
        return {}
    return {name: array[: batch // count] for name, array in model.weights.items() if _repeats(model, name, batch)}


def _repeats(model: ImportedModel, name: str, batch: int) -> bool:
    """Whether a weight was computed at import by repeating the same row for the batch.

    If it is a view of its source, a session can swap that; then rows must be equal for any content.
    """
    array = model.weights[name]
    if array.ndim == 0 or array.shape[0] != batch or name not in model.sources:
        return False
    own = model.own_constants()
    followed = any(np.may_share_memory(array, own[source]) for source in model.sources[name])
    return array.strides[0] == 0 or (not followed and _equal_along_first(array))


def _equal_along_first(array: Array) -> bool:
    first = array[:1].tobytes()  # bitwise, for NaN and signed zeros
    return all(array[i : i + 1].tobytes() == first for i in range(1, len(array)))


class _Splitter:
    """Rewrites ``main`` to compute one of ``count`` parts of its results, split along their first axes.

    ``parts`` maps variables to the fields that have parts; ``values`` to their replacements.
    """

    def __init__(self, main: relax.Function, count: Count) -> None:
        self.main = main
        self.count = count
        self.builder = relax.BlockBuilder()
        self.parts: IdentityMap[Parts] = IdentityMap()
        self.values: IdentityMap[Any] = IdentityMap()

    def find_parts(self, parted: Sequence[bool]) -> None:
        """Infer which values have parts if these parameters have. Raises NotSeparableError unless all results have."""
        for parameter, own in zip(self.main.params, parted, strict=True):
            self.parts[parameter] = (own,)
        for binding in bindings_of(self.main):
            self.parts[binding.var] = self._parts(binding.value)
        if not all(self._parts(self.main.body.body)):
            raise NotSeparableError("a result has no batch axis")

    def rewrite(self) -> relax.Function:
        """Return the function that computes one part. Raises NotSeparableError if a result gets an unexpected shape."""
        parameters = [self._parameter(parameter) for parameter in self.main.params]
        made = rebuild_main(self.builder, self.main, self._bind, self._rewritten, parameters)
        if any(variable.same_as(self.count) for variable in relax.analysis.free_symbolic_vars(made)):
            raise NotSeparableError("the extent of the batch is used as a number")
        return made

    def _bind(self, binding: Any) -> None:
        made = self.values[binding.var] = self.builder.emit(self._rewritten(binding.value), binding.var.name)
        expected = self._part_of(binding.var)
        if not structural_equal(made.ty, expected):
            raise NotSeparableError(f"{binding.var.name} is {made.ty}, expected {expected}")

    def _parameter(self, variable: relax.Var) -> relax.Var:
        parted = any(self.parts[variable])
        made = relax.Var(variable.name, self._part_of(variable)) if parted else variable
        self.values[variable] = made
        return made

    def _parts(self, expr: Any) -> Parts:
        """Return which fields of a value have parts."""
        if isinstance(expr, relax.Var):  # dims are also relax.Var
            return self.parts.get(expr, (False,))
        if isinstance(expr, relax.Tuple):
            return tuple(self._parted(field) for field in expr.fields)
        if isinstance(expr, relax.TupleGetItem):
            return (self._parts(expr.tuple_value)[expr.index],)
        if isinstance(expr, relax.Call):
            return parts_of_call(expr, [self._parted(argument) for argument in expr.args], self.count)
        return (False,) * fields_of(expr.ty)

    def _parted(self, expr: Any) -> bool:
        parts = self._parts(expr)
        if any(parts) and not all(parts):
            raise NotSeparableError("only some fields of a tuple have a batch axis")
        return any(parts)

    def _rewritten(self, expr: Any) -> Any:
        if isinstance(expr, relax.Var):
            return self.values.get(expr, expr)
        made = map_operands(expr, self._rewritten)
        if operator_of(expr) in SHAPED and any(self._parts(expr)):
            shape = relax.ShapeExpr(self._extents(expr.ty))
            made = map_operands(made, lambda operand: shape if isinstance(operand, relax.ShapeExpr) else operand)
        return made

    def _part_of(self, variable: relax.Var) -> Any:
        """Return the type of one part of a variable."""
        parts, ty = self.parts[variable], variable.ty
        if not any(parts):
            return ty
        types = ty.fields if isinstance(ty, relax.TupleType) else [ty]
        made = [
            relax.TensorType(self._extents(field), field.dtype) if own else field
            for field, own in zip(types, parts, strict=True)
        ]
        return relax.TupleType(made) if isinstance(ty, relax.TupleType) else made[0]

    def _extents(self, ty: Any) -> list[Any]:
        first, *others = known_extents(ty)
        part = part_of(first, self.count)
        if part is None:
            raise NotSeparableError(f"{first} rows do not split into {self.count} parts")
        return [part, *others]
