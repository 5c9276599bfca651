"""The import stage: from model files to one module. Modules that need TVM are imported when it runs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packager.backends.base import OperatorSource
from packager.backends.registry import find_backend
from packager.bundle.buckets import Buckets, Sizes, combinations
from packager.errors import ModelError, UsageError
from packager.frontends.dims import DimRequest
from packager.pipeline.request import Request, buckets_of

if TYPE_CHECKING:
    from packager.backends.base import Target
    from packager.custom_ops.library import OpLibrary
    from packager.ir.model import ImportedModel


def import_model(request: Request) -> ImportedModel:
    """Read the model files, replace constants, and convert the precision.

    Several models, and the variants of a model with bucketed dims, are merged into one module.
    """
    from packager.graph.states import check_declared

    if not request.more_models and not buckets_of(request.dims):
        return _finish(request, _load(request, request.model, _bounds(request.dims, {}), request.name))
    from packager.transforms.merge_models import merge_models

    variants: list[ImportedModel] = []
    unused = set(request.dims)
    for path in request.models:
        entry = path.stem if request.more_models else request.name
        dims, loaded = _load_entry(request, path, entry)
        variants += loaded
        unused -= dims.keys()
    if unused:
        raise UsageError(f"--dim {min(unused)}: none of the models has such a dim")
    check_declared(request.states, variants)
    return merge_models(variants, request.name)


def _load_entry(
    request: Request, path: Path, entry: str
) -> tuple[Mapping[str, DimRequest | Buckets], list[ImportedModel]]:
    """Load a model for all sizes of its bucketed dims; return the requested dims that it has, and its variants."""
    from packager.frontends.dims import UnknownDimError

    try:
        return request.dims, list(_load_variants(request, path, entry, request.dims))
    except UnknownDimError as unknown:
        if not request.more_models:
            raise
        dims = {name: asked for name, asked in request.dims.items() if name not in unknown.names}
    return dims, list(_load_variants(request, path, entry, dims))


def _load_variants(
    request: Request, path: Path, entry: str, dims: Mapping[str, DimRequest | Buckets]
) -> Iterator[ImportedModel]:
    from packager.transforms.merge_models import share_arrays

    first: ImportedModel | None = None
    for sizes in combinations(buckets_of(dims)):
        model = _finish(request, _load(request, path, _bounds(dims, sizes), entry))
        first = first or model
        shared = share_arrays(model, first)
        yield replace(shared, signature=replace(shared.signature, sizes=sizes))


def _bounds(dims: Mapping[str, DimRequest | Buckets], sizes: Sizes) -> dict[str, DimRequest]:
    """Return the bounds of all dims; bucketed dims are fixed to ``sizes``."""
    bounds = {name: asked for name, asked in dims.items() if isinstance(asked, DimRequest)}
    return bounds | {name: DimRequest(size, size) for name, size in sizes.items()}


def _finish(request: Request, model: ImportedModel) -> ImportedModel:
    from packager.graph.conditions import with_conditions
    from packager.graph.states import declare_states
    from packager.transforms.canonical import canonical
    from packager.transforms.half_precision import convert_precision
    from packager.transforms.in_float32 import compute_in_float32
    from packager.transforms.micro_batch.micro_batch import split_batch

    _check_names(model)
    declared = declare_states(model, request.states, partly=bool(request.more_models))
    conditioned = compute_in_float32(with_conditions(declared))
    if request.targets.device != "cpu":
        return convert_precision(canonical(conditioned), request.precision)
    converted = convert_precision(conditioned, request.precision)
    options: Any = request.targets.host.options
    return split_batch(converted, options.micro_batch)


def import_graph(request: Request) -> ImportedModel:
    """Read one model file as ``import_model`` does, but leave its batch as it is. Raises UsageError for buckets."""
    from packager.graph.conditions import with_conditions
    from packager.transforms.half_precision import convert_precision

    if buckets := buckets_of(request.dims):
        raise UsageError(
            f"--dim {next(iter(buckets))}: a list of sizes would be several graphs",
            hint="give a size, or bounds as MIN:MAX",
        )
    model = _load(request, request.model, _bounds(request.dims, {}), request.name)
    _check_names(model)
    return convert_precision(with_conditions(model), request.precision)


def _check_names(model: ImportedModel) -> None:
    """Raise ModelError for a name that C and the manifest cannot hold."""
    signature = model.signature
    names = [*(spec.name for spec in signature.inputs), *signature.output_names, *model.own_constants()]
    if wrong := [name for name in names if not name or "\0" in name]:
        raise ModelError(
            f"an input, output or constant is named {wrong[0]!r}",
            hint="rename it in the model: a name must be a text without zero characters",
        )


def _load(request: Request, path: Path, dims: Mapping[str, DimRequest], name: str) -> ImportedModel:
    from packager.frontends.load import load_model
    from packager.frontends.overrides import read_overrides

    op_libraries = [library for target in request.targets.specialized for library in _op_libraries(target)]
    overrides = None if request.constants is None else read_overrides(request.constants)
    return load_model(path, dims, name, op_libraries, request.entry, overrides, request.frozen)


def _op_libraries(target: Target) -> Sequence[OpLibrary]:
    backend = find_backend(target.kind)
    return backend.op_libraries(target) if isinstance(backend, OperatorSource) else ()
