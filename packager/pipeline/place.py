"""Place a prepared model: greedily, with all alternatives to measure, or as records of measurements say."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from packager.backends.base import Context, Target
from packager.backends.registry import distribution
from packager.bundle.hashing import digest, digest_of_folder
from packager.bundle.tuning_records import chosen_alternatives, find_placement, read_records
from packager.ir.model import PreparedModel
from packager.pipeline.cache_key import package_versions
from packager.pipeline.request import MAX_ALTERNATIVES, Request
from packager.placement.choices.partition import Choose, Choosing, Region, every_alternative, partition_choices
from packager.placement.place import Placement, compile_with, partition
from packager.resources import PACKAGE, folder
from packager.version import __version__

MakeContext = Callable[[Target], Context]


def place(request: Request, prepared: PreparedModel, make_context: MakeContext) -> Placement:
    """Place a prepared model as the request says. Raises BackendError, UsageError and any error of a backend."""
    targets, compile_partitions = request.targets.specialized, compile_with(make_context)
    if request.place == "greedy":
        return partition(prepared, targets, compile_partitions)
    choosing = choosing_of(request)
    if request.place == "trial":
        return partition_choices(prepared, choosing, compile_partitions, every_alternative, "trial")
    choose = _recorded(Path(request.place), choosing.revision)
    return partition_choices(prepared, choosing, compile_partitions, choose, "records")


def choosing_of(request: Request) -> Choosing:
    """Return what decides which alternatives there are; records may name any of them."""
    return Choosing(
        targets=request.targets.specialized,
        generator=request.targets.generator.kind,
        device=request.targets.device,
        revision=revision_of(request),
        alternatives=MAX_ALTERNATIVES if isinstance(request.place, Path) else request.alternatives,
    )


def _recorded(path: Path, revision: str) -> Choose:
    """Return a function that chooses as a file of records says, and greedily where that knows no other alternative."""

    def choose(model: str, regions: Sequence[Region]) -> list[list[int]]:
        placement = find_placement(read_records([path]), model, revision)
        names = {region.problem: [way.name for way in region.alternatives] for region in regions}
        measured = {r.problem for r in regions if r.layouts > 1} | placement.choices.keys()
        known = {problem: ways for problem, ways in names.items() if problem in measured}
        chosen = chosen_alternatives(placement, known)
        return [[names[r.problem].index(chosen[r.problem])] if r.problem in chosen else [r.greedy] for r in regions]

    return choose


def revision_of(request: Request) -> str:
    """Return what measurements hold for: the Targets' attributes, and the code of their backends.

    That is a hash for packager's own, and the version of other people's.
    """
    parts = [f"packager {__version__}", f"tvm {package_versions()['apache-tvm']}"]
    for target in (request.targets.generator, *request.targets.specialized):
        parts.append(f"{target.to_text(paths=False)} ({distribution(target.kind) or _code_of(target.kind)})")
    return ", ".join(parts)


def _code_of(kind: str) -> str:
    """Return a hash of the code of one of packager's backends, and of its templates."""
    places = [PACKAGE / "backends" / kind, folder("templates") / kind]
    return digest([digest_of_folder(place, "*.*") for place in places if isinstance(place, Path) and place.is_dir()])[
        :12
    ]
