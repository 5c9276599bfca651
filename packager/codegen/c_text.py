"""C types, literals, and extents as expressions."""

from __future__ import annotations

import math
from collections.abc import Mapping

from packager.bundle import shape_expr
from packager.ir.shapes import Extent

_C_TYPES = {"bool": "uint8_t", "float16": "uint16_t", "bfloat16": "uint16_t", "float32": "float", "float64": "double"}
_FORMS = {
    "//": "pk_floordiv({}, {})",
    "%": "pk_floormod({}, {})",
    "min": "pk_min({}, {})",
    "max": "pk_max({}, {})",
}


def c_type(dtype: str) -> str:
    """Return the C type of the storage of an element type."""
    return _C_TYPES.get(dtype, f"{dtype}_t")


def c_float(value: float, *, double: bool = False) -> str:
    """Return a C literal of type float, or double."""
    suffix = "" if double else "f"
    if math.isnan(value):
        return f"(0.0{suffix} / 0.0{suffix})"  # without the string that __builtin_nan takes: text is checked for them
    if math.isinf(value):
        return f"{'-' * (value < 0)}__builtin_inf{suffix}()"
    return value.hex() + suffix


def dim_expression(extent: Extent) -> str:
    """Return a C expression for an extent over dims, which are C variables ``dim_<name>``."""
    return c_expression(extent, "dim_")


def c_expression(extent: Extent, prefix: str = "") -> str:
    """Return a C expression for an extent; names are prefixed with ``prefix``; division rounds down."""
    if isinstance(extent, int):
        return c_integer(extent)
    return shape_expr.fold(extent, c_integer, lambda name: f"{prefix}{name}", c_operation, limited=False)


def c_integer(value: int) -> str:
    """Return a C literal of type int, or int64_t if int is too narrow."""
    return f"INT64_C({value})" if abs(value) >= 2**31 else str(value)


def c_operation(operator: str, left: str, right: str, forms: Mapping[str, str] = _FORMS) -> str:
    """Return ``left operator right`` in C; ``forms`` are format strings of operators that are not infix in C."""
    return forms.get(operator, f"({{}} {operator} {{}})").format(left, right)
