"""Parses a manifest and checks its invariants: cross-references, sizes, offsets, alignment, versions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from packager.bundle import shape_expr, strict_json
from packager.bundle.dtypes import DTYPES
from packager.bundle.loaded_libraries import library_contradictions
from packager.bundle.manifest import ABI_VERSION, ALIGNMENT, SCHEMA_VERSION, Constant, Entry, Manifest, StateSpec
from packager.bundle.strict_json import MismatchError
from packager.errors import BundleError

CUDA_KIND = "cuda"
"""Kind of the Target that every CUDA bundle has."""


def parse_manifest(text: bytes) -> Manifest:
    """Parse a manifest and check types, ranges, keys and all invariants.

    Raises BundleError with the JSON path, or with the version if it is newer than this packager's.
    """
    try:
        value = strict_json.parse(text)
        _refuse_newer(value)
        manifest = strict_json.read(Manifest, value)
        for path, problem in contradictions(manifest):
            raise MismatchError(path, problem)
    except MismatchError as mismatch:
        raise BundleError(f"the manifest is damaged: {mismatch}", hint="copy the bundle again, or rebuild it") from None
    return manifest


def contradictions(manifest: Manifest) -> Iterator[tuple[str, str]]:
    """Yield (JSON path, problem) for each violated invariant of a well-formed manifest."""
    yield from _of_tensors(manifest, "$")
    yield from _of_entries(manifest)
    yield from _of_constants(manifest)
    seen: set[str] = set()
    for kind, primitive in manifest.primitives():
        if primitive.symbol in seen:
            yield "$.backends", f"{kind!r} provides {primitive.symbol}, which is listed twice"
        seen.add(primitive.symbol)
    for index, selection in enumerate(manifest.selection):
        path = f"$.selection[{index}]"
        if selection.symbol not in seen:
            yield path, f"{strict_json.shown(selection.symbol)} is not a primitive function"
        if selection.chosen >= len(selection.candidates):
            yield f"{path}.chosen", f"is {selection.chosen}, but there are {len(selection.candidates)} candidates"
    yield from _of_choices(manifest)
    yield from library_contradictions(manifest)
    requirements = manifest.requirements
    if manifest.form == "static" and (requirements.needed or requirements.glibc):
        yield "$.requirements", "a static archive has neither needed libraries nor a glibc version"
    yield from _of_states(manifest)
    yield from _of_cuda(manifest)
    yield from _of_cpu_levels(manifest)


def _of_choices(manifest: Manifest) -> Iterator[tuple[str, str]]:
    kinds = {target["kind"] for target in manifest.targets}
    for index, choice in enumerate(manifest.choices):
        path = f"$.choices[{index}]"
        names = [alternative.name for alternative in choice.alternatives]
        if choice.chosen >= len(names):
            yield f"{path}.chosen", f"is {choice.chosen}, but there are {len(names)} alternatives"
        if len(set(names)) < len(names):
            yield f"{path}.alternatives", "two have the same name"
        for number, alternative in enumerate(choice.alternatives):
            if unknown := sorted({*alternative.backends} - kinds):
                yield f"{path}.alternatives[{number}].backends", f"{strict_json.shown(unknown[0])} is no Target's kind"
    for index, plan in enumerate(manifest.placement.plans if manifest.placement else ()):
        path = f"$.placement.plans[{index}].digits"
        if len(plan.digits) != len(manifest.choices):
            yield path, f"has {len(plan.digits)} digits for {len(manifest.choices)} choices"
        elif any(d >= len(c.alternatives) for d, c in zip(plan.digits, manifest.choices, strict=True)):
            yield path, "a digit is not an alternative's number"


def _of_tensors(model: Manifest | Entry, where: str) -> Iterator[tuple[str, str]]:
    known = {dim.name for dim in model.dims}
    for index, computed in enumerate(model.extents):
        path = f"{where}.extents[{index}]"
        if computed.name in known:
            yield f"{path}.name", f"{strict_json.shown(computed.name)} is a dim, too"
        yield from _of_extent(computed.bound, known, f"{path}.bound")
        known.add(computed.name)
    dims = {dim.name for dim in model.dims}
    for index, dim in enumerate(model.dims):
        if dim.min > dim.max:
            yield f"{where}.dims[{index}]", f"min {dim.min} is greater than max {dim.max}"
        ends = (*dim.buckets[:1], *dim.buckets[-1:])
        if dim.buckets and (list(dim.buckets) != sorted(dim.buckets) or ends != (dim.min, dim.max)):
            yield f"{where}.dims[{index}].buckets", f"must increase from min {dim.min} to max {dim.max}"
    for index, part in enumerate(model.parts):
        for name in part.extents:
            if name not in known - dims:
                yield f"{where}.parts[{index}].extents", f"{strict_json.shown(name)} is not a run-time extent"
        if part.first > part.last:
            yield f"{where}.parts[{index}]", f"first {part.first} is greater than last {part.last}"
    seeds = {tensor.name for tensor in model.inputs if (tensor.dtype, tensor.shape) == ("int64", ())}
    for index, node in enumerate(model.model.random):
        if node.seed is not None and node.seed not in seeds:
            yield f"{where}.model.random[{index}]", f"{strict_json.shown(node.seed)} is not an input of one int64"
    for kind, tensors in (("inputs", model.inputs), ("outputs", model.outputs)):
        for index, tensor in enumerate(tensors):
            for axis, extent in enumerate(tensor.shape):
                path = f"{where}.{kind}[{index}].shape[{axis}]"
                if kind == "inputs" and not isinstance(extent, int) and extent not in dims:
                    yield path, f"{strict_json.shown(extent)} is not one of the dims"
                yield from _of_extent(extent, known, path)


def _of_extent(extent: int | str, known: set[str], path: str) -> Iterator[tuple[str, str]]:
    """Yield the problem of an extent that does not parse, or that names other than ``known`` dims and extents."""
    try:
        unknown = set() if isinstance(extent, int) else shape_expr.names(extent) - known
    except shape_expr.ShapeExpressionError as error:
        yield path, str(error)
        return
    if unknown:
        yield path, f"unknown dims: {', '.join(sorted(unknown))}"


def _of_entries(manifest: Manifest) -> Iterator[tuple[str, str]]:
    if not manifest.entries:
        return
    first = manifest.entries[0]
    for key in ("dims", "inputs", "outputs", "extents", "parts"):
        if getattr(manifest, key) != getattr(first, key):
            yield f"$.entries[0].{key}", f"differs from the manifest's {key}"
    states = {state.name for state in manifest.states}
    for index, entry in enumerate(manifest.entries):
        path = f"$.entries[{index}]"
        if index:
            yield from _of_tensors(entry, path)
        for name in entry.states:
            if name not in states:
                yield f"{path}.states", f"{strict_json.shown(name)} is not a state"
    for name in sorted(states - {name for entry in manifest.entries for name in entry.states}):
        yield "$.entries", f"no entry uses the state {strict_json.shown(name)}"


def _of_states(manifest: Manifest) -> Iterator[tuple[str, str]]:
    entries = manifest.every_entry()
    constants = {name: c for c in manifest.constants for name in (c.name, *c.aliases)}
    end = 0
    next_values: set[str] = set()
    for index, state in enumerate(manifest.states):
        path = f"$.states[{index}]"
        for entry in entries:
            if state.name not in entry.states:
                continue
            if state.name in {tensor.name for tensor in entry.inputs}:
                yield f"{path}.name", f"{strict_json.shown(state.name)} is an input"
            if state.output in {tensor.name for tensor in entry.outputs}:
                yield f"{path}.output", f"{strict_json.shown(state.output)} is an output"
        if state.output in next_values:
            yield f"{path}.output", f"{strict_json.shown(state.output)} is the next value of another state"
        next_values.add(state.output)
        yield from _of_storage(state, path, "state", end, aligned=True)
        end = state.offset + state.bytes
        if state.initial is None:
            continue
        constant = constants.get(state.initial)
        if constant is None:
            yield f"{path}.initial", f"{strict_json.shown(state.initial)} is not a constant"
        elif (constant.dtype, constant.shape) != (state.dtype, state.shape):
            yield f"{path}.initial", f"{strict_json.shown(state.initial)} has another dtype or shape"


def _of_cpu_levels(manifest: Manifest) -> Iterator[tuple[str, str]]:
    requirements = manifest.requirements
    path = "$.requirements.cpu_levels"
    if requirements.cpu_levels and requirements.cuda is not None:
        yield path, "must be empty for a CUDA bundle"
    below = set(requirements.cpu_features)
    for index, level in enumerate(requirements.cpu_levels):
        if lacking := sorted(below - set(level.cpu_features)):
            what = "the level below" if index else "every session"
            yield f"{path}[{index}].cpu_features", f"lacks {', '.join(lacking)}, which {what} requires"
        if not index and set(level.cpu_features) - below:
            yield f"{path}[0].cpu_features", "differs from cpu_features, which the lowest level must equal"
        below = set(level.cpu_features)
    better = [level.name for level in requirements.cpu_levels[1:]]
    for _, primitive in manifest.primitives():
        if strange := [name for name in primitive.levels if name not in better]:
            yield (
                "$.backends",
                f"{primitive.symbol} has a clone for {strange[0]}, which is not one of the higher CPU levels",
            )


def _of_cuda(manifest: Manifest) -> Iterator[tuple[str, str]]:
    cuda = manifest.requirements.cuda
    targets = [target for target in manifest.targets if target["kind"] == CUDA_KIND]
    if cuda is None:
        if targets:
            yield "$.requirements.cuda", f"is null, but there is a Target of kind {CUDA_KIND!r}"
        return
    if not targets:
        yield "$.requirements.cuda", f"is set, but there is no Target of kind {CUDA_KIND!r}"
    if not cuda.archs and not cuda.ptx:
        return  # the bundle only copies
    for key, attribute, found in (("archs", "arch", cuda.archs), ("ptx", "ptx", cuda.ptx)):
        wanted = {name for target in targets for name in target_names(target, attribute)}
        if set(found) != wanted:
            listed = ", ".join(sorted(wanted)) or "none"
            yield f"$.requirements.cuda.{key}", f"differs from the Target's -{attribute}, which is {listed}"


def target_names(target: Mapping[str, object], attribute: str) -> tuple[str, ...]:
    """Return a list-valued attribute of a Target; an empty tuple if it is unset or not a list."""
    value = target.get(attribute)
    return tuple(map(str, value)) if isinstance(value, (list, tuple)) else ()


def _of_constants(manifest: Manifest) -> Iterator[tuple[str, str]]:
    weights = manifest.weights
    external = weights.storage == "external"
    if external != (weights.file is not None) or external != (weights.file_sha256 is not None):
        yield "$.weights", "file and file_sha256 must both be set for external weights, and null otherwise"
    if weights.storage == "none" and (manifest.constants or weights.bytes):
        yield "$.weights.storage", "is 'none', but there are constants"
    seen: set[str] = set()
    end = 0
    for index, constant in enumerate(manifest.constants):
        path = f"$.constants[{index}]"
        for name in (constant.name, *constant.aliases):
            if name in seen:
                yield path, f"{strict_json.shown(name)} is listed twice"
            seen.add(name)
        yield from _of_storage(constant, path, "constant", end, aligned=not external)
        if external and constant.offset != end:
            yield f"{path}.offset", "leaves a gap in the external file"
        end = constant.offset + constant.bytes
    if end > weights.bytes:
        yield "$.weights.bytes", f"{weights.bytes} bytes do not hold the constants, which end at {end}"


def _of_storage(
    item: StateSpec | Constant, path: str, kind: str, end: int, *, aligned: bool
) -> Iterator[tuple[str, str]]:
    """Check size, order and alignment; ``end`` is where the item before ends."""
    if item.bytes != math.prod(item.shape) * DTYPES[item.dtype].itemsize:
        yield f"{path}.bytes", f"{item.bytes} bytes do not fit the dtype and the shape"
    if item.offset < end:
        yield f"{path}.offset", f"overlaps the {kind} before, which ends at {end}"
    if aligned and item.offset % ALIGNMENT:
        yield f"{path}.offset", f"{item.offset} is not a multiple of {ALIGNMENT}"


def _refuse_newer(value: Any) -> None:
    """Refuse newer versions explicitly, before the strict reader reports one of their keys as unknown."""
    if not isinstance(value, dict):
        return
    for key, what, known in (
        ("schema_version", "manifest schema", SCHEMA_VERSION),
        ("abi_version", "ABI", ABI_VERSION),
    ):
        version = value.get(key)
        if isinstance(version, int) and not isinstance(version, bool) and version > known:
            raise BundleError(
                f"the bundle has {what} version {version}; this packager reads version {known}",
                hint="use the packager that built the bundle, or a newer one",
            )
