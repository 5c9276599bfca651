"""Arithmetic of shape rules over symbolic dims."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from packager.bundle.shape_expr import OPERATORS
from packager.custom_ops.rules import Arithmetic


def _number(value: int) -> Any:
    return tirx.const(value, "int64")


SYMBOLIC = Arithmetic(_number, {**OPERATORS, "//": tirx.floordiv, "%": tirx.floormod, "min": tirx.min, "max": tirx.max})
