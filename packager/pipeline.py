"""``build``: the stages in order, from a model file to a sealed bundle.

``import -> lower -> plan -> compile per backend -> render and link -> seal``. Each stage is one function that takes a
frozen value and returns the next (``packager.ir``). Modules that need TVM are imported when a stage runs, so that a
build whose result is in the cache starts none of it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packager import cache_key
from packager.cache import Cache
from packager.errors import UsageError
from packager.frontends import check_suffix
from packager.frontends.dims import DimRequest, make_request
from packager.outputs import Outputs, work_folder
from packager.targets import TargetList, parse_targets
from packager.toolchain import find_toolchain

if TYPE_CHECKING:
    from packager.ir import CallPlan, LinkPlan, LoweredModel
    from packager.manifest import Manifest
    from packager.render import ExternalWeights

ENTRY_SYMBOL = "packager_bundle_v1"
# Code reaches constants by 32-bit offsets; above this size they go into a file of their own.
MAX_EMBEDDED_BYTES = 2**31 - 2**24
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Request:
    """One build, all options checked and defaults filled in."""

    model: Path
    output: Path
    targets: TargetList
    dims: Mapping[str, DimRequest]
    name: str
    header: Path | None
    prefix: str | None  # of the entry function of a static archive; None: a shared library
    weights: str | None  # "embedded", "external", or None: by size
    keep_workdir: Path | None
    jobs: int
    golden: int | Path | None

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


def build(
    model: str | os.PathLike[str],
    output: str | os.PathLike[str] | None = None,
    *,
    targets: Sequence[str | Mapping[str, Any]] = (),
    dims: Mapping[str, int | tuple[int, int]] | None = None,
    name: str | None = None,
    header: str | os.PathLike[str] | None = None,
    static: bool = False,
    prefix: str | None = None,
    weights: str | None = None,
    keep_workdir: str | os.PathLike[str] | None = None,
    jobs: int | None = None,
    cache: bool = True,
    golden: int | str | os.PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Path:
    """Compile ``model`` (.onnx, .pt2, Relax .json) into one bundle and return its path.

    ``output`` defaults to the model's name with ``.so`` in the current folder. ``dims`` fixes a symbolic dim (``8``) or
    bounds it (``(1, 32)``). ``golden`` is a seed, or an ``.npz`` file with inputs and perhaps outputs by name.
    Raises a PackagerError; a file that stood at ``output`` is then as it was.
    """
    request = _request(
        Path(model), output, targets, dims, name, header, static, prefix, weights, keep_workdir, jobs, golden
    )
    report = progress or _silent
    outputs = Outputs(request.output, request.header, request.weights_file)
    outputs.check(external=request.weights == "external")
    toolchain = find_toolchain(request.targets.host.machine)
    store = Cache.of_user(enabled=cache and request.keep_workdir is None)
    key = cache_key.of_bundle(request, toolchain) if store.enabled else ""
    entry = store.find("bundle", key) if key else None
    if entry is not None:
        report("found in the cache")
        outputs.publish(entry, request)
        return request.output
    with work_folder(request.keep_workdir) as workdir:
        _build(request, toolchain, store, workdir, report)
        if key:
            store.add("bundle", key, lambda place: outputs.keep(workdir, place))
        outputs.publish(workdir, request)
    return request.output


def _silent(_stage: str) -> None:
    """Report to nobody."""


def _build(request: Request, toolchain: Any, store: Cache, workdir: Path, progress: Progress) -> None:
    """Run the stages; leaves the sealed bundle, and external weights, in ``workdir``."""
    progress("importing the model")
    from packager import dump
    from packager.backends import BACKENDS
    from packager.frontends import load_model
    from packager.lower import lower
    from packager.plan import plan

    imported = load_model(request.model, request.dims, request.name)
    dump.imported(imported, workdir, request.keep_workdir)
    progress("lowering and scheduling")
    lowered = lower(imported)
    dump.lowered(lowered, workdir, request.keep_workdir)
    progress("planning")
    external = _is_external(request, lowered)
    call_plan = plan(lowered, packed_constants=external)
    dump.planned(call_plan, workdir, request.keep_workdir)
    target = request.targets.host
    progress(f"compiling {len(call_plan.kernels)} primitive functions")
    backend = BACKENDS[target.kind]
    unavailable = backend.probe(target)
    if unavailable:
        raise UsageError(f"Target {target.kind!r} cannot be used: {unavailable.reason}", hint=unavailable.hint)
    compiled = backend.compile(call_plan.kernels, call_plan.primitives, target, workdir)
    progress("linking")
    _link(request, toolchain, store, workdir, call_plan, (compiled,), external, progress)


def _link(
    request: Request,
    toolchain: Any,
    store: Cache,
    workdir: Path,
    call_plan: CallPlan,
    backends: tuple[Any, ...],
    external: bool,
    progress: Progress,
) -> Manifest:
    from packager.ir import LinkPlan
    from packager.link import Linker
    from packager.seal import manifest_room, seal
    from packager.weights import describe_weights

    linker = Linker(toolchain, workdir, store, request.jobs)
    weights, file = describe_weights(call_plan, request.weights_file.name, workdir, external=external)
    link_plan = LinkPlan(
        plan=call_plan,
        backends=backends,
        targets=tuple(request.targets.to_json()),
        machine=request.targets.host.machine,
        entry_symbol=request.entry_symbol,
        static=request.static,
        weights=weights,
        toolchain={**toolchain.versions, **{k: v for backend in backends for k, v in backend.toolchain.items()}},
    )
    runtime = linker.compile_runtime(static=request.static)
    room = manifest_room(link_plan)
    linked = linker.link(link_plan, runtime, manifest_room=room, external=file, golden=None)
    manifest = seal(linked, link_plan, None)
    if request.golden is None:
        return manifest
    progress("running the golden inputs")
    return _add_golden(request, linker, link_plan, runtime, room, file, linked, manifest)


def _add_golden(
    request: Request,
    linker: Any,
    link_plan: LinkPlan,
    runtime: Any,
    room: int,
    file: ExternalWeights | None,
    linked: Path,
    manifest: Manifest,
) -> Manifest:
    """Run the bundle as it is on the golden inputs, and link it again with them and its outputs inside."""
    from packager.golden import make_golden
    from packager.seal import seal

    assert request.golden is not None
    image, record = make_golden(linked, manifest, request.golden)
    linked = linker.link(link_plan, runtime, manifest_room=room, external=file, golden=image)
    return seal(linked, link_plan, record)


def _is_external(request: Request, lowered: LoweredModel) -> bool:
    if request.weights is not None:
        return request.weights == "external"
    return sum(array.nbytes for array in lowered.constants.values()) > MAX_EMBEDDED_BYTES


def _request(
    model: Path,
    output: str | os.PathLike[str] | None,
    targets: Sequence[str | Mapping[str, Any]],
    dims: Mapping[str, int | tuple[int, int]] | None,
    name: str | None,
    header: str | os.PathLike[str] | None,
    static: bool,
    prefix: str | None,
    weights: str | None,
    keep_workdir: str | os.PathLike[str] | None,
    jobs: int | None,
    golden: int | str | os.PathLike[str] | None,
) -> Request:
    check_suffix(model)
    if static != (prefix is not None):
        raise UsageError("--static and --prefix go together", hint="for example: --static --prefix mnist")
    if prefix is not None and not re.fullmatch(r"[A-Za-z_]\w*", prefix, flags=re.ASCII):
        raise UsageError(f"--prefix {prefix!r} is not a C identifier")
    if weights not in (None, "embedded", "external"):
        raise UsageError(f"--weights {weights!r} is unknown", hint="valid: embedded, external")
    if jobs is not None and jobs < 1:
        raise UsageError(f"--jobs {jobs}: at least 1")
    if isinstance(golden, str) and re.fullmatch(r"[0-9]{1,18}", golden):
        golden = int(golden)
    requests = {
        key: make_request(key, *(value if isinstance(value, tuple) else (value, value)))
        for key, value in (dims or {}).items()
    }
    default = Path(f"lib{prefix}.a" if static else f"{model.stem}.so")
    return Request(
        model=model,
        output=Path(output) if output is not None else default,
        targets=parse_targets(targets),
        dims=requests,
        name=name or model.stem,
        header=Path(header) if header is not None else None,
        prefix=prefix,
        weights=weights,
        keep_workdir=Path(keep_workdir) if keep_workdir is not None else None,
        jobs=jobs or os.cpu_count() or 1,
        golden=Path(golden) if isinstance(golden, str | os.PathLike) else golden,
    )
