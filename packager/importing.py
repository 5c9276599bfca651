"""The first stage: from model files to the one module that the other stages work on.

Modules that need TVM are imported when it runs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from packager.backends import find_backend
from packager.backends.base import OperatorSource
from packager.errors import UsageError
from packager.request import Request

if TYPE_CHECKING:
    from packager.frontends.dims import DimRequest
    from packager.ir import ImportedModel
    from packager.op_library import OpLibrary
    from packager.targets import Target


def import_model(request: Request) -> ImportedModel:
    """Run the first stage: read the model files, with the constants that replace their own; convert their precision."""
    from packager.precision import convert_precision
    from packager.states import check_declared, declare_states

    if not request.more_models:
        model = _load(request, request.model, request.dims, request.name)
        return convert_precision(declare_states(model, request.states), request.precision)
    from packager.entries import merge_models

    models = {}
    for path, model in zip(request.models, _load_several(request), strict=True):
        declared = declare_states(model, request.states, partly=True)
        models[path.stem] = convert_precision(declared, request.precision)
    check_declared(request.states, models.values())
    return merge_models(models, request.name)


def _load(request: Request, path: Path, dims: Mapping[str, DimRequest], name: str) -> ImportedModel:
    from packager.frontends import load_model
    from packager.overrides import read_overrides

    op_libraries = [library for target in request.targets.specialised for library in _op_libraries(target)]
    overrides = None if request.constants is None else read_overrides(request.constants)
    return load_model(path, dims, name, op_libraries, request.entry, overrides, request.frozen)


def _load_several(request: Request) -> list[ImportedModel]:
    """Load the models, each with the dims that it has. Raises UsageError for a dim that none has."""
    from packager.frontends.dims import UnknownDimError

    models = []
    unused = set(request.dims)
    for path in request.models:
        dims = dict(request.dims)
        try:
            model = _load(request, path, dims, path.stem)
        except UnknownDimError as unknown:
            for name in unknown.names:
                del dims[name]
            model = _load(request, path, dims, path.stem)
        unused -= dims.keys()
        models.append(model)
    if unused:
        raise UsageError(f"--dim {min(unused)}: none of the models has such a dim")
    return models


def _op_libraries(target: Target) -> Sequence[OpLibrary]:
    backend = find_backend(target.kind)
    return backend.op_libraries(target) if isinstance(backend, OperatorSource) else ()
