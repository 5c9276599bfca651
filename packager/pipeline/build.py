"""``build``: run the stages in order, from a model file to a sealed bundle.

``import -> prepare -> partition -> lower -> plan -> generate -> render and link -> seal``. Each stage is one function
that takes a frozen value and returns the next (``ir.model``). Modules that need TVM are imported when a stage runs, so
that a cache hit does not load TVM.
"""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from packager.backends.base import CodeGenerator, Context
from packager.backends.registry import blamed, find_backend
from packager.codegen.cache import Cache
from packager.codegen.remote import Remote
from packager.codegen.timings import Timings, recorded
from packager.codegen.toolchain import Toolchain, find_toolchain
from packager.errors import UsageError, listed
from packager.pipeline import cache_key
from packager.pipeline.copy_libraries import copy_libraries
from packager.pipeline.import_models import import_model
from packager.pipeline.many.ray_calls import opened_remote
from packager.pipeline.options import BuildOptions, takes_options
from packager.pipeline.publish import Outputs, results, work_folder
from packager.pipeline.request import Request, make_build_request
from packager.pipeline.shared_caches import opened_cache
from packager.progress import received, report, warn
from packager.targets.availability import require_build_packages
from packager.targets.target_list import require_available

if TYPE_CHECKING:
    from packager.backends.base import Target
    from packager.ir.call_plan import CallPlan
    from packager.ir.model import ImportedModel
    from packager.ir.primitives import BackendOutput
    from packager.placement.place import Placement
    from packager.placement.placer import Verdict


@takes_options(BuildOptions)
def build(options: BuildOptions) -> Path:
    """Compile a model into one bundle and return its path.

    Several models become the entries of one bundle, which share constants and states; each uses the ``dims`` and
    ``states`` that it has. A dim is a size (``8``), bounds (``(1, 32)``) or bucketed sizes
    (``packager.Buckets(128, 256)``); ``freeze`` maps names to arrays, numbers or lists of numbers, ``states`` inputs to
    outputs. Raises a PackagerError; an existing file at ``output`` is then unchanged.
    """
    with recorded() as timings, received(options.progress):
        path = _build_bundle(options, timings)
    if options.timings is not None:
        options.timings(timings)
    return path


def _build_bundle(options: BuildOptions, timings: Timings) -> Path:
    request = make_build_request(options)
    if request.more_models and options.output is None and not request.static:
        raise UsageError("several models make one bundle, which needs a name", hint="give it one: -o NAME.so")
    outputs = Outputs(request.output, request.header, request.weights_file)
    outputs.check(external=request.weights == "external")
    require_build_packages()
    toolchain = find_toolchain(request.targets.host.machine)
    with opened_cache(options.shared_cache, enabled=options.cache) as store:
        _build_or_fetch(request, outputs, toolchain, store, timings, options.on)
    if options.copy_libraries:
        copy_libraries(request.output)
    return request.output


def _build_or_fetch(
    request: Request, outputs: Outputs, toolchain: Toolchain, store: Cache, timings: Timings, cluster: str | None
) -> None:
    # A kept work folder needs a complete build; its objects may still come from the cache.
    cached = (
        store.enabled and request.keep_workdir is None and cache_key.model_bytes(request) <= cache_key.MAX_CACHED_BYTES
    )
    key = cache_key.of_bundle(request, toolchain) if cached else ""
    with work_folder(request.keep_workdir) as workdir:
        if key and store.fetch("bundle", key, workdir):
            report("found in the cache")
        else:
            with opened_remote(cluster) as remote:
                _build(request, toolchain, store, workdir, timings, remote)
            if key:
                store.add("bundle", key, results(workdir))
            store.trim()
        outputs.publish(workdir, request)


@contextmanager
def _stage(timings: Timings, name: str, text: str = "") -> Iterator[None]:
    """Report a stage, unless it says what it does by itself, and time the block."""
    if text:
        report(text)
    with timings.stage(name):
        yield


def _build(
    request: Request,
    toolchain: Toolchain,
    store: Cache,
    workdir: Path,
    timings: Timings,
    remote: Remote | None = None,
) -> None:
    """Run the stages; write the sealed bundle, and external weights, to ``workdir``."""
    report("checking the Targets")
    require_available(request.targets)
    from packager.link.libraries.prepare import check_libraries
    from packager.link.linker import Linker
    from packager.link.seal import seal
    from packager.link.weights import are_external
    from packager.lower.lowering import lower
    from packager.pipeline import dump
    from packager.pipeline.make_link_plan import plan_link
    from packager.pipeline.place import place
    from packager.placement.preparation import preparation_for
    from packager.plan.planner import plan
    from packager.transforms.prepare import prepare

    with _stage(timings, "import", "importing the model"):
        imported = import_model(request)
    dump.imported(imported, workdir, request.keep_workdir)
    _report_import(imported)
    specialized, device = request.targets.specialized, request.targets.device
    with _stage(timings, "prepare", "preparing the model"):
        prepared = prepare(imported, preparation_for(specialized), device)
    make_context = _contexts(request, toolchain, store, workdir, remote)
    with _stage(timings, "partition", _partitioning(specialized)):
        placement = place(request, prepared, make_context)
    _report_partitions(placement)
    dump.partitioned(placement, request.targets.generator.kind, workdir, request.keep_workdir)
    with _stage(timings, "lower", "lowering"):
        lowered = lower(placement.model, device)
    dump.lowered(lowered, workdir, request.keep_workdir)
    external = are_external(lowered, request.weights, static=request.static)
    with _stage(timings, "plan", "planning"):
        call_plan = plan(lowered, packed_constants=external)
    dump.planned(call_plan, workdir, request.keep_workdir)
    with _stage(timings, "generate"):
        compiled = (*placement.model.backends, _generate(request, call_plan, make_context))
    linker = Linker(toolchain, workdir, store, request.jobs)
    with _stage(timings, "link", "linking"):
        cpus = request.targets.host.cpus if device == "cpu" else ()
        libraries = check_libraries(compiled, toolchain, workdir, static=request.static, cpus=cpus)
        link_plan = plan_link(request, call_plan, compiled, libraries, linker, external=external)
        linked = linker.link(link_plan, golden=None)
    with _stage(timings, "seal"):
        manifest = seal(linked, link_plan, golden=None)
    if request.golden is not None:
        from packager.pipeline.golden import halves_in, make_golden

        with _stage(timings, "golden", "running the golden inputs"):
            reference = _reference(request, workdir, store) or linked.path
            image, record = make_golden(reference, manifest, request.golden, halves_in(imported))
            seal(linker.link(link_plan, golden=image), link_plan, golden=record)
    dump.timed(timings, workdir, request.keep_workdir)


def _reference(request: Request, workdir: Path, store: Cache) -> Path | None:
    """Build the float32 model for this machine's CPU, as a reference for bundles that need a GPU or use half precision.

    Returns None if the bundle is its own reference.
    """
    if request.targets.device == "cpu" and request.precision is None:
        return None
    from packager.targets.target_list import parse_targets

    reference = workdir / "reference.so"
    plain = dataclasses.replace(
        request,
        output=reference,
        targets=parse_targets([]),
        precision=None,
        place="greedy",  # what was measured is of the request's Targets and precision
        place_device=None,
        place_threads=None,
        golden=None,
        header=None,
        prefix=None,
        keep_workdir=None,
    )
    with received(None), work_folder(None) as folder:
        _build(plain, find_toolchain(plain.targets.host.machine), store, folder, Timings())
        Outputs(reference, None, plain.weights_file).publish(folder, plain)
    return reference


def _report_import(model: ImportedModel) -> None:
    for warning in model.warnings:
        warn(warning)
    for entry in model.signature.every_entry():
        if entry.batches.count != 1:
            report(f"a run is {entry.batches.count} micro-batches")


def _partitioning(targets: Sequence[Target]) -> str:
    return f"partitioning for {', '.join(target.kind for target in targets)}" if targets else ""


def _report_partitions(placement: Placement) -> None:
    record = placement.model.placement
    if record is not None and record.rule == "trial":
        alternatives = sum(len(choice.alternatives) for choice in record.choices)
        report(f"{len(record.choices)} choices of {alternatives} alternatives")
        if not record.choices:
            warn("a trial of one Target has nothing to choose from: add others with -t")
    for output in placement.model.backends:
        report(_count_partitions(placement, output.kind))
        for warning in output.warnings:
            warn(f"{output.kind}: {warning}")
    for verdict in placement.verdicts:
        if verdict.given_back:
            warn(_given_back(verdict))


def _given_back(verdict: Verdict) -> str:
    """Return what a backend's pattern matched, but its compilation gave back, with its source nodes and the reason."""
    part = verdict.partition
    if verdict.left_out:
        left_out = (operator for place in verdict.left_out for operator in part.composites[place].ops)
        return f"{verdict.backend} left out {listed(left_out)} of {len(part.composites)} operators: {verdict.reason}"
    operators = (operator for composite in part.composites for operator in composite.ops)
    nodes = dict.fromkeys(node for site in part.sites for node in site.nodes)
    return f"{verdict.backend} gave back {listed(operators)} ({listed(nodes)}): {verdict.reason}"


def _count_partitions(placement: Placement, kind: str) -> str:
    """Return the number of partitions and call sites of a backend, as text."""
    taken = [verdict.partition for verdict in placement.verdicts if verdict.backend == kind and not verdict.reason]
    return f"{kind}: {len(taken)} partitions at {sum(len(part.sites) for part in taken)} call sites"


def _contexts(
    request: Request, toolchain: Toolchain, store: Cache, workdir: Path, remote: Remote | None
) -> Callable[[Target], Context]:
    """Return a function that creates the context of a backend, with its own work folder."""

    def make_context(target: Target) -> Context:
        folder = workdir / target.kind
        shutil.rmtree(folder, ignore_errors=True)  # of partitions that were placed again: see placement.choices
        folder.mkdir()
        return Context(folder, toolchain, request.targets.base_of(target), request.jobs, store, remote)

    return make_context


def _generate(request: Request, call_plan: CallPlan, make_context: Callable[[Target], Context]) -> BackendOutput:
    """Compile the kernels, which no other backend took, with the device's code generator."""
    from packager.ir.primitives import Kernel

    target = request.targets.generator
    generator = find_backend(target.kind)
    assert isinstance(generator, CodeGenerator)  # a least specialized Target has one
    kernels = [function for function in call_plan.functions if isinstance(function, Kernel)]
    with blamed(target.kind):
        return generator.generate(kernels, target, make_context(target))
