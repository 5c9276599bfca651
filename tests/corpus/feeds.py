"""Inputs for a file at given sizes, from the names and types of its inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .case import VOCABULARY

Array = np.ndarray[Any, Any]
TYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(double)": np.float64,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(uint8)": np.uint8,
    "tensor(int8)": np.int8,
    "tensor(bool)": np.bool_,
}


def shape_at(shape: Sequence[int | str | None], sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Return a shape with its dims replaced; a dim's name may be an expression, as Optimum writes them."""
    return tuple(extent if isinstance(extent, int) else _extent(str(extent), sizes) for extent in shape)


def _extent(name: str, sizes: Mapping[str, int]) -> int:
    if name.isdigit():  # some exporters write an extent as a name
        return int(name)
    return sizes[name] if name in sizes else sum(sizes[term.strip()] for term in name.split("+"))


def feed(name: str, kind: str, shape: tuple[int, ...], sizes: Mapping[str, int], seed: int) -> Array:
    """Return values for one input: masks with padding at the end of every other row, positions after the past."""
    random, dtype = np.random.default_rng(seed), TYPES[kind]
    if "mask" in name:
        values = np.ones(shape, np.int64)
        if len(shape) == 2 and shape[1] > 3:
            values[1::2, -2:] = 0
        return values.astype(dtype)
    if "token_type" in name or "segment" in name:
        return np.zeros(shape, dtype)
    if "position" in name:
        start = sizes.get("past_sequence_length", 0)
        return np.broadcast_to(np.arange(start, start + shape[-1]), shape).astype(dtype)
    if dtype == np.bool_:
        return random.integers(0, 2, shape).astype(dtype)
    if np.issubdtype(dtype, np.integer):
        return random.integers(4, 128 if dtype == np.uint8 else VOCABULARY, shape).astype(dtype)
    return random.standard_normal(shape).astype(dtype)
