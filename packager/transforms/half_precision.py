"""Mixed precision (``--precision``): converts a float32 model to float16 or bfloat16 where that is safe.

Matmuls and convolutions read and write half precision and accumulate in float32. Data movement and maxima are in half
precision. Everything else (norms, softmax, activations, sums) computes in float32 and rounds its result, without
rounding intermediates: normalizations of rows or channels that are written out are raised to one operator first, since
squares above 65504 are infinite in float16, and are rounded after their scale and shift. Masks are rounded before they
are added to the scores of a softmax, so that attention has one type. Powers of spectra stay in float32 where logarithms
read products of them, and so do running sums whose exponentials are read. Inputs, outputs and the model's constants
keep their types. After Micikevicius et al. 2018, "Mixed Precision Training", section 3; operators are chosen as in
torch's autocast.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import tvm
from tvm import relax

from packager.bundle.dtypes import PRECISIONS
from packager.graph.attention.sinks import are_scores
from packager.graph.dataflow import Dataflow, operator_of, same, scalar_of, shape_of, variables_of
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.normalize import NAME as NORMALIZE
from packager.graph.products.grouped import NAME as GROUPED
from packager.graph.recurrences.recurrent import NAME as RECURRENT
from packager.graph.rewrite import PRODUCTS, apply, map_operands, rebuild_call, rebuild_main, with_main
from packager.ir.model import ImportedModel
from packager.transforms.power_spectra import logs_of_powers
from packager.transforms.running_sums import exponents_of_running_sums, sensitive_operands
from packager.transforms.simplify.raise_norms import FOLLOWERS, raise_norms

FULL = "float32"
LARGEST = {"float16": 65504.0, "bfloat16": (2 - 2**-7) * 2.0**127}
MOVEMENT = frozenset(
    f"relax.{name}"
    for name in (
        *("reshape", "permute_dims", "expand_dims", "squeeze", "broadcast_to", "flatten", "concat", "split", "take"),
        *("strided_slice", "flip", "tile", "repeat", "stack", "nn.max_pool2d", "nn.relu", "nn.pad", "where"),
        *("max", "min"),
    )
)
# These compute in float32 internally for half operands; explicit casts would be separate functions.
LAYER_NORMS = frozenset(("relax.nn.layer_norm", "relax.nn.rms_norm"))
INSIDE = LAYER_NORMS | {"relax.nn.softmax", RECURRENT}
# Of half precision they have the same result.
TESTS = frozenset(("relax.isnan", "relax.isinf"))


def convert_precision(model: ImportedModel, precision: str | None) -> ImportedModel:
    """Convert the model's arithmetic to ``fp16`` or ``bf16``; None leaves it unchanged."""
    if precision is None:
        return model
    num_inputs = len(model.signature.inputs)
    # Dead code would be read in float32, and so would its operands then.
    module = apply([relax.transform.DeadCodeElimination()], raise_norms(model.module, num_inputs, of_vectors=True))
    main = _Converter(module["main"], num_inputs, PRECISIONS[precision]).convert()
    return replace(model, module=with_main(module, main))


class _Converter:
    """``full`` and ``half`` map original variables to their values in each type, created on demand.

    ``unrounded`` has those values in float32 that only a scale, a shift or a sum may read before they are rounded.
    """

    def __init__(self, main: relax.Function, num_inputs: int, dtype: str) -> None:
        self.main = main
        self.num_inputs = num_inputs
        self.dtype = dtype
        self.builder = relax.BlockBuilder()
        self.full: IdentityMap[Any] = IdentityMap()
        self.half: IdentityMap[Any] = IdentityMap()
        self.unrounded: IdentityMap[Any] = IdentityMap()
        self.flow = Dataflow(main)
        self.computed = IdentitySet(main.params[:num_inputs])  # depends on inputs
        self.kept = logs_of_powers(self.flow) | exponents_of_running_sums(self.flow) | sensitive_operands(self.flow)
        self.masks: IdentityMap[Any] = IdentityMap()
        self.terms: IdentityMap[bool] = IdentityMap()

    def convert(self) -> relax.Function:
        self.full.update((parameter, parameter) for parameter in self.main.params)
        return rebuild_main(self.builder, self.main, self._bind, self._in_full)

    def _bind(self, binding: Any) -> None:
        value, variable, name = binding.value, binding.var, binding.var.name
        if any(read in self.computed for read in variables_of(value)):
            self.computed.add(variable)
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self.half:
            self.half[variable] = self.builder.emit(relax.TupleGetItem(self.half[value.tuple_value], value.index), name)
            return
        operator = getattr(value.op, "name", "") if isinstance(value, relax.Call) else ""
        halved = _is_full(binding.var) and any(self._prefers_half(a) for a in value.args) if operator else False
        halved = halved or self._begins_layer(binding)
        if variable in self.kept or variable not in self.computed:  # constants are folded, and rounded then
            self.full[variable] = self.builder.emit(self._in_full(value), name)
        elif operator in PRODUCTS and _is_full(binding.var):
            operands = [self._in_half(argument) for argument in value.args]
            self.half[variable] = self.builder.emit(rebuild_call(value, *operands, out_dtype=None), name)
        elif operator == GROUPED and _is_full(binding.var):
            self.half[variable] = self.builder.emit(map_operands(value, self._in_half), name)
        elif halved and operator == "relax.add" and (mask := self._mask(binding)) is not None:
            operands = [self._rounded(a) if a.same_as(mask) else self._in_half(a) for a in value.args]
            self.half[variable] = self.builder.emit(relax.op.add(*operands), name)
        elif halved and self._is_sum(value) and not self._sums(binding):
            full = self.builder.emit(map_operands(value, self._before_rounding))
            self.half[variable] = self.builder.emit(relax.op.astype(full, self.dtype), name)
        elif halved and (
            operator == NORMALIZE or self._scales(value) or self._reshapes(binding) or self._sums(binding)
        ):
            self.unrounded[variable] = self.builder.emit(map_operands(value, self._before_rounding))
            self.half[variable] = self.builder.emit(relax.op.astype(self.unrounded[variable], self.dtype), name)
        elif operator in TESTS and self._prefers_half(value.args[0]):
            self.full[variable] = self.builder.emit(map_operands(value, self._in_half), name)
        elif halved and operator in MOVEMENT | INSIDE:
            self.half[variable] = self.builder.emit(map_operands(value, self._in_half), name)
        elif halved and isinstance(binding.var.ty, relax.TensorType):
            full = self.builder.emit(map_operands(value, self._widening(value)))
            self.half[variable] = self.builder.emit(relax.op.astype(full, self.dtype), name)
        else:
            self.full[variable] = self.builder.emit(self._in_full(value), name)

    def _begins_layer(self, binding: Any) -> bool:
        """Whether it is a normalization before a product, of what the sum after that reads, too."""
        flow, value = self.flow, binding.value
        if f"relax.{operator_of(value)}" not in LAYER_NORMS or not _is_full(binding.var):
            return False
        data = value.args[0]
        sums = any(self._is_residual(flow.value(reader), data) for reader in flow.readers(data))
        return sums and any(f"relax.{operator_of(flow.value(r))}" in PRODUCTS for r in flow.readers(binding.var))

    def _is_residual(self, call: Any, operand: Any) -> bool:
        """Whether a call adds an operand that depends on inputs to something of its shape."""
        if operator_of(call) != "add" or operand not in self.computed:
            return False
        return all(same(shape_of(term), shape_of(operand)) for term in call.args)

    def _widening(self, call: Any) -> Callable[[Any], Any]:
        """Return what makes the operands of a call float32; the residual of a sum with half precision is rounded.

        Of one type, both are read and written by the epilogue of a product, with no cast after it.
        """

        def widened(operand: Any) -> Any:
            if self._prefers_half(operand) or not self._is_residual(call, operand):
                return self._in_full(operand)
            return self._widened(self._in_half(operand), operand.ty)

        return widened

    def _scales(self, call: Any) -> bool:
        """Whether a call scales or shifts a normalization by constants."""
        operands = [operand in self.unrounded or operand not in self.computed for operand in call.args]
        return operator_of(call) in FOLLOWERS and all(operands) and any(o in self.unrounded for o in call.args)

    def _sums(self, binding: Any) -> bool:
        """Whether a binding is a product or a partial sum of those that a sum is of, and nothing else."""
        return self._is_term(binding.var) and self._is_sum(self.flow.value(self.flow.readers(binding.var)[0]))

    def _is_sum(self, call: Any) -> bool:
        """Whether a call sums products along axes, or two products or sums of some that nothing else reads."""
        return operator_of(call) in ("sum", "add") and all(map(self._is_term, call.args))

    def _is_term(self, expr: Any) -> bool:
        """Whether it is a product, or a sum of products, that is read once; what a number scales is none."""
        if expr not in self.terms:
            value, name = self.flow.value(expr), operator_of(self.flow.value(expr))
            is_product = name == "multiply" and all(scalar_of(factor) is None for factor in value.args)
            is_term = is_product or (name == "add" and self._is_sum(value))
            self.terms[expr] = is_term and self.flow.is_read_once(expr)
        return self.terms[expr]

    def _reshapes(self, binding: Any) -> bool:
        """Whether a binding ends the groups of a normalization, whose scale and shift, of channels, follow."""
        if operator_of(binding.value) != "reshape" or binding.value.args[0] not in self.unrounded:
            return False
        readers = self.flow.readers(binding.var)
        return bool(readers) and all(operator_of(self.flow.value(reader)) in FOLLOWERS for reader in readers)

    def _before_rounding(self, expr: Any) -> Any:
        return self.unrounded[expr] if expr in self.unrounded else self._in_full(expr)

    def _mask(self, binding: Any) -> Any:
        """Return the mask in float32 that an addition adds to a softmax's scores; None if it is no such addition."""
        if not are_scores(self.flow, binding.var):
            return None
        others = [argument for argument in binding.value.args if not self._prefers_half(argument)]
        if len(others) != 1 or not isinstance(others[0], relax.Var):
            return None
        # A constant of fewer axes is the bias of a product, which is no mask.
        return others[0] if others[0] in self.computed or others[0].ty.ndim == 4 else None

    def _rounded(self, mask: Any) -> Any:
        """Convert a mask to half precision, its finite numbers clamped: masks often hold the lowest float32."""
        if mask not in self.masks:
            limit, full = LARGEST[self.dtype], self._in_full(mask)
            clipped = self.builder.emit(relax.op.clip(full, -limit, limit))
            lowest = relax.const(-np.inf, FULL)
            infinite = self.builder.emit(relax.op.equal(full, lowest))
            kept = self.builder.emit(relax.op.where(infinite, lowest, clipped))
            self.masks[mask] = self.builder.emit(relax.op.astype(kept, self.dtype))
        return self.masks[mask]

    def _prefers_half(self, expr: Any) -> bool:
        if isinstance(expr, relax.Tuple):
            return any(self._prefers_half(field) for field in expr.fields)
        # Not a constant, which is in half precision as soon as one reader is.
        return isinstance(expr, relax.Var) and expr in self.half and expr not in self.full

    def _in_half(self, expr: Any) -> Any:
        """Return an expression with its float32 operands in half precision."""
        if isinstance(expr, relax.Tuple):
            return map_operands(expr, self._in_half)
        if not isinstance(expr, relax.Var | tvm.ir.GenericConst) or not _is_full(expr):
            return self._in_full(expr)
        if expr not in self.half:
            self.half[expr] = self.builder.emit(relax.op.astype(self._in_full(expr), self.dtype))
        return self.half[expr]

    def _in_full(self, expr: Any) -> Any:
        """Return an expression with operands in the model's types."""
        if isinstance(expr, relax.Var):
            if expr not in self.full and expr in self.half:
                self.full[expr] = self._widened(self.half[expr], expr.ty)
            return self.full.get(expr, expr)
        return map_operands(expr, self._in_full)

    def _widened(self, half: Any, ty: Any) -> Any:
        if isinstance(ty, relax.TupleType):
            fields = [self.builder.emit(relax.TupleGetItem(half, index)) for index in range(len(ty.fields))]
            return relax.Tuple([relax.op.astype(field, FULL) for field in fields])
        return self.builder.emit(relax.op.astype(half, FULL))


def _is_full(expr: Any) -> bool:
    types = expr.ty.fields if isinstance(expr.ty, relax.TupleType) else [expr.ty]
    return all(isinstance(ty, relax.TensorType) and str(ty.dtype) == FULL for ty in types)
