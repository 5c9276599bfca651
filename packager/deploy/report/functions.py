"""What is known of each primitive function: work, time, rate, code, candidates."""

from __future__ import annotations

from dataclasses import dataclass

from packager.bundle.elf.file import ElfImage
from packager.bundle.isa.levels import clone_symbol
from packager.bundle.manifest import Manifest, Primitive
from packager.bundle.selection import Selection
from packager.bundle.tuning_records import Record, Records
from packager.deploy.measure.profile import times_of_work
from packager.deploy.report.flow import operators_text
from packager.deploy.report.measurements import Measurement, Roof


@dataclass(frozen=True)
class CandidateView:
    """A candidate: whether the bundle uses it, and by how much a call is slower than with the fastest, if measured."""

    name: str
    used: bool
    slower_us: float | None
    error_us: float | None


@dataclass(frozen=True)
class CandidatesView:
    """The candidates of a function for its problem, and the device that they were measured on, if they were."""

    problem: str
    device: str
    stale: bool
    candidates: tuple[CandidateView, ...]


@dataclass(frozen=True)
class FunctionView:
    """A primitive function. FLOPs and bytes are of a call; ``us`` is of all its calls in a run.

    ``roof`` is the share of the attainable rate that it reaches, if peaks are known. ``code`` are the bytes of its
    code at all CPU levels.
    """

    symbol: str
    backend: str
    composite: str
    label: str
    ops: tuple[str, ...]
    nodes: tuple[str, ...]
    calls: int
    flops: int
    bytes_read: int
    bytes_written: int
    us: float | None
    share: float | None
    gflops_per_second: float | None
    gb_per_second: float | None
    roof: float | None
    code: int
    levels: tuple[str, ...]
    libraries: tuple[str, ...]
    candidates: tuple[CandidatesView, ...]


def make_functions(
    manifest: Manifest, elf: ElfImage, measured: Measurement | None, roof: Roof, records: Records
) -> tuple[FunctionView, ...]:
    """Return the functions, those that take most time or work first."""
    work = times_of_work(manifest, measured.times if measured else {})
    selections = {selection.symbol: selection for selection in manifest.selection}
    found = [
        _function(kind, primitive, elf, measured, work.get(primitive.symbol), roof, selections, records)
        for kind, primitive in manifest.primitives()
    ]
    return tuple(sorted(found, key=lambda item: (-(item.us or 0.0), -item.flops * item.calls, item.symbol)))


def _function(
    kind: str,
    primitive: Primitive,
    elf: ElfImage,
    measured: Measurement | None,
    work_us: float | None,
    roof: Roof,
    selections: dict[str, Selection],
    records: Records,
) -> FunctionView:
    us = measured.times.get(primitive.symbol) if measured else None
    calls = primitive.calls
    nbytes = primitive.bytes_read + primitive.bytes_written
    attainable = roof.attainable(primitive.flops * calls, nbytes * calls)
    names = [clone_symbol(primitive.symbol, level) for level in ("", *primitive.levels)]
    selection = selections.get(primitive.symbol)
    return FunctionView(
        symbol=primitive.symbol,
        backend=kind,
        composite=primitive.composite or "",
        label=operators_text(primitive),
        ops=primitive.ops,
        nodes=primitive.nodes,
        calls=calls,
        flops=primitive.flops,
        bytes_read=primitive.bytes_read,
        bytes_written=primitive.bytes_written,
        us=us,
        share=us / measured.total_us if measured and us is not None and measured.total_us else None,
        gflops_per_second=primitive.flops * calls / work_us / 1e3 if work_us else None,
        gb_per_second=nbytes * calls / work_us / 1e3 if work_us else None,
        roof=attainable / work_us if attainable is not None and work_us else None,
        code=sum(elf.symbols[name].size for name in names if name in elf.symbols),
        levels=primitive.levels,
        libraries=primitive.libraries,
        candidates=_candidates(selection, records) if selection else (),
    )


def _candidates(selection: Selection, records: Records) -> tuple[CandidatesView, ...]:
    """Return the candidates for each device that has records of the problem; once without times if none has."""
    used = selection.candidates[selection.chosen]
    found = [record for record in records.records if record.problem == selection.problem]
    return tuple(_measured(selection, record, used) for record in found) or (
        CandidatesView(
            selection.problem,
            "",
            False,
            tuple(CandidateView(name, name == used, None, None) for name in selection.candidates),
        ),
    )


def _measured(selection: Selection, record: Record, used: str) -> CandidatesView:
    times = {timing.candidate: timing for timing in record.timings}
    names = [*times, *(name for name in selection.candidates if name not in times)]
    return CandidatesView(
        selection.problem,
        record.device,
        record.revision != selection.revision,
        tuple(
            CandidateView(
                name,
                name == used,
                times[name].slower_us if name in times else None,
                times[name].error_us if name in times else None,
            )
            for name in names
        ),
    )
