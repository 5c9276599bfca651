"""Tables of `packager inspect`, `verify` and `bench`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from packager.bundle.fields import TargetValue
from packager.bundle.manifest import Dim, Manifest, Selection, StateSpec, TensorSpec
from packager.bundle.reader import BundleFile
from packager.bundle.requirements import CudaRequirements, Requirements
from packager.cli.reports.tables import Table
from packager.deploy.measure.bench import BenchResult
from packager.deploy.verify.findings import VerifyResult

_TOP_PRIMITIVES = 10
_TOP_CONSTANTS = 10


def _size(size: int) -> str:
    for factor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} B"


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _tensor_rows(kind: str, specs: tuple[TensorSpec, ...]) -> list[tuple[str, ...]]:
    return [(kind, spec.name, spec.dtype, f"[{', '.join(map(str, spec.shape))}]") for spec in specs]


def _model_rows(manifest: Manifest) -> list[tuple[str, ...]]:
    """Return the tensors of all models, prefixed with the entry's name if there are several."""
    rows: list[tuple[str, ...]] = []
    for entry in manifest.every_entry():
        of = f"{entry.name}: " if manifest.entries else ""
        rows += _tensor_rows(f"{of}input", entry.inputs) + _tensor_rows(f"{of}output", entry.outputs)
    states = ((s.name, s.dtype, f"[{', '.join(map(str, s.shape))}]") for s in manifest.states)
    return rows + [("state", *state) for state in states]


def _dim(dim: Dim) -> str:
    return f"{dim.name} {', '.join(map(str, dim.buckets)) or f'{dim.min}..{dim.max}'}"


def _attribute(value: TargetValue) -> str:
    """Format a value in command-line syntax."""
    if isinstance(value, tuple):
        return ",".join(value)
    return str(int(value)) if isinstance(value, bool) else str(value)


def _target_rows(targets: Sequence[Mapping[str, TargetValue]]) -> list[tuple[str, str]]:
    """Return a row for each Target, in command-line syntax."""
    rows = []
    for index, target in enumerate(targets):
        attributes = (f"-{key}={_attribute(value)}" for key, value in target.items() if key != "kind" and value != ())
        rows.append(("" if index else "targets", " ".join((str(target["kind"]), *attributes))))
    return rows


def _level_rows(requirements: Requirements) -> list[tuple[str, str]]:
    """Return a row for each CPU level, with the features required beyond the lowest level's."""
    every = set(requirements.cpu_features)
    rows = []
    for index, level in enumerate(requirements.cpu_levels):
        more = _names(name for name in level.cpu_features if name not in every)
        rows.append(("" if index else "CPU levels", f"{level.name}, with {more}" if index else level.name))
    if requirements.dispatched_features:
        rows.append(("asked for by code", _names(requirements.dispatched_features)))
    return rows


def _cuda_rows(cuda: CudaRequirements | None) -> list[tuple[str, str]]:
    if cuda is None:
        return []
    return [("GPU code", cuda.describe()), ("NVIDIA driver", f"for CUDA {cuda.driver} or newer")]


def _state_rows(states: Sequence[StateSpec]) -> list[tuple[str, str]]:
    return [("states per session", _size(sum(state.bytes for state in states)))] if states else []


def _selection_tables(selection: Sequence[Selection]) -> list[Table]:
    if not selection:
        return []
    rows = [(s.symbol, s.problem, s.candidates[s.chosen], f"{s.chosen + 1} of {len(s.candidates)}") for s in selection]
    return [Table("Candidates", ("symbol", "problem", "used", "number"), tuple(rows))]


def inspect_tables(bundle: BundleFile) -> list[Table]:
    """Return the report of `packager inspect`."""
    manifest = bundle.manifest
    model, weights, requirements, sizes = manifest.model, manifest.weights, manifest.requirements, manifest.sizes
    opset = ", ".join(f"{domain} {version}" for domain, version in model.opset.items())
    primitives = sorted(manifest.primitives(), key=lambda item: -item[1].flops * item[1].calls)
    flops = sum(item.flops * item.calls for _, item in primitives)
    golden = manifest.golden
    external = f" in {weights.file}" if weights.file else ""
    return [
        Table(
            f"{bundle.path}",
            ("", ""),
            (
                ("model", " ".join(filter(None, (model.name, f"({model.format} {opset})".replace(" )", ")"))))),
                ("made by", f"packager {manifest.packager_version}, {model.producer or 'unknown producer'}"),
                ("form", f"{manifest.form}, ABI {manifest.abi_version}, schema {manifest.schema_version}"),
                *_target_rows(manifest.targets),
                ("dims", "; ".join(map(_dim, manifest.dims)) or "none"),
                ("golden pairs", f"{golden.cases}, rtol {golden.rtol:g}, atol {golden.atol:g}" if golden else "none"),
                ("SHA-256", manifest.content_sha256),
            ),
        ),
        Table(
            "Tensors",
            ("kind", "name", "dtype", "shape"),
            tuple(_model_rows(manifest)),
        ),
        Table(
            "Backends",
            ("kind", "primitives", "calls", "MFLOP"),
            tuple(
                (
                    backend.kind,
                    str(len(backend.primitives)),
                    str(sum(item.calls for item in backend.primitives)),
                    f"{sum(item.flops * item.calls for item in backend.primitives) / 1e6:.3f}",
                )
                for backend in manifest.backends
            ),
        ),
        Table(
            "Static libraries",
            ("backend", "file", "members", "SHA-256"),
            tuple(
                (backend.kind, library.name, str(len(library.members)) if library.members else "-", library.sha256[:16])
                for backend in manifest.backends
                for library in backend.static_libraries
            ),
        ),
        Table(
            f"Primitives by FLOPs ({min(len(primitives), _TOP_PRIMITIVES)} of {len(primitives)})",
            ("symbol", "backend", "composite", "calls", "MFLOP", "share"),
            tuple(
                (
                    item.symbol,
                    kind,
                    item.composite or "-",
                    str(item.calls),
                    f"{item.flops * item.calls / 1e6:.3f}",
                    f"{100 * item.flops * item.calls / flops:.1f} %" if flops else "-",
                )
                for kind, item in primitives[:_TOP_PRIMITIVES]
            ),
        ),
        *_selection_tables(manifest.selection),
        Table(
            "Requirements",
            ("", ""),
            (
                ("machine", f"{requirements.machine}, {requirements.os}"),
                ("glibc", requirements.glibc or "not needed"),
                ("libraries", _names(requirements.needed)),
                ("CPU features", _names(requirements.cpu_features)),
                *_level_rows(requirements),
                *_cuda_rows(requirements.cuda),
                ("exports", _names(requirements.exports)),
            ),
        ),
        Table(
            "Sizes",
            ("", ""),
            (
                ("file", _size(sizes.file)),
                ("code", _size(sizes.code)),
                ("constants", f"{len(manifest.constants)}, {_size(weights.bytes)}, {weights.storage}{external}"),
                ("arena per session", f"{_size(manifest.arena_bytes)}{' of GPU memory' if requirements.cuda else ''}"),
                *_state_rows(manifest.states),
            ),
        ),
        Table(
            f"Constants by size ({min(len(manifest.constants), _TOP_CONSTANTS)} of {len(manifest.constants)})",
            ("name", "dtype", "shape", "size", "from"),
            tuple(
                (
                    " = ".join((item.name, *item.aliases)),
                    item.dtype,
                    f"[{', '.join(map(str, item.shape))}]",
                    _size(item.bytes),
                    ", ".join(item.sources) or "-",
                )
                for item in sorted(manifest.constants, key=lambda item: -item.bytes)[:_TOP_CONSTANTS]
            ),
        ),
        Table("Licenses", ("component", "SPDX"), tuple((item.component, item.spdx) for item in manifest.licenses)),
    ]


def verify_tables(result: VerifyResult) -> list[Table]:
    """Return the report of `packager verify`."""
    checks = Table(
        f"{result.path}: {'verified' if result.ok else 'NOT accepted'}",
        ("check", "result", "note"),
        tuple((check.name, check.status, check.note) for check in result.checks),
    )
    findings = [
        Table(
            f"{finding.severity}: {finding.what} [{finding.check}]",
            ("", ""),
            (("where", finding.where), ("why", finding.why), ("hint", finding.hint)),
        )
        for finding in result.findings
    ]
    return [checks, *findings]


def bench_tables(result: BenchResult) -> list[Table]:
    """Return the report of `packager bench`."""
    dims = "".join(f", {name} = {value}" for name, value in result.dims.items())
    return [
        Table(
            f"{result.model}: {result.runs} runs after {result.warmup}, threads {result.threads}{dims}",
            ("", ""),
            (
                ("median", f"{result.median_ms:.4f} ms"),
                ("p5 .. p95", f"{result.p5_ms:.4f} .. {result.p95_ms:.4f} ms"),
                ("min, mean", f"{result.min_ms:.4f}, {result.mean_ms:.4f} ms"),
                ("load", f"{result.load_ms:.2f} ms"),
                ("create session", f"{result.session_create_ms:.3f} ms"),
                ("first run", f"{result.first_run_ms:.3f} ms"),
                ("speed", f"{result.gflops_per_second:.2f} GFLOP/s, {result.flops / 1e6:.3f} MFLOP per run"),
                ("file", _size(result.file_bytes)),
                ("constants", _size(result.constant_bytes)),
                ("arena", _size(result.arena_bytes)),
                ("calls", f"{result.calls} of {result.primitives} primitives"),
            ),
        )
    ]
