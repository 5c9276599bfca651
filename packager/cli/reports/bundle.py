"""Tables of `packager inspect` and `verify`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from packager.bundle.fields import TargetValue, value_text
from packager.bundle.manifest import Constant, Dim, Manifest, Primitive, StateSpec, TensorSpec
from packager.bundle.reader import BundleFile
from packager.bundle.requirements import CudaRequirements, LibraryRequirement, Requirements
from packager.bundle.selection import PlacementChoice, Selection
from packager.cli.reports.finalize import engine_sizes, engine_tables
from packager.cli.reports.graphs import part_text
from packager.cli.reports.tables import Table, facts
from packager.deploy.verify.findings import VerifyResult

_TOP_PRIMITIVES = 10
_TOP_CONSTANTS = 10


def size_text(size: int) -> str:
    for factor, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= factor:
            return f"{size / factor:.1f} {unit}"
    return f"{size} B"


def _names(names: Iterable[str]) -> str:
    return ", ".join(names) or "none"


def _mflop(*primitives: Primitive) -> str:
    return f"{sum(item.flops * item.calls for item in primitives) / 1e6:.3f}"


def _tensor_cells(spec: TensorSpec | StateSpec | Constant) -> tuple[str, str]:
    return spec.dtype, f"[{', '.join(map(str, spec.shape))}]"


def _model_rows(manifest: Manifest) -> list[tuple[str, ...]]:
    """Return the tensors of all models, prefixed with the entry's name if there are several."""
    rows: list[tuple[str, ...]] = []
    for entry in manifest.every_entry():
        of = f"{entry.name}: " if manifest.entries else ""
        for kind, specs in (("input", entry.inputs), ("output", entry.outputs)):
            for spec in specs:
                rows.append((f"{of}{kind}", spec.name, *_tensor_cells(spec)))
                if spec.labels:
                    rows.append(("", f"classes: {', '.join(spec.labels)}", "", ""))
        for node in entry.model.random:
            rows.append(
                (f"{of}random", node.node, node.operator, f"by {node.seed}" if node.seed else "by a fixed seed")
            )
    return rows + [("state", state.name, *_tensor_cells(state)) for state in manifest.states]


def _dim(dim: Dim) -> str:
    return f"{dim.name} {', '.join(map(str, dim.buckets)) or f'{dim.min}..{dim.max}'}"


def _target_rows(targets: Sequence[Mapping[str, TargetValue]]) -> list[tuple[str, str]]:
    """Return a row for each Target, in command-line syntax."""
    rows = []
    for index, target in enumerate(targets):
        attributes = (f"-{key}={value_text(value)}" for key, value in target.items() if key != "kind" and value != ())
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
        rows.append(("checked at run time", _names(requirements.dispatched_features)))
    return rows


def _cuda_rows(cuda: CudaRequirements | None) -> list[tuple[str, str]]:
    if cuda is None:
        return []
    return [("GPU code", cuda.describe()), ("NVIDIA driver", f"for CUDA {cuda.driver} or newer")]


def _loaded_tables(libraries: Sequence[LibraryRequirement]) -> list[Table]:
    """Return the shared libraries that sessions open."""
    rows = [
        (
            " or ".join(library.sonames),
            f"{library.least} or newer",
            library.chosen_with or "any",
            _need(library),
            str(len(library.functions)),
        )
        for library in libraries
    ]
    columns = ("library", "version", "built for", "needed", "functions")
    return [Table("Libraries that sessions open", columns, tuple(rows))] if rows else []


def _need(library: LibraryRequirement) -> str:
    if library.embedded:
        return "no: the bundle has it"
    return "no: there are alternatives" if library.optional else "yes"


def _state_rows(states: Sequence[StateSpec]) -> list[tuple[str, str]]:
    return [("states per session", size_text(sum(state.bytes for state in states)))] if states else []


def _selection_tables(selection: Sequence[Selection]) -> list[Table]:
    if not selection:
        return []
    rows = [(s.symbol, s.problem, s.candidates[s.chosen], f"{s.chosen + 1} of {len(s.candidates)}") for s in selection]
    return [Table("Candidates", ("symbol", "problem", "used", "number"), tuple(rows))]


def _choice_tables(choices: Sequence[PlacementChoice]) -> list[Table]:
    if not choices:
        return []
    rows = [
        (c.name, str(len(c.regions)), f"{c.chosen + 1} of {len(c.alternatives)}", c.alternatives[c.chosen].name)
        for c in choices
    ]
    return [Table("Placement choices", ("choice", "regions", "number", "used"), tuple(rows))]


def _extent_tables(manifest: Manifest) -> list[Table]:
    several = len(manifest.entries) > 1
    rows = [
        (*([entry.name] if several else []), extent.name, f"0..{extent.bound}", extent.node)
        for entry in manifest.every_entry()
        for extent in entry.extents
    ]
    columns = (*(["entry"] if several else []), "name", "bounds", "node")
    return [Table("Run-time extents", columns, tuple(rows))] if rows else []


def _part_tables(manifest: Manifest) -> list[Table]:
    """Return where a run on a GPU is split into CUDA graphs."""
    several = len(manifest.entries) > 1
    parts = [(entry.name, part_text(part)) for entry in manifest.every_entry() for part in entry.parts]
    rows = [row if several else row[1:] for row in parts]
    return [Table("CUDA graphs", (*(["entry"] if several else []), "part of a run"), tuple(rows))] if rows else []


def _about(manifest: Manifest, title: str) -> Table:
    model, golden = manifest.model, manifest.golden
    opset = ", ".join(f"{domain} {version}" for domain, version in model.opset.items())
    return facts(
        title,
        ("model", " ".join(filter(None, (model.name, f"({model.format} {opset})".replace(" )", ")"))))),
        ("made by", f"packager {manifest.packager_version}, {model.producer or 'unknown producer'}"),
        ("form", f"{manifest.form}, ABI {manifest.abi_version}, schema {manifest.schema_version}"),
        *_target_rows(manifest.targets),
        ("dims", "; ".join(map(_dim, manifest.dims)) or "none"),
        ("golden pairs", f"{golden.cases}, rtol {golden.rtol:g}, atol {golden.atol:g}" if golden else "none"),
        ("SHA-256", manifest.content_sha256),
    )


def _interface(manifest: Manifest) -> list[Table]:
    tensors = Table("Tensors", ("kind", "name", "dtype", "shape"), tuple(_model_rows(manifest)))
    return [tensors, *_extent_tables(manifest), *_part_tables(manifest)]


def _static_libraries(manifest: Manifest) -> Table:
    return Table(
        "Static libraries",
        ("backend", "file", "members", "SHA-256"),
        tuple(
            (backend.kind, library.name, str(len(library.members)) if library.members else "-", library.sha256[:16])
            for backend in manifest.backends
            for library in backend.static_libraries
        ),
    )


def _requirements(requirements: Requirements) -> list[Table]:
    table = facts(
        "Requirements",
        ("machine", f"{requirements.machine}, {requirements.os}"),
        ("glibc", requirements.glibc or "not needed"),
        ("libraries", _names(requirements.needed)),
        ("CPU features", _names(requirements.cpu_features)),
        *_level_rows(requirements),
        *_cuda_rows(requirements.cuda),
        ("exports", _names(requirements.exports)),
    )
    return [table, *_loaded_tables(requirements.libraries)]


def _licenses(manifest: Manifest) -> Table:
    return Table("Licenses", ("component", "SPDX"), tuple((item.component, item.spdx) for item in manifest.licenses))


def fact_tables(manifest: Manifest) -> list[Table]:
    """Return what a report shows as tables."""
    toolchain = facts("Toolchain", *sorted(manifest.toolchain.items()))
    return [
        _about(manifest, "About"),
        *_interface(manifest),
        *_requirements(manifest.requirements),
        _static_libraries(manifest),
        toolchain,
        _licenses(manifest),
    ]


def inspect_tables(bundle: BundleFile) -> list[Table]:
    """Return the report of `packager inspect`."""
    manifest = bundle.manifest
    weights, requirements, sizes = manifest.weights, manifest.requirements, manifest.sizes
    primitives = sorted(manifest.primitives(), key=lambda item: -item[1].flops * item[1].calls)
    flops = sum(item.flops * item.calls for _, item in primitives)
    external = f" in {weights.file}" if weights.file else ""
    shown = primitives[:_TOP_PRIMITIVES]
    constants = sorted(manifest.constants, key=lambda item: -item.bytes)[:_TOP_CONSTANTS]
    return [
        _about(manifest, f"{bundle.path}"),
        *_interface(manifest),
        Table(
            "Backends",
            ("kind", "primitives", "calls", "MFLOP"),
            tuple(
                (
                    backend.kind,
                    str(len(backend.primitives)),
                    str(sum(item.calls for item in backend.primitives)),
                    _mflop(*backend.primitives),
                )
                for backend in manifest.backends
            ),
        ),
        _static_libraries(manifest),
        *engine_tables(bundle),
        Table(
            f"Primitives by FLOPs ({len(shown)} of {len(primitives)})",
            ("symbol", "backend", "composite", "calls", "MFLOP", "share"),
            tuple(
                (
                    item.symbol,
                    kind,
                    item.composite or "-",
                    str(item.calls),
                    _mflop(item),
                    f"{100 * item.flops * item.calls / flops:.1f} %" if flops else "-",
                )
                for kind, item in shown
            ),
        ),
        *_choice_tables(manifest.choices),
        *_selection_tables(manifest.selection),
        *_requirements(requirements),
        facts(
            "Sizes",
            ("file", size_text(sizes.file)),
            ("code", size_text(sizes.code)),
            ("constants", f"{len(manifest.constants)}, {size_text(weights.bytes)}, {weights.storage}{external}"),
            *engine_sizes(bundle),
            ("arena per session", f"{size_text(manifest.arena_bytes)}{' of GPU memory' if requirements.cuda else ''}"),
            *_state_rows(manifest.states),
        ),
        Table(
            f"Constants by size ({len(constants)} of {len(manifest.constants)})",
            ("name", "dtype", "shape", "size", "from"),
            tuple(
                (
                    " = ".join((item.name, *item.aliases)),
                    *_tensor_cells(item),
                    size_text(item.bytes),
                    ", ".join(item.sources) or "-",
                )
                for item in constants
            ),
        ),
        _licenses(manifest),
    ]


def verify_tables(result: VerifyResult) -> list[Table]:
    """Return the report of `packager verify`."""
    checks = Table(
        f"{result.path}: {'verified' if result.ok else 'NOT accepted'}",
        ("check", "result", "note"),
        tuple((check.name, check.status, check.note) for check in result.checks),
    )
    return [
        checks,
        *(
            facts(f"{f.severity}: {f.what} [{f.check}]", ("where", f.where), ("why", f.why), ("hint", f.hint))
            for f in result.findings
        ),
    ]
