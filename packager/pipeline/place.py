"""Place a prepared model: greedily, with all alternatives to measure, or as records of measurements say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from packager.backends.base import Context, Target
from packager.backends.registry import distribution
from packager.bundle.hashing import digest, digest_of_folder
from packager.ir.model import PreparedModel
from packager.pipeline.cache_key import package_versions
from packager.pipeline.request import Request
from packager.placement.choices.partition import every_alternative, partition_choices
from packager.placement.place import Placement, compile_with, partition
from packager.resources import PACKAGE, folder
from packager.version import __version__

MakeContext = Callable[[Target], Context]


def place(request: Request, prepared: PreparedModel, make_context: MakeContext) -> Placement:
    """Place a prepared model as the request says. Raises BackendError, UsageError and any error of a backend."""
    targets, compile_partitions = request.targets.specialized, compile_with(make_context)
    if request.place == "greedy":
        return partition(prepared, targets, compile_partitions)
    generator, revision = request.targets.generator.kind, revision_of(request)
    assert not isinstance(request.place, Path)
    return partition_choices(prepared, targets, generator, compile_partitions, revision, every_alternative, "trial")


def revision_of(request: Request) -> str:
    """Return the revision of the code that compiles: of packager's backends by content, of others by version."""
    kinds = [request.targets.generator.kind, *(target.kind for target in request.targets.specialized)]
    parts = [f"packager {__version__}", f"tvm {package_versions()['apache-tvm']}"]
    for kind in kinds:
        parts.append(distribution(kind) or f"{kind} {_code_of(kind)}")
    return ", ".join(parts)


def _code_of(kind: str) -> str:
    """Return a hash of the code of one of packager's backends, and of its templates."""
    places = [PACKAGE / "backends" / kind, folder("templates") / kind]
    return digest([digest_of_folder(place, "*.*") for place in places if isinstance(place, Path) and place.is_dir()])[
        :12
    ]
