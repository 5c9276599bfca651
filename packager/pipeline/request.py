"""What a build is asked for: all options, checked and with their defaults filled in."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packager.bundle.buckets import Buckets, check_count
from packager.bundle.manifest import ENTRY_SYMBOL
from packager.errors import UsageError
from packager.frontends.dims import DimArgument, DimRequest, check_argument
from packager.frontends.freeze import frozen_arrays
from packager.frontends.load import check_suffix
from packager.targets.target_list import DEFAULT_TARGETS, TargetList, parse_targets, with_attribute

if TYPE_CHECKING:
    from packager.bundle.arrays import Array
PRECISIONS = ("fp16", "bf16")


@dataclass(frozen=True)
class Request:
    """One build, all options checked and defaults filled in."""

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


def make_build_request(
    model: Path | Sequence[Path],
    *,
    output: str | os.PathLike[str] | None = None,
    targets: Sequence[str | Mapping[str, Any]] = (),
    dims: Mapping[str, DimArgument] | None = None,
    name: str | None = None,
    header: str | os.PathLike[str] | None = None,
    static: bool = False,
    prefix: str | None = None,
    weights: str | None = None,
    keep_workdir: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    golden: int | str | os.PathLike[str] | None = None,
    op_libraries: Sequence[str | os.PathLike[str]] = (),
    constants: str | os.PathLike[str] | None = None,
    entry: str | None = None,
    precision: str | None = None,
    cuda_home: str | os.PathLike[str] | None = None,
    tuning: Sequence[str | os.PathLike[str]] = (),
    states: Mapping[str, str] | None = None,
    freeze: Mapping[str, Any] | None = None,
) -> Request:
    """Check the arguments of ``packager.build``. Raises UsageError."""
    first, *more = [model] if isinstance(model, Path) else model
    for file in (first, *more):
        check_suffix(file)
    if more:
        _check_several([first, *more], constants, golden, freeze)
    if static != (prefix is not None):
        raise UsageError("--static and --prefix go together", hint="for example: --static --prefix mnist")
    if prefix is not None and not re.fullmatch(r"[A-Za-z_]\w*", prefix, flags=re.ASCII):
        raise UsageError(f"--prefix {prefix!r} is not a C identifier")
    if weights not in (None, "embedded", "external"):
        raise UsageError(f"--weights {weights!r} is unknown", hint="valid: embedded, external")
    if precision not in (None, *PRECISIONS):
        raise UsageError(f"--precision {precision!r} is unknown", hint=f"valid: {', '.join(PRECISIONS)}")
    if output is not None and not Path(output).name:
        raise UsageError(f"{output}: is a folder", hint="name a file")
    if jobs is not None and jobs < 1:
        raise UsageError(f"--jobs {jobs}: at least 1")
    if isinstance(golden, str) and re.fullmatch(r"[0-9]{1,18}", golden):
        golden = int(golden)
    parsed = parse_targets([*_op_library_targets(op_libraries), *(_listed(targets, Mapping) or DEFAULT_TARGETS)])
    parsed.require_one_device()
    requests = {key: check_argument(key, value) for key, value in (dims or {}).items()}
    check_count(buckets_of(requests))
    default = Path(f"lib{prefix}.a" if static else f"{first.stem}.so")
    return Request(
        model=first,
        more_models=tuple(more),
        output=Path(output) if output is not None else default,
        targets=_with_tuning(_with_cuda_home(parsed, cuda_home), _listed(tuning, os.PathLike)),
        dims=requests,
        name=name or (Path(output).stem if more and output is not None else first.stem),
        header=Path(header) if header is not None else None,
        prefix=prefix,
        weights=weights,
        keep_workdir=Path(keep_workdir) if keep_workdir is not None else None,
        jobs=jobs or os.cpu_count() or 1,
        golden=Path(golden) if isinstance(golden, str | os.PathLike) else golden,
        entry=entry,
        constants=Path(constants) if constants is not None else None,
        precision=precision,
        states=dict(states or {}),
        frozen=frozen_arrays(freeze or {}),
    )


def buckets_of(dims: Mapping[str, DimRequest | Buckets]) -> dict[str, tuple[int, ...]]:
    """Return the dims that have buckets, with their sizes."""
    return {name: request.sizes for name, request in dims.items() if isinstance(request, Buckets)}


def _check_several(models: Sequence[Path], constants: object, golden: object, freeze: object) -> None:
    """Check what is different for several models in one bundle. Raises UsageError."""
    stems = [path.stem for path in models]
    if twice := next((stem for stem in stems if stems.count(stem) > 1), None):
        raise UsageError(f"two models are named {twice!r}", hint="entries are named after files: rename one of them")
    if constants is not None:
        raise UsageError("--constants is for a bundle of one model", hint="swap constants in sessions instead")
    if freeze:
        raise UsageError("--freeze is for a bundle of one model", hint="make the inputs constants in the models")
    if isinstance(golden, Path) or (isinstance(golden, str) and not golden.isdigit()):
        raise UsageError(f"--golden {golden}: of several models only a seed", hint="for example: --golden 0")


def _with_cuda_home(targets: TargetList, home: str | os.PathLike[str] | None) -> TargetList:
    """Return the list with the folder of the CUDA toolkit in its ``cuda`` Target. Raises UsageError if it has none."""
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


def _with_tuning(targets: TargetList, files: Sequence[str | os.PathLike[str]]) -> TargetList:
    """Return the list with files of records in all Targets that read such. Raises UsageError if none does."""
    if not files:
        return targets
    names = tuple(os.fspath(file) for file in files)
    changed = tuple(
        with_attribute(target, "tuning", (*target.options.tuning, *names), targets.base_of(target))
        if hasattr(target.options, "tuning")
        else target
        for target in targets.specialized
    )
    if changed == targets.specialized:
        raise UsageError("--tuning is given, but no Target reads tuning records", hint="for example: -t cutlass")
    return dataclasses.replace(targets, specialized=changed)


def _op_library_targets(paths: Sequence[str | os.PathLike[str]]) -> list[dict[str, Any]]:
    """Return the Target that ``--op-library`` stands for; its operators go before all else."""
    libraries = [os.fspath(path) for path in _listed(paths, os.PathLike)]
    return [{"kind": "external", "libraries": libraries}] if libraries else []


def _listed(given: Any, single: type) -> Sequence[Any]:
    """Return a list as it is, and what stands alone, a text or a ``single``, as a list of one."""
    return [given] if isinstance(given, (str, single)) else given
