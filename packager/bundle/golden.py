"""The golden section: input/output pairs that a bundle must reproduce, as safetensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from packager.bundle import safetensors
from packager.bundle.arrays import Array
from packager.bundle.buckets import Sizes, combinations
from packager.bundle.dtypes import typed
from packager.bundle.manifest import Entry, Manifest
from packager.errors import BundleError


@dataclass(frozen=True)
class GoldenCase:
    """Inputs and expected outputs by name; ``entry`` is None in a bundle of one model."""

    inputs: Mapping[str, Array]
    outputs: Mapping[str, Array]
    entry: str | None = None


def encode_golden(cases: Sequence[GoldenCase], dtypes: Mapping[str, str] | None = None) -> bytes:
    """Encode the golden section: tensors ``<case>.input.<name>`` and ``<case>.output.<name>``.

    ``dtypes`` names the element types that numpy lacks (bfloat16 in uint16).
    """
    tensors: dict[str, Array] = {}
    overrides: dict[str, str] = {}
    for index, case in enumerate(cases):
        for kind, arrays in (("input", case.inputs), ("output", case.outputs)):
            for name, array in arrays.items():
                key = f"{index}.{kind}.{name}"
                tensors[key] = array
                if dtypes and name in dtypes:
                    overrides[key] = dtypes[name]
    return safetensors.encode(tensors, dtypes=overrides)


def golden_points(manifest: Manifest) -> list[tuple[Entry, Sizes]]:
    """Return the (entry, bucket sizes) that a seed covers: every entry, with every combination of its buckets."""
    return [
        (entry, sizes)
        for entry in manifest.every_entry()
        for sizes in combinations({dim.name: dim.buckets for dim in entry.dims if dim.buckets})
    ]


def decode_golden(image: bytes, manifest: Manifest) -> list[GoldenCase]:
    """Decode the cases, in the order of ``golden_points``.

    Raises BundleError if the image lacks a tensor of a case or has an unknown one.
    """
    tensors = safetensors.decode(image)
    count = manifest.golden.cases if manifest.golden else 0
    cases = []
    points = golden_points(manifest)
    several = len(manifest.entries) > 1
    try:
        for index in range(count):
            entry, _ = points[index % len(points)]
            inputs, outputs = (
                {item.name: typed(tensors.pop(f"{index}.{kind}.{item.name}"), item.dtype) for item in items}
                for kind, items in (("input", entry.inputs), ("output", entry.outputs))
            )
            cases.append(GoldenCase(inputs, outputs, entry.name if several else None))
    except KeyError as missing:
        raise BundleError(f"the golden section lacks the tensor {missing}") from None
    if tensors:
        raise BundleError(f"the golden section has the unknown tensor {next(iter(tensors))!r}")
    return cases
