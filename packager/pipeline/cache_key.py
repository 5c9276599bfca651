"""Compute the cache key of a build: a hash of everything that its result depends on, without importing TVM."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import mmap
import platform
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packager.backends.base import FileReader
from packager.backends.registry import distribution, find_backend
from packager.bundle.hashing import digest, digest_of_folder, sha256_of_file
from packager.codegen.toolchain import Toolchain
from packager.deploy.verify.machine import this_machine
from packager.resources import PACKAGE, folder

if TYPE_CHECKING:
    from packager.backends.base import Target
    from packager.pipeline.request import Request

LARGE_MODEL_BYTES = 1 << 30
# Copying the bundle of a larger model into the cache and out of it costs as much as the build, and fills disks.
MAX_CACHED_BYTES = 1 << 31

# Distributions whose version affects the result.
DISTRIBUTIONS = ("apache-tvm", "apache-tvm-ffi", "numpy", "onnx", "jinja2", "capstone", "iced-x86", "torch",
                 "nvidia-cuda-nvcc")  # fmt: skip


def of_bundle(request: Request, toolchain: Toolchain) -> str:
    """Return the key of a build."""
    # ``native``, as -mcpu or -march, stands for the features of this machine's CPU.
    native = any(v in ("native", ("native",)) for target in request.targets.to_json() for v in target.values())
    return digest(
        {
            "packager": [
                digest_of_folder(PACKAGE, "*.py"),
                digest_of_folder(PACKAGE / "placement" / "devices", "*.json"),
                digest_of_folder(folder("templates"), "*"),
                digest_of_folder(folder("runtime_stub"), "*.[ch]"),
            ],
            "python": platform.python_version(),
            "distributions": package_versions(),
            "toolchain": dict(toolchain.versions),
            "machine": this_machine().to_json() if native else None,
            "request": {
                field.name: PARTS[field.name](request)  # a field without a decision raises KeyError
                for field in dataclasses.fields(request)
                if field.name not in WITHOUT_EFFECT
            },
        }
    )


def _weights_name(request: Request) -> str | None:
    """Return the name of the weights file, which the bundle contains; large archives default to external weights."""
    large = request.static and model_bytes(request) > LARGE_MODEL_BYTES
    external = request.weights == "external" or (request.weights is None and large)
    return request.weights_file.name if external else None


def _targets(request: Request) -> list[Any]:
    targets = request.targets
    return [targets.to_json(), *(_backend(target) for target in (*targets.bases, *targets.specialized))]


# The contribution of each field of a request to the key.
PARTS: Mapping[str, Callable[[Request], Any]] = {
    "model": lambda request: model_files(request.model),
    "more_models": lambda request: [[path.stem, model_files(path)] for path in request.more_models],
    "output": _weights_name,
    "targets": _targets,
    "dims": lambda request: {name: dataclasses.asdict(dim) for name, dim in request.dims.items()},
    "name": lambda request: request.name,
    "prefix": lambda request: request.prefix,
    "weights": lambda request: request.weights,
    "golden": lambda request: _file(request.golden) if isinstance(request.golden, Path) else request.golden,
    "entry": lambda request: request.entry,
    "constants": lambda request: _file(request.constants) if request.constants else None,
    "precision": lambda request: request.precision,
    "frozen": lambda request: {n: [a.dtype.str, a.shape, a.tobytes().hex()] for n, a in request.frozen.items()},
    "states": lambda request: dict(request.states),
    "alternatives": lambda request: request.alternatives,
    "place_device": lambda request: request.place_device,
    "place_threads": lambda request: request.place_threads,
    "place": lambda request: _file(request.place) if isinstance(request.place, Path) else request.place,
}
# Fields that do not affect the bundle: additional outputs, and parallelism.
WITHOUT_EFFECT = frozenset({"header", "keep_workdir", "jobs"})


def model_bytes(request: Request) -> int:
    """Return the size of the model files with their external data."""
    files = {file for model in request.models for file in _files(model) if file.is_file()}
    return sum(file.stat().st_size for file in files)


def _backend(target: Target) -> dict[str, Any]:
    """Return the dependencies of a backend besides its Target: files it names, and the backend's code."""
    backend = find_backend(target.kind)
    third_party = distribution(target.kind)
    return {
        "files": [[str(path), _file(path)] for path in backend.inputs(target)]
        if isinstance(backend, FileReader)
        else [],
        "distribution": third_party,
        "code": _code(type(backend).__module__)
        if third_party
        else None,  # its version may not change during development
    }


def _code(module: str) -> str | None:
    """Return the hash of the top-level package or module that contains ``module``."""
    top = sys.modules[module.partition(".")[0]]
    if hasattr(top, "__path__"):
        return digest([digest_of_folder(Path(place), "*") for place in top.__path__])
    file = getattr(top, "__file__", None)
    return _file(Path(file)) if file else None


def _file(path: Path) -> str:
    return sha256_of_file(path) if path.is_file() else f"missing: {path}"


def package_versions() -> dict[str, str]:
    """Return the versions of the packages that affect results, of those that are installed."""
    versions = {}
    for name in DISTRIBUTIONS:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return versions


def model_files(path: Path) -> dict[str, Any]:
    """Return the hashes of a model file and of its external data files."""
    return {
        str(file.relative_to(path.parent)): sha256_of_file(file) if file.is_file() else "missing"
        for file in _files(path)
    }


def _files(path: Path) -> list[Path]:
    """Return a model file and its external data files."""
    locations = sorted(_external_locations(path)) if path.suffix == ".onnx" else []
    return [path, *(path.parent / location for location in locations)]


def _external_locations(path: Path) -> set[str]:
    # Every external data entry contains the key "location": a file without it needs no parsing, so no onnx.
    if path.stat().st_size == 0:
        return set()
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        if content.find(b"location") < 0:
            return set()
    import onnx
    from google.protobuf.message import DecodeError

    try:
        model = onnx.load(path, load_external_data=False)
    except DecodeError:
        return set()  # importing it will report this
    tensors = [*model.graph.initializer, *(a.t for n in model.graph.node for a in n.attribute if a.HasField("t"))]
    return {entry.value for tensor in tensors for entry in tensor.external_data if entry.key == "location"}
