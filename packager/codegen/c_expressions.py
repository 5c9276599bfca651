"""Extents as C expressions; their names are variables of the code that they go into."""

from __future__ import annotations

import ast

from packager.ir.shapes import Extent


def dim_expression(extent: Extent) -> str:
    """Return a C expression for an extent over dims, which are ``dim_<name>``."""
    return c_expression(extent, "dim_")


def c_expression(extent: Extent, prefix: str = "") -> str:
    """Return a C expression for an extent; its names get ``prefix``, division rounds down."""
    if isinstance(extent, int):
        return f"INT64_C({extent})" if abs(extent) >= 2**31 else str(extent)
    return _c_expression(ast.parse(extent, mode="eval").body, prefix)


def _c_expression(node: ast.expr, prefix: str) -> str:
    match node:
        case ast.Constant(value=int(value)):
            return c_expression(value)
        case ast.Name(id=name):
            return f"{prefix}{name}"
        case ast.BinOp(left=left, op=op, right=right):
            a, b = _c_expression(left, prefix), _c_expression(right, prefix)
            functions = {ast.FloorDiv: "pk_floordiv", ast.Mod: "pk_floormod"}
            if type(op) in functions:
                return f"{functions[type(op)]}({a}, {b})"
            return f"({a} { {ast.Add: '+', ast.Sub: '-', ast.Mult: '*'}[type(op)] } {b})"
        case ast.Call(func=ast.Name(id=name), args=args):
            return f"pk_{name}({', '.join(_c_expression(argument, prefix) for argument in args)})"
    raise AssertionError(ast.dump(node))  # symbolic.to_extent writes nothing else
