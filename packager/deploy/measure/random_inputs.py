"""Generates random inputs for `run --random` and `bench`, with the symbolic dims at their maxima or at chosen sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packager.bundle.buckets import Sizes
from packager.bundle.manifest import Entry, Manifest
from packager.deploy.load.tensors import empty
from packager.errors import UsageError, listed, valid_names


def random_inputs(model: Manifest | Entry, seed: int, sizes: Sizes | None = None) -> dict[str, NDArray[Any]]:
    """Generate inputs by name, with symbolic dims from ``sizes`` or at their maxima; equal seeds give equal inputs.

    Floats are standard normal; integers, and the bytes of narrow types without ml_dtypes, are 0 or 1, which are valid
    as indices almost everywhere; bools are uniform. Raises RunError for bfloat16 without ml_dtypes, and
    UsageError like ``all_sizes``.
    """
    generator = np.random.default_rng(seed)
    dims = all_sizes(model, sizes or {})
    inputs = {}
    for spec in model.inputs:
        array = empty(spec.name, spec.dtype, spec.extents(dims))
        if array.dtype.kind in "iub" or spec.dtype.startswith(("int", "uint")):
            array[...] = generator.integers(0, 2, array.shape)
        elif spec.dtype == "float8_e8m0fnu":  # unsigned
            array[...] = np.abs(generator.standard_normal(array.shape)).astype(array.dtype)
        else:
            array[...] = generator.standard_normal(array.shape).astype(array.dtype)
        inputs[spec.name] = array
    return inputs


def all_sizes(model: Manifest | Entry, sizes: Sizes) -> dict[str, int]:
    """Return the size of each symbolic dim: its maximum unless chosen.

    Raises UsageError for a dim that the model has not, and a size that is outside of its bounds or no bucket.
    """
    dims = {dim.name: dim for dim in model.dims}
    for name, size in sizes.items():
        if name not in dims:
            raise UsageError(
                f"--dim {name}={size}: no symbolic dim of the bundle", hint=valid_names(name, dims, "dims")
            )
        dim = dims[name]
        if dim.buckets and size not in dim.buckets:
            raise UsageError(
                f"--dim {name}={size}: not a size of {name}", hint=f"one of {listed(map(str, dim.buckets))}"
            )
        if not dim.min <= size <= dim.max:
            raise UsageError(f"--dim {name}={size}: outside of its bounds", hint=f"from {dim.min} to {dim.max}")
    return {name: sizes.get(name, dim.max) for name, dim in dims.items()}


def parse_sizes(options: Sequence[str]) -> dict[str, int]:
    """Return the sizes that options ``NAME=SIZE`` choose. Raises UsageError."""
    sizes: dict[str, int] = {}
    for option in options:
        name, _, size = option.partition("=")
        if not name or not size.isascii() or not size.isdecimal():
            raise UsageError(f"--dim {option}: not NAME=SIZE", hint="for example: --dim batch=1")
        if name in sizes:
            raise UsageError(f"--dim {option}: {name} is given twice")
        sizes[name] = int(size)
    return sizes
