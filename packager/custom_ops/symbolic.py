"""Arithmetic of shape rules over symbolic dims."""

from __future__ import annotations

import functools

from tvm import tirx

from packager.bundle.shape_expr import OPERATORS
from packager.custom_ops.rules import Arithmetic

SYMBOLIC = Arithmetic(
    functools.partial(tirx.const, dtype="int64"),
    {**OPERATORS, "//": tirx.floordiv, "%": tirx.floormod, "min": tirx.min, "max": tirx.max},
)
