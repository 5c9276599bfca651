"""Generates random inputs for `run --random` and `bench`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from packager.bundle.buckets import Sizes
from packager.bundle.manifest import Entry, Manifest
from packager.deploy.load.tensors import empty


def random_inputs(model: Manifest | Entry, seed: int, sizes: Sizes | None = None) -> dict[str, NDArray[Any]]:
    """Generate inputs by name, with symbolic dims from ``sizes`` or at their maxima; equal seeds give equal inputs.

    Floats are standard normal; integers, and the bytes of narrow types without ml_dtypes, are 0 or 1, which are valid
    as indices almost everywhere; bools are uniform. Raises RunError for bfloat16 without ml_dtypes.
    """
    generator = np.random.default_rng(seed)
    dims = {dim.name: dim.max for dim in model.dims} | dict(sizes or {})
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
