"""Gathers all that a page shows: a value for each bundle, and the measurements."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from packager.deploy.report.flow import Flow, make_flows
from packager.deploy.report.functions import FunctionView, make_functions
from packager.deploy.report.measurements import Measurement, Roof, Slice
from packager.deploy.report.memory import Arena, make_arena
from packager.deploy.report.placement import ChoiceView, RecordsView, make_choices, make_records_view
from packager.deploy.report.sizes import SizesView, make_sizes
from packager.deploy.report.subjects import BuildStage, BundleSubject, Subjects, UndonePartition
from packager.deploy.verify.findings import Check, Finding, VerifyResult
from packager.version import __version__

# Backends have the same color in every report: their places in the palette. Others take the places after them.
_PALETTE = ("llvm", "ccompiler", "cuda", "cutlass", "cublas", "external", "cudnn")
Unit = Literal["bytes", "count", "flops", "ms"]


@dataclass(frozen=True)
class TableView:
    """A table of texts; empty ``columns`` have no header."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class Figure:
    """A number that sums up a bundle, None if it is not known; of two bundles the smaller one is better."""

    label: str
    value: float | None
    unit: Unit


@dataclass(frozen=True)
class BackendView:
    """What a backend does: its functions, calls and FLOPs of a run, and microseconds if measured."""

    kind: str
    color: int
    functions: int
    calls: int
    flops: int
    us: float | None
    code: int


@dataclass(frozen=True)
class Run:
    """A run: its graph and its memory."""

    flow: Flow
    arena: Arena


@dataclass(frozen=True)
class MeasuredView:
    """What was measured, and the calls of the median run in time."""

    about: str
    median_ms: float | None
    total_us: float
    slices: tuple[Slice, ...]


@dataclass(frozen=True)
class VerifyView:
    """The outcome of verify."""

    ok: bool
    checks: tuple[Check, ...]
    findings: tuple[Finding, ...]


@dataclass(frozen=True)
class BundleView:
    """All that a page shows of a bundle; ``runs`` is empty if the file has no graph."""

    name: str
    model: str
    subtitle: str
    figures: tuple[Figure, ...]
    backends: tuple[BackendView, ...]
    tables: tuple[TableView, ...]
    runs: tuple[Run, ...]
    functions: tuple[FunctionView, ...]
    choices: tuple[ChoiceView, ...]
    sizes: SizesView
    verify: VerifyView
    measured: MeasuredView | None
    stages: tuple[BuildStage, ...]
    undone: tuple[UndonePartition, ...]


@dataclass(frozen=True)
class Page:
    """A report: one bundle, two to compare, or records alone."""

    title: str
    version: str
    bundles: tuple[BundleView, ...]
    records: RecordsView | None
    peaks: Roof


@dataclass(frozen=True)
class Described:
    """A bundle with what others have found out of it: facts as tables, the outcome of verify, measured times."""

    subject: BundleSubject
    tables: tuple[TableView, ...]
    verified: VerifyResult
    measured: Measurement | None


def make_page(subjects: Subjects, described: Sequence[Described], roof: Roof) -> Page:
    """Return the page of a report."""
    placements = [one.subject.file.manifest.placement for one in described]
    models = frozenset(placement.model for placement in placements if placement is not None)
    return Page(
        title=" and ".join(one.subject.name for one in described) or "tuning records",
        version=__version__,
        bundles=tuple(_bundle(one, subjects, roof) for one in described),
        records=make_records_view(subjects.measured.records, models),
        peaks=roof,
    )


def _bundle(one: Described, subjects: Subjects, roof: Roof) -> BundleView:
    bundle, graph, measured = one.subject.file, one.subject.graph, one.measured
    manifest = bundle.manifest
    functions = make_functions(manifest, bundle.elf, measured, roof, subjects.measured.records)
    flows = make_flows(manifest, graph, measured) if graph else ()
    runs = tuple(
        Run(flow, make_arena(manifest, run)) for flow, run in zip(flows, graph.runs if graph else (), strict=True)
    )
    needs = manifest.requirements
    where = f"CUDA {needs.cuda.describe()}" if needs.cuda else f"{needs.machine}, {needs.os}"
    return BundleView(
        name=one.subject.name,
        model=manifest.model.name,
        subtitle=f"{manifest.model.format} model · {where} · {manifest.form} library · packager "
        f"{manifest.packager_version}",
        figures=_figures(one, runs, functions),
        backends=_backends(one, functions),
        tables=one.tables,
        runs=runs,
        functions=functions,
        choices=make_choices(manifest, subjects.measured),
        sizes=make_sizes(bundle),
        verify=VerifyView(one.verified.ok, one.verified.checks, one.verified.findings),
        measured=None
        if measured is None
        else MeasuredView(measured.about, measured.median_ms, measured.total_us, measured.slices),
        stages=one.subject.stages,
        undone=one.subject.undone,
    )


def _figures(one: Described, runs: Sequence[Run], functions: Sequence[FunctionView]) -> tuple[Figure, ...]:
    manifest, measured = one.subject.file.manifest, one.measured
    flops = {function.symbol: function.flops for function in functions}
    nodes = [node for run in runs[:1] for node in run.flow.nodes if node.call is not None]
    calls = len(nodes) if runs else sum(function.calls for function in functions)
    work = sum(flops.get(node.symbol, 0) for node in nodes) if runs else sum(f.flops * f.calls for f in functions)
    median = None if measured is None else measured.median_ms
    return (
        Figure("median run", median, "ms"),
        Figure("sum of its calls", None if measured is None else measured.total_us / 1e3, "ms"),
        Figure("file", manifest.sizes.file, "bytes"),
        Figure("weights", manifest.weights.bytes, "bytes"),
        Figure("code", manifest.sizes.code, "bytes"),
        Figure("arena per session", manifest.arena_bytes, "bytes"),
        Figure("calls per run", calls, "count"),
        Figure("functions", len(functions), "count"),
        Figure("work per run", work, "flops"),
    )


def _backends(one: Described, functions: Sequence[FunctionView]) -> tuple[BackendView, ...]:
    kinds = [backend.kind for backend in one.subject.file.manifest.backends]
    others = [kind for kind in kinds if kind not in _PALETTE]
    views = []
    for kind in kinds:
        own = [function for function in functions if function.backend == kind]
        times = [function.us for function in own if function.us is not None]
        views.append(
            BackendView(
                kind,
                (_PALETTE.index(kind) if kind in _PALETTE else len(_PALETTE) + others.index(kind)),
                len(own),
                sum(function.calls for function in own),
                sum(function.flops * function.calls for function in own),
                sum(times) if times else None,
                sum(function.code for function in own),
            )
        )
    return tuple(views)
