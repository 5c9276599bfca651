"""Validate the options of a build and fill in defaults."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from packager.bundle.buckets import Buckets, check_count
from packager.bundle.dtypes import PRECISIONS
from packager.bundle.manifest import ENTRY_SYMBOL
from packager.errors import UsageError
from packager.frontends.dims import DimRequest, check_argument, named_dims
from packager.frontends.freeze import frozen_arrays
from packager.frontends.load import check_suffix
from packager.pipeline.options import BuildOptions, StrPath, paths_of
from packager.targets.target_list import DEFAULT_TARGETS, TargetList, parse_targets, with_attribute

if TYPE_CHECKING:
    from packager.backends.base import Target
    from packager.bundle.arrays import Array

WEIGHTS = ("embedded", "external")
PlacementRule = Literal["greedy", "trial", "shipped"]
PLACEMENTS: tuple[PlacementRule, ...] = ("greedy", "trial", "shipped")
MAX_ALTERNATIVES = 64


@dataclass(frozen=True)
class Request:
    """The validated options of a build, with defaults filled in."""

    model: Path
    output: Path
    targets: TargetList
    dims: Mapping[str, DimRequest | Buckets]
    name: str
    header: Path | None
    prefix: str | None  # of the entry function of a static archive; None: a shared library
    weights: str | None  # "embedded", "external", or None: by size
    keep_workdir: Path | None
    jobs: int
    golden: int | Path | None
    entry: str | None  # the function of a Relax module that is the model
    constants: Path | None  # a file whose tensors replace the model's constants of the same names
    precision: str | None = None  # "fp16", "bf16", or None: the model's own
    frozen: Mapping[str, Array] = field(default_factory=dict)  # inputs that become constants
    states: Mapping[str, str] = field(default_factory=dict)  # inputs that the session keeps, and their next values
    more_models: tuple[Path, ...] = ()  # for further entries of the bundle
    place: PlacementRule | Path = "greedy"  # or a file of records
    place_device: str | None = None  # of the records' placements
    place_threads: int | None = None
    alternatives: int = 4  # of a region in a trial

    @property
    def models(self) -> tuple[Path, ...]:
        """The model files, in the order of the bundle's entries."""
        return (self.model, *self.more_models)

    @property
    def static(self) -> bool:
        """Whether the bundle is an archive."""
        return self.prefix is not None

    @property
    def entry_symbol(self) -> str:
        """The one symbol that the bundle exports."""
        return f"{self.prefix}_bundle_v1" if self.prefix else ENTRY_SYMBOL

    @property
    def weights_file(self) -> Path:
        """Where external weights would go."""
        return self.output.with_suffix(".safetensors")


def make_build_request(options: BuildOptions) -> Request:
    """Check the options of a build and fill in defaults. Raises UsageError."""
    first, *more = paths_of(options.model)
    for file in (first, *more):
        check_suffix(file)
    if more:
        _check_several([first, *more], options)
    _check_values(options)
    prefix, golden = options.prefix, options.golden
    if isinstance(golden, str) and re.fullmatch(r"[0-9]{1,18}", golden):
        golden = int(golden)
    output = _path(options.output)
    dims = named_dims({key: check_argument(key, value) for key, value in (options.dims or {}).items()})
    check_count(buckets_of(dims))
    place = _place(options)
    return Request(
        model=first,
        more_models=tuple(more),
        output=output or Path(f"lib{prefix}.a" if prefix else f"{first.stem}.so"),
        targets=_targets(options, place),
        dims=dims,
        name=options.name or (output.stem if more and output else first.stem),
        header=_path(options.header),
        prefix=prefix,
        weights=options.weights,
        keep_workdir=_path(options.keep_workdir),
        jobs=options.jobs or os.cpu_count() or 1,
        golden=golden if golden is None or isinstance(golden, int) else Path(golden),
        entry=options.entry,
        constants=_path(options.constants),
        precision=options.precision,
        states=dict(options.states or {}),
        frozen=frozen_arrays(options.freeze or {}),
        place=place,
        place_device=options.place_device,
        place_threads=options.place_threads,
        alternatives=options.alternatives,
    )


def _place(options: BuildOptions) -> PlacementRule | Path:
    """Return the rule of placement, or the file of records. Raises UsageError if that is no file."""
    given = options.place
    if given not in PLACEMENTS and not Path(given).is_file():
        raise UsageError(
            f"--place {os.fspath(given)}: no such file",
            hint=f"give {', '.join(PLACEMENTS)}, or records of packager tune",
        )
    for rule in PLACEMENTS:
        if given == rule != "shipped" and (options.place_device, options.place_threads) != (None, None):
            raise UsageError("--place-device and --place-threads are for records", hint="give a file with --place")
        if given == rule:
            return rule
    return Path(given)


def buckets_of(dims: Mapping[str, DimRequest | Buckets]) -> dict[str, tuple[int, ...]]:
    """Return the dims that have buckets, with their sizes."""
    return {name: request.sizes for name, request in dims.items() if isinstance(request, Buckets)}


def _check_values(options: BuildOptions) -> None:
    """Raise UsageError for invalid values."""
    if options.static != (options.prefix is not None):
        raise UsageError("--static and --prefix go together", hint="for example: --static --prefix mnist")
    if options.static and options.copy_libraries:
        raise UsageError(
            "--copy-libraries is for shared bundles: an archive has no folder when its program runs",
            hint="put the libraries where the program's library_path says",
        )
    if options.prefix is not None and not re.fullmatch(r"[A-Za-z_]\w*", options.prefix, flags=re.ASCII):
        raise UsageError(f"--prefix {options.prefix!r} is not a C identifier")
    for flag, value, valid in (("weights", options.weights, WEIGHTS), ("precision", options.precision, PRECISIONS)):
        if value not in (None, *valid):
            raise UsageError(f"--{flag} {value!r} is unknown", hint=f"valid: {', '.join(valid)}")
    if options.output is not None and not Path(options.output).name:
        raise UsageError(f"{options.output}: is a folder", hint="name a file")
    if options.jobs is not None and options.jobs < 1:
        raise UsageError(f"--jobs {options.jobs}: at least 1")
    if options.place_threads is not None and options.place_threads < 1:
        raise UsageError(f"--place-threads {options.place_threads}: at least 1")
    if not 1 <= options.alternatives <= MAX_ALTERNATIVES:
        raise UsageError(f"--alternatives {options.alternatives}: from 1 to {MAX_ALTERNATIVES}")


def _check_several(models: Sequence[Path], options: BuildOptions) -> None:
    """Check the restrictions on bundles of several models. Raises UsageError."""
    stems, golden = [path.stem for path in models], options.golden
    if twice := next((stem for stem in stems if stems.count(stem) > 1), None):
        raise UsageError(f"two models are named {twice!r}", hint="entries are named after files: rename one of them")
    if options.constants is not None:
        raise UsageError("--constants is for a bundle of one model", hint="swap constants in sessions instead")
    if options.freeze:
        raise UsageError("--freeze is for a bundle of one model", hint="make the inputs constants in the models")
    if isinstance(golden, os.PathLike) or (isinstance(golden, str) and not golden.isdigit()):
        raise UsageError(f"--golden {golden}: of several models only a seed", hint="for example: --golden 0")


def _targets(options: BuildOptions, place: PlacementRule | Path) -> TargetList:
    """Return the Targets, modified by other options; operator libraries take precedence over all backends."""
    given = options.targets
    listed = [given] if isinstance(given, (str, Mapping)) else given
    libraries = [os.fspath(path) for path in paths_of(options.op_libraries)]
    external = [{"kind": "external", "libraries": libraries}] if libraries else []
    parsed = parse_targets([*external, *(listed or DEFAULT_TARGETS)])
    parsed.require_one_device()
    measured = () if place in PLACEMENTS else paths_of(place)  # candidates were measured together with the placement
    tuning = paths_of(options.tuning)
    if tuning and not any(map(_reads_tuning, parsed.specialized)):
        raise UsageError("--tuning is given, but no Target reads tuning records", hint="for example: -t cutlass")
    return _with_tuning(_with_cuda_home(parsed, options.cuda_home), [*measured, *tuning])


def _with_cuda_home(targets: TargetList, home: StrPath | None) -> TargetList:
    """Set the CUDA toolkit of the ``cuda`` Target. Raises UsageError if there is none."""
    if home is None:
        return targets
    generator = targets.generator
    if generator.kind != "cuda":
        raise UsageError("--cuda-home is given, but no Target is for CUDA", hint="add -t 'cuda -arch=sm_90a'")
    if generator.options.home not in ("", os.fspath(home)):
        raise UsageError(
            f"--cuda-home is {os.fspath(home)!r}, but attribute 'home' of Target 'cuda' is {generator.options.home!r}",
            hint="give one of them",
        )
    changed = dataclasses.replace(generator, options=dataclasses.replace(generator.options, home=os.fspath(home)))
    return dataclasses.replace(targets, bases=(*targets.bases[:-1], changed))


def _with_tuning(targets: TargetList, files: Sequence[Path]) -> TargetList:
    """Add tuning record files to all Targets that read them."""
    names = tuple(os.fspath(file) for file in files)
    changed = tuple(
        with_attribute(target, "tuning", (*target.options.tuning, *names), targets.base_of(target))
        if names and _reads_tuning(target)
        else target
        for target in targets.specialized
    )
    return dataclasses.replace(targets, specialized=changed)


def _reads_tuning(target: Target) -> bool:
    return hasattr(target.options, "tuning")


def _path(given: StrPath | None) -> Path | None:
    return None if given is None else Path(given)
