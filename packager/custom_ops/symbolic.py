"""Arithmetic of shape rules over symbolic dims."""

from __future__ import annotations

from typing import Any

from tvm import tirx

from packager.custom_ops.rules import Arithmetic


def _number(value: int) -> Any:
    return tirx.const(value, "int64")


SYMBOLIC = Arithmetic(_number, tirx.floordiv, tirx.floormod, tirx.min, tirx.max)
