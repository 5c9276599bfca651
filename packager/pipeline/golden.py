"""Golden pairs at build time: inputs from a seed or a file, outputs from the file or from the bundle itself."""

from __future__ import annotations

import platform
import zipfile
import zlib
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from packager.bundle.dtypes import typed
from packager.bundle.golden import GoldenCase, encode_golden, golden_points
from packager.bundle.hashing import sha256
from packager.bundle.manifest import Entry, Golden, Manifest
from packager.deploy.measure.random_inputs import random_inputs
from packager.deploy.verify.golden import compare, run_apart
from packager.errors import BackendError, UsageError
from packager.ir.model import ImportedModel

# Tolerances of verify --run on other machines, whose vector widths change the order of sums.
RTOL = 1e-4
ATOL = 1e-5
# Tolerances of half-precision models compared with the float32 model: several roundings accumulate.
HALF_TOLERANCE = {"float16": 2e-2, "bfloat16": 1e-1}
Arrays = dict[str, NDArray[Any]]


def make_golden(
    bundle: Path, manifest: Manifest, request: int | Path, halves: Collection[str] = ()
) -> tuple[bytes, Golden]:
    """Return the golden section and its record for a sealed bundle.

    A seed generates random inputs; ``bundle`` computes the outputs here: the sealed bundle, or the float32 CPU bundle
    as the reference of one that needs a GPU or a precision. ``halves`` are the types of 16 bits that it computes in,
    whose roundings the tolerances allow. A file has ``<input name>`` arrays, and may have ``<output name>`` arrays,
    which the bundle must reproduce. Raises UsageError for a file that does not match the
    model, or if outputs must be computed for another machine; BackendError if the bundle computes other outputs.
    """
    if isinstance(request, Path):
        cases = [GoldenCase(*_read(request, manifest))]  # of one model: several have seeds alone
    else:
        several = len(manifest.entries) > 1
        cases = [
            GoldenCase(random_inputs(entry, request, sizes), {}, entry.name if several else None)
            for entry, sizes in golden_points(manifest)
        ]
    runs_on = manifest.requirements
    runnable = manifest.form == "shared" and runs_on.machine == platform.machine() and bundle.is_file()
    tolerance = max((HALF_TOLERANCE[dtype] for dtype in halves), default=0.0)
    rtol, atol = max(RTOL, tolerance), max(ATOL, tolerance)
    if not runnable and len(cases[0].outputs) < len(manifest.outputs):
        raise UsageError(
            f"--golden {request}: this machine cannot run the bundle to compute the outputs",
            hint="give a file that has all inputs and all outputs by name",
        )
    if runnable:
        entries = [entry for entry, _ in golden_points(manifest)]  # a file is a case of the first
        cases = [_computed(bundle, case, entry, rtol, atol) for case, entry in zip(cases, entries, strict=False)]
    image = encode_golden(cases)
    return image, Golden(len(cases), rtol, atol, len(image), sha256([image]))


def halves_in(model: ImportedModel) -> frozenset[str]:
    """Return the floating-point types of 16 bits that a model's operators compute in."""
    from tvm import relax

    from packager.graph.dataflow import bindings_of

    found: set[str] = set()
    for function in (value for value in model.module.functions.values() if isinstance(value, relax.Function)):
        found |= {str(getattr(binding.var.ty, "dtype", "")) for binding in bindings_of(function)}
    return frozenset(found & HALF_TOLERANCE.keys())


def _computed(bundle: Path, case: GoldenCase, entry: Entry, rtol: float, atol: float) -> GoldenCase:
    """Return a case with all outputs. Raises BackendError if the bundle does not reproduce the given ones."""
    dtypes = {spec.name: spec.dtype for spec in entry.outputs}
    computed = {name: typed(array, dtypes[name]) for name, array in run_apart(bundle, case.inputs, case.entry).items()}
    for name, array in case.outputs.items():
        problem = compare(name, computed[name], array, rtol, atol)
        if problem:
            raise BackendError(f"the bundle does not reproduce the golden outputs: {problem}")
    return replace(case, outputs={**computed, **case.outputs})


def _read(path: Path, manifest: Manifest) -> tuple[Arrays, Arrays]:
    try:
        file = np.load(path, allow_pickle=False)
        if not isinstance(file, np.lib.npyio.NpzFile):
            raise UsageError(f"--golden {path}: holds one array without a name", hint="write it with numpy.savez")
        with file:
            arrays = {name: file[name] for name in file.files}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UsageError(
            f"--golden {path}: cannot be read as .npz: {error}",
            hint="give a number as the seed, or a file of numpy.savez",
        ) from None
    inputs, outputs = (
        {spec.name: typed(arrays.pop(spec.name), spec.dtype) for spec in specs if spec.name in arrays}
        for specs in (manifest.inputs, manifest.outputs)
    )
    missing = [spec.name for spec in manifest.inputs if spec.name not in inputs]
    if missing or arrays:
        what = f"has no array {missing[0]!r}" if missing else f"has an array {next(iter(arrays))!r} that is no tensor"
        raise UsageError(f"--golden {path}: {what} of the model", hint="name the arrays after inputs and outputs")
    return inputs, outputs
