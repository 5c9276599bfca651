"""Tables of engines: those of a bundle, and those that `packager finalize` has built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packager.bundle.gpu.engines import read_engines
from packager.bundle.reader import BundleFile
from packager.cli.reports.tables import Table, facts

if TYPE_CHECKING:
    from packager.deploy.finalize.finalizer import FinalizeResult


def finalize_tables(result: FinalizeResult) -> list[Table]:
    """Return the tables: the engines, and how they did against the fallbacks."""
    known = {record.key: record for record in result.records}
    rows = []
    for one in result.outcomes:
        record = known[one.key]
        built = "from the cache" if one.cached else one.refused or f"{one.seconds:.1f} s"
        rows.append((one.key[:12], one.library, record.state, _size(record.bytes), _size(record.memory), built))
    columns = ("engine", "library", "state", "size", "memory of a run", "built")
    found = result.comparison
    times = [
        (name, "-" if value is None else f"{value:.1f} us")
        for name, value in (
            ("engines", found.engines_us),
            ("fallbacks", found.fallback_us),
            ("as chosen", found.chosen_us),
        )
    ]
    difference = "-" if found.difference is None else f"{found.difference:.2g} of the largest value"
    lines = [*times, ("results differ by", difference)]
    if found.why:
        lines.append(("decided by", found.why))
    lines += [(name, way) for name, way in found.chosen.items()]
    title = f"A run on {found.device}" if found.device else "Not measured"
    return [Table(f"{result.output}, by {result.builder}", columns, tuple(rows)), facts(title, *lines)]


def engine_tables(bundle: BundleFile) -> list[Table]:
    """Return the engines of TensorRT: which are there, and which are pending."""
    if bundle.manifest.form == "static":
        return []
    rows = tuple(
        (
            record.key[:12],
            record.library,
            record.state,
            *(
                (".".join(map(str, record.version)), f"sm_{record.arch}" if record.arch else "several")
                if record.bytes
                else ("-", "-")
            ),
            _size(record.bytes),
        )
        for record in read_engines(bundle.path)
    )
    return [Table("Engines", ("engine", "library", "state", "version", "GPU", "size"), rows)] if rows else []


def engine_sizes(bundle: BundleFile) -> list[tuple[str, str]]:
    """Return what engines take of the file: their weights are not the bundle's constants, but copies."""
    built = (
        [record.bytes for record in read_engines(bundle.path) if record.bytes]
        if bundle.manifest.form == "shared"
        else []
    )
    return [("engines", f"{len(built)}, {_size(sum(built))}, with copies of their weights")] if built else []


def _size(size: int) -> str:
    return f"{size / 2**20:.1f} MiB" if size else "-"
