"""Makes one operator of a product and the weights that are dequantized for it, so that they stay packed.

Without it the weights are folded: they are dequantized at build time.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import tvm
from tvm import relax

from packager.bundle.dtypes import HALVES
from packager.graph.block_weights import DEQUANTIZE, BlockFormat, block_matmul, format_of
from packager.graph.dataflow import Dataflow, axes_of, computed_from_constants, operator_of, shape_of
from packager.graph.identity import IdentityMap, IdentitySet
from packager.graph.rewrite import as_type, map_operands, rebuild_main, with_main
from packager.graph.symbolic import extent_interval, shape_variables, to_extent

if TYPE_CHECKING:
    from packager.bundle.arrays import Array
    from packager.bundle.manifest import Dim
    from packager.ir.shapes import Extent

# Of the largest number in a block, two bytes hold more than results of 16 bits do.
DATA_BYTES = {"float32": 3, "float16": 2, "bfloat16": 2}
GPU_BLOCKS = (16, 32, 64, 128, 256)
# Of more rows a product on a GPU is faster with weights that are floats; of blocks of 16 and of bfloat16 nobody knows.
GPU_ROWS, MEASURED_BLOCKS, MEASURED_DTYPES = 16, (32, 64, 128, 256), ("float16",)
# Scales are at most as far from float16 as an element of its normal range is.
ROUNDING = 2.0**-11


@dataclass(frozen=True)
class _Product:
    """A product with dequantized, constant weights: of one call, or of several that are packed alike, side by side."""

    data: Any
    weights: tuple[Any, ...]

    @property
    def form(self) -> BlockFormat:
        """How the weights are packed."""
        return format_of(self.weights[0].attrs)

    def operands(self, index: int) -> tuple[Any, ...]:
        """Return the packed weights (0), scales (1) or zero points (2) of each call."""
        return tuple(call.args[index] for call in self.weights)


def keep_block_weights(
    module: tvm.IRModule,
    num_inputs: int,
    arrays: Sequence[Array],
    *,
    on_gpu: bool = False,
    dims: Sequence[Dim] = (),
    every: bool = False,
) -> tvm.IRModule:
    """Replace products with transposed, dequantized constant weights in ``main``; on a CPU they are of float32 then.

    ``arrays`` are the values of main's parameters after its inputs. On a GPU products are of 16-bit floats, and
    scales become float16, exactly or nearly: see ``_fits_halves``. There those stay packed that may have ``GPU_ROWS``
    rows or fewer, by the bounds of ``dims``; or ``every`` one that there are kernels for.
    """
    main = module["main"]
    sizes = _Sizes(main, num_inputs, dims)
    flow = Dataflow(main, main.params[num_inputs:])
    if not any(_name(flow.value(variable)) == DEQUANTIZE for variable in flow.variables):
        return module
    constants = computed_from_constants(main, num_inputs)
    builder = relax.BlockBuilder()
    made: IdentityMap[Any] = IdentityMap()
    values = IdentityMap(zip(main.params[num_inputs:], arrays, strict=True))

    def renamed(expr: Any) -> Any:
        return made.get(expr, expr) if isinstance(expr, relax.Var) else map_operands(expr, renamed)

    def bind(binding: Any) -> None:
        product = _find(flow, constants, binding.value, HALVES if on_gpu else (*DATA_BYTES,))
        value = renamed(binding.value)
        if product is not None and on_gpu and not every and not _is_measured(product, sizes):
            product = None
        if product is not None and on_gpu:
            halves = _of_halves(flow, values, builder, product, renamed)
            value = value if halves is None else halves
        elif product is not None:
            value = _of_floats(builder, product, renamed)
        made[binding.var] = builder.emit(value, binding.var.name)

    return with_main(module, rebuild_main(builder, main, bind, renamed))


class _Sizes:
    """The least values of extents, by the bounds of the dims."""

    def __init__(self, main: relax.Function, num_inputs: int, dims: Sequence[Dim]) -> None:
        variables = shape_variables(main.params[:num_inputs])
        self._names: IdentityMap[Extent] = IdentityMap((each, str(each.name)) for each in variables)
        self._dims = {dim.name: dim for dim in dims}

    def least(self, extents: Sequence[Any]) -> int:
        """Return the least product of extents."""
        return math.prod(extent_interval(to_extent(extent, self._names), self._dims)[0] for extent in extents)


def _is_measured(product: _Product, sizes: _Sizes) -> bool:
    """Whether a product on a GPU was measured to be faster with packed weights, for some of its rows at least."""
    known = str(product.data.ty.dtype) in MEASURED_DTYPES and product.form.block in MEASURED_BLOCKS
    return known and sizes.least((shape_of(product.data) or ())[:-1]) <= GPU_ROWS


def _of_floats(builder: relax.BlockBuilder, product: _Product, renamed: Callable[[Any], Any]) -> Any:
    """Return the product in float32, with a cast to its type if that is another."""
    data = renamed(product.data)
    dtype = str(data.ty.dtype)
    form = product.form
    form = replace(form, data_bytes=min(form.data_bytes, DATA_BYTES[dtype]))
    packed, scales, zeros = (_joined(builder, [*map(renamed, product.operands(n))]) for n in range(3))
    value = block_matmul(as_type(builder.emit, data, "float32"), packed, scales, zeros, form)
    return value if dtype == "float32" else relax.op.astype(builder.emit(value), dtype)


def _of_halves(
    flow: Dataflow,
    values: IdentityMap[Array],
    builder: relax.BlockBuilder,
    product: _Product,
    renamed: Callable[[Any], Any],
) -> Any:
    """Return the product of 16-bit floats, or None if no kernel for a GPU reads such weights, or there are no rows."""
    form, rows = product.form, (shape_of(product.data) or ())[:-1]
    known = len(rows) > 0 and 0 not in [extent for extent in rows if isinstance(extent, int)]
    if not known or form.bits not in (4, 8) or form.depth % 8 != 0 or form.block not in GPU_BLOCKS:
        return None
    for scales in product.operands(1):
        given = _source(flow, values, scales)
        if given is None or not _fits_halves(given.astype(np.float32)):
            return None
    if form.has_zeros:
        for zeros in product.operands(2):
            points = _source(flow, values, zeros)
            if points is None or not np.array_equal(points.astype(np.uint8), points) or points.max() >= 1 << form.bits:
                return None

    def joined(index: int) -> Any:
        return _joined(builder, [*map(renamed, product.operands(index))])

    halves = builder.emit(relax.op.astype(joined(1), "float16"))
    whole = builder.emit(relax.op.astype(joined(2), "uint8")) if form.has_zeros else halves
    return block_matmul(renamed(product.data), joined(0), halves, whole, form)


def _joined(builder: relax.BlockBuilder, rows: Sequence[Any]) -> Any:
    """Return rows of several operands as those of one."""
    return rows[0] if len(rows) == 1 else builder.emit(relax.op.concat(rows, 0))


def _fits_halves(scales: Array) -> bool:
    """Whether scales are float16, or become it as weights do that are dequantized at build time, but for their range.

    A product with such scales is as exact as one with such weights.
    """
    with np.errstate(over="ignore"):
        halves = scales.astype(np.float16).astype(np.float32)
    return bool((np.abs(halves - scales) <= ROUNDING * np.abs(scales)).all())


def _source(flow: Dataflow, values: IdentityMap[Array], operand: Any) -> Array | None:
    """Return the numbers of a constant before views and casts that keep them, or None if it is another."""
    while (call := flow.call(operand, "reshape", "astype")) is not None:
        wider = str(call.ty.dtype) in ("float32", str(call.args[0].ty.dtype))
        if not wider:
            return None
        operand = call.args[0]
    found = values.get(operand)
    return None if found is None or str(found.dtype) not in ("float16", "bfloat16", "float32", "uint8") else found


def _find(flow: Dataflow, constants: IdentitySet, value: Any, dtypes: Sequence[str]) -> _Product | None:
    """Return what a value multiplies, or None if that is no product of such data with dequantized weights."""
    if operator_of(value) != "matmul" or str(value.args[0].ty.dtype) not in dtypes:
        return None
    matrix = _before_cast(flow, value.args[1])
    parts = [value.args[1]]
    if operator_of(matrix) == "concat" and int(matrix.attrs.axis) in (-1, 1):  # products that were merged
        parts = list(matrix.args[0])
    weights = tuple(_dequantized(flow, constants, part) for part in parts)
    if None in weights or len({str(each.attrs) for each in weights}) > 1:
        return None
    return _Product(value.args[0], weights)


def _dequantized(flow: Dataflow, constants: IdentitySet, matrix: Any) -> Any:
    """Return the call that dequantizes the weights of a matrix, which is transposed; None if it is another matrix."""
    turned = _before_cast(flow, matrix)
    if axes_of(turned) != (1, 0):
        return None
    weights = _before_cast(flow, turned.args[0])
    found = _name(weights) == DEQUANTIZE and all(operand in constants for operand in weights.args)
    return weights if found else None


def _before_cast(flow: Dataflow, operand: Any) -> Any:
    """Return the value of an operand, or of what a cast makes it from."""
    value = flow.value(operand)
    return flow.value(value.args[0]) if operator_of(value) == "astype" else value


def _name(value: Any) -> str:
    return str(getattr(getattr(value, "op", None), "name", ""))
