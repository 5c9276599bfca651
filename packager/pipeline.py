"""``build``: the stages in order, from a model file to a sealed bundle.

``import -> lower -> plan -> compile per backend -> render and link -> seal``. Each stage is one function that takes a
frozen value and returns the next (``packager.ir``). Modules that need TVM are imported when a stage runs, so that a
build whose result is in the cache starts none of it.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packager import cache_key
from packager.cache import Cache
from packager.doctor import require_build_packages
from packager.errors import UsageError
from packager.outputs import Outputs, results, work_folder
from packager.request import Request, make_build_request
from packager.toolchain import Toolchain, find_toolchain

if TYPE_CHECKING:
    from packager.ir import BackendOutput, CallPlan, LinkPlan, LoweredModel
    from packager.link import Linker

# Code reaches constants by 32-bit offsets; above this size they go into a file of their own.
MAX_EMBEDDED_BYTES = 2**31 - 2**24
Progress = Callable[[str], None]


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
    request = make_build_request(
        Path(model), output, targets, dims, name, header, static, prefix, weights, keep_workdir, jobs, golden
    )
    report = progress or _silent
    outputs = Outputs(request.output, request.header, request.weights_file)
    outputs.check(external=request.weights == "external")
    require_build_packages()
    toolchain = find_toolchain(request.targets.host.machine)
    store = Cache.of_user(enabled=cache and request.keep_workdir is None)
    key = cache_key.of_bundle(request, toolchain) if store.enabled else ""
    with work_folder(request.keep_workdir) as workdir:
        if key and store.fetch("bundle", key, workdir):
            report("found in the cache")
        else:
            _build(request, toolchain, store, workdir, report)
            if key:
                store.add("bundle", key, results(workdir))
        outputs.publish(workdir, request)
    return request.output


def _silent(_stage: str) -> None:
    """Report to nobody."""


def _build(request: Request, toolchain: Toolchain, store: Cache, workdir: Path, progress: Progress) -> None:
    """Run the stages; leaves the sealed bundle, and external weights, in ``workdir``."""
    progress("importing the model")
    from packager import dump
    from packager.frontends import load_model
    from packager.link import Linker
    from packager.lower import lower
    from packager.plan import plan
    from packager.seal import seal

    imported = load_model(request.model, request.dims, request.name)
    dump.imported(imported, workdir, request.keep_workdir)
    progress("lowering and scheduling")
    lowered = lower(imported)
    dump.lowered(lowered, workdir, request.keep_workdir)
    progress("planning")
    external = _has_external_weights(request, lowered)
    call_plan = plan(lowered, packed_constants=external)
    dump.planned(call_plan, workdir, request.keep_workdir)
    progress(f"compiling {len(call_plan.kernels)} primitive functions")
    compiled = _compile(request, call_plan, workdir)
    progress("linking")
    linker = Linker(toolchain, workdir, store, request.jobs)
    link_plan = _plan_link(request, call_plan, compiled, linker, external=external)
    linked = linker.link(link_plan, golden=None)
    manifest = seal(linked, link_plan, golden=None)
    if request.golden is not None:
        from packager.golden import make_golden

        progress("running the golden inputs")
        image, record = make_golden(linked, manifest, request.golden)
        seal(linker.link(link_plan, golden=image), link_plan, golden=record)


def _has_external_weights(request: Request, lowered: LoweredModel) -> bool:
    if request.weights is not None:
        return request.weights == "external"
    return sum(array.nbytes for array in lowered.constants.values()) > MAX_EMBEDDED_BYTES


def _compile(request: Request, call_plan: CallPlan, workdir: Path) -> tuple[BackendOutput, ...]:
    """Let the host's backend compile all kernels."""
    from packager.backends import BACKENDS

    target = request.targets.host
    backend = BACKENDS[target.kind]
    unavailable = backend.probe(target)
    if unavailable:
        raise UsageError(f"Target {target.kind!r} cannot be used: {unavailable.reason}", hint=unavailable.hint)
    return (backend.compile(call_plan.kernels, call_plan.primitives, target, workdir),)


def _plan_link(
    request: Request, call_plan: CallPlan, compiled: tuple[BackendOutput, ...], linker: Linker, *, external: bool
) -> LinkPlan:
    """Gather everything that goes into the linked file, and reserve the room for its manifest."""
    from packager.ir import LinkPlan
    from packager.seal import manifest_room
    from packager.weights import describe_weights

    weights, weights_file = describe_weights(call_plan, request.weights_file.name, linker.workdir, external=external)
    toolchain = dict(linker.toolchain.versions)
    for output in compiled:
        toolchain |= output.toolchain
    link_plan = LinkPlan(
        plan=call_plan,
        backends=compiled,
        runtime=linker.compile_runtime(static=request.static),
        targets=tuple(request.targets.to_json()),
        machine=request.targets.host.machine,
        entry_symbol=request.entry_symbol,
        static=request.static,
        weights=weights,
        weights_file=weights_file,
        toolchain=toolchain,
        manifest_room=0,
    )
    return dataclasses.replace(link_plan, manifest_room=manifest_room(link_plan))
