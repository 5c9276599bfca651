"""How a partition is computed: its primitive functions, its workspaces, its packed weights, and its C."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packager.backends.api import FunctionGroup, Packing, Parameter, Partition, PrimitiveFunction
from packager_openblas.kernels import kernel_names
from packager_openblas.patterns import Product

HIGH, WIDE = 48, 64  # rows and columns of a tile of the result; multiples of what panels have
FLOAT_BYTES = 4

PRODUCT = "int64_t batch, int64_t rows, int64_t depth, int64_t columns, int64_t begin, int64_t end"


def group_of(partition: Partition, product: Product, panel: int) -> FunctionGroup:
    """Return how to call a partition: pack the rows of a, pack the columns of b, multiply tile by tile."""

    def argument(operand: Any) -> int:
        return next(i for i, parameter in enumerate(partition.function.params) if parameter.same_as(operand))

    p = product
    scalars = (p.batch, p.rows, p.depth, p.columns)
    row_tiles, column_tiles = p.batch * _tiles(p.rows, HIGH), _tiles(p.columns, WIDE)
    packed_a = Parameter("workspace", 0)
    packings: tuple[Packing, ...] = ()
    workspaces = [p.batch * p.rows * p.depth * FLOAT_BYTES]
    functions = [
        PrimitiveFunction(
            symbol=f"{partition.name}_pack_rows",
            parameters=(Parameter("argument", argument(p.a)), Parameter("workspace", 0, written=True)),
            scalars=scalars,
            extent=row_tiles,
        )
    ]
    if p.packs_b_ahead:
        packings = (Packing(argument(p.b), f"columns{panel}", lambda b: pack_columns(b, panel)),)
        packed_b = Parameter("packed", 0)
    else:
        packed_b = Parameter("workspace", 1)
        workspaces.append(p.batch * p.depth * p.columns * FLOAT_BYTES)
        functions.append(
            PrimitiveFunction(
                symbol=f"{partition.name}_pack_columns",
                parameters=(Parameter("argument", argument(p.b)), Parameter("workspace", 1, written=True)),
                scalars=scalars,
                extent=p.batch * column_tiles,
            )
        )
    bias = () if p.bias is None else (Parameter("argument", argument(p.bias)),)
    functions.append(
        PrimitiveFunction(
            symbol=f"{partition.name}_multiply",
            parameters=(packed_a, packed_b, *bias, Parameter("argument", len(partition.function.params), written=True)),
            scalars=scalars,
            extent=row_tiles * column_tiles,
        )
    )
    return FunctionGroup(tuple(functions), workspaces=tuple(workspaces), packings=packings)


def _tiles(value: Any, tile: int) -> Any:
    return (value + tile - 1) // tile


def pack_columns(b: NDArray[Any], panel: int) -> NDArray[Any]:
    """Return a constant b as OpenBLAS packs it at run time: all full panels, then smaller ones, each row by row."""
    outer, depth, columns = b.shape[:-2], b.shape[-2], b.shape[-1]
    parts, start = [], 0
    while start < columns:
        count = (columns - start) // panel
        part = b[..., start : start + count * panel].reshape(*outer, depth, count, panel).swapaxes(-3, -2)
        parts.append(part)
        start += count * panel
        panel //= 2
    if len(parts) == 1:
        return parts[0]  # a view, so that a session can swap the weights
    return np.concatenate([part.reshape(*outer, -1) for part in parts], axis=-1)


def source_of(products: Mapping[str, Product], core: str) -> str:
    """Return a C file with the functions of all partitions, which call those of ``product.h``."""
    macros = {"HIGH": HIGH, "WIDE": WIDE, **kernel_names(core)}
    lines = [*(f"#define {macro} {value}" for macro, value in macros.items()), '#include "product.h"']
    return "\n".join([*lines, *(_functions(name, product) for name, product in products.items())])


def _functions(name: str, product: Product) -> str:
    p = "(product_t){batch, rows, depth, columns}"
    c = f"""
int32_t {name}_pack_rows(const float *a, float *packed, {PRODUCT}) {{
  return pack_rows({p}, a, packed, begin, end);
}}
"""
    if not product.packs_b_ahead:
        c += f"""
int32_t {name}_pack_columns(const float *b, float *packed, {PRODUCT}) {{
  return pack_columns({p}, b, packed, begin, end);
}}
"""
    parameter, bias = ("", "NULL") if product.bias is None else ("const float *bias, ", "bias")
    return f"""{c}
int32_t {name}_multiply(const float *a, const float *b, {parameter}float *c, {PRODUCT}) {{
  return multiply({p}, a, b, {bias}, c, begin, end);
}}
"""
