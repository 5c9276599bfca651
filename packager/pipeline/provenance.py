"""Says what a build is made of: the files it reads, by hash, its options, and the packages that take part."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from packager.backends.base import FileReader
from packager.backends.registry import distribution, find_backend
from packager.bundle import strict_json
from packager.bundle.hashing import sha256_of_array, sha256_of_file
from packager.bundle.origin import BuildInput, Provenance
from packager.pipeline.cache_key import PARTS, model_files, package_versions
from packager.pipeline.request import Request


def provenance_of(request: Request) -> Provenance:
    """Return the provenance of a bundle; equal requests with equal files have equal ones, in any folder.

    The rest of the manifest says where the weights are, and the prefix: with the default given or left out.
    """
    options = {
        "dims": strict_json.canonical(PARTS["dims"](request)).decode() if request.dims else None,
        "entry": request.entry,
        "golden": None if request.golden is None or isinstance(request.golden, Path) else str(request.golden),
        "precision": request.precision,
    }
    return Provenance(
        inputs=tuple(dict.fromkeys(_inputs(request))),
        options={name: value for name, value in options.items() if value is not None},
        packages=_packages(request),
    )


def _inputs(request: Request) -> Iterator[BuildInput]:
    for model in request.models:
        for name, sha256 in model_files(model).items():
            yield BuildInput("model", name, sha256)
    for name, array in request.frozen.items():
        yield BuildInput("frozen", name, sha256_of_array(array))
    for role, path in (
        ("constants", request.constants),
        ("golden", request.golden),
        ("placement", request.place),
    ):
        if isinstance(path, Path) and path.is_file():  # a missing one is reported by who reads it
            yield BuildInput(role, role, sha256_of_file(path))  # the file's name has no effect on the bundle
    for target in (*request.targets.bases, *request.targets.specialized):
        backend = find_backend(target.kind)
        if isinstance(backend, FileReader):
            for path in backend.inputs(target):
                yield BuildInput(target.kind, path.name, sha256_of_file(path))


def _packages(request: Request) -> dict[str, str]:
    """Return the packages that take part, other people's backends among them: not all that are installed."""
    suffixes = {model.suffix for model in request.models}
    absent = {
        *(() if ".onnx" in suffixes else ("onnx",)),
        *(() if ".pt2" in suffixes else ("torch",)),
        *(() if request.targets.device == "cuda" else ("nvidia-cuda-nvcc",)),
    }
    found = [distribution(target.kind) for target in request.targets.specialized]
    ours = {name: version for name, version in package_versions().items() if name not in absent}
    return ours | dict(text.split("==", 1) for text in found if text)
