"""``export``: write an imported model as an ONNX file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from packager.bundle.staging import replacing
from packager.errors import UnboundedDimsError, UsageError
from packager.pipeline.import_models import import_graph
from packager.pipeline.options import BuildOptions, StrPath
from packager.pipeline.publish import OutputError, check_output
from packager.pipeline.request import WEIGHTS, make_build_request
from packager.progress import report
from packager.targets.availability import require_build_packages

if TYPE_CHECKING:
    from packager.emit.onnx import WrittenModel
    from packager.frontends.dims import DimArgument
    from packager.ir.model import ImportedModel
    from packager.pipeline.request import Request

# Bounds of dims that a request leaves open: a graph, unlike a bundle, has no memory to plan.
OPEN_BOUNDS = (1, 2**31 - 1)


@dataclass(frozen=True)
class Export:
    """A written file: its path, that of its weights if they are outside, its opset, and how many nodes and
    initializers it has. ``dims`` are the symbolic dims with the bounds for which it holds."""

    model: Path
    weights: Path | None
    opset: int
    nodes: int
    initializers: int
    dims: Mapping[str, tuple[int, int]]


def export(
    model: StrPath,
    output: StrPath,
    *,
    dims: Mapping[str, DimArgument] | None = None,
    name: str | None = None,
    entry: str | None = None,
    constants: StrPath | None = None,
    freeze: Mapping[str, Any] | None = None,
    precision: str | None = None,
    weights: str | None = None,
) -> Export:
    """Write what packager imports of ``model`` as the ONNX file ``output``; options are those of ``build``.

    Dims without bounds stay open. ``weights`` are ``embedded`` or ``external``, by default external from 2 GiB on: a
    safetensors file beside ``output``. An existing file is replaced only if packager wrote it.

    Raises UsageError for wrong arguments, ModelError for a model that cannot be read, or has operators that ONNX does
    not have.
    """
    require_build_packages()
    options = BuildOptions(
        model, dims=dims, name=name, entry=entry, constants=constants, freeze=freeze, precision=precision
    )
    request = make_build_request(options)
    target = Path(output)
    places = _check_places(request.model, target, weights)
    report("importing the model")
    imported = _import(request, options)
    from packager.emit.file import EMBEDDED_LIMIT, check
    from packager.emit.onnx import write_model

    report("writing the model")
    written = write_model(imported)
    check(written)
    size = sum(array.nbytes for array in written.arrays.values())
    if weights == "embedded" and size > EMBEDDED_LIMIT:
        raise UsageError(
            f"--weights embedded: {size / 2**30:.1f} GiB of weights do not fit into an ONNX file",
            hint="leave it out: they go to a file beside it",
        )
    external = weights == "external" or size > EMBEDDED_LIMIT
    if external and weights is None:
        check_output(places, "weights file")
    _write(written, target, places if external else None)
    return Export(
        model=target,
        weights=places if external else None,
        opset=written.proto.opset_import[0].version,
        nodes=len(written.proto.graph.node),
        initializers=len(written.arrays),
        dims={dim.name: (dim.min, dim.max) for dim in imported.signature.dims},
    )


def _check_places(source: Path, target: Path, weights: str | None) -> Path:
    """Check the outputs before the import, and return where external weights would go. Raises UsageError."""
    if target.suffix != ".onnx":
        raise UsageError(f"{target}: the suffix {target.suffix!r} is not that of an ONNX file", hint="name it .onnx")
    if weights not in (None, *WEIGHTS):
        raise UsageError(f"--weights {weights!r} is unknown", hint=f"valid: {', '.join(WEIGHTS)}")
    if target.exists() and target.samefile(source):
        raise UsageError(f"{target} is the model that is read", hint="give another output")
    place = target.with_suffix(".safetensors")
    check_output(target, "ONNX model")
    if weights == "external":
        check_output(place, "weights file")
    return place


def _import(request: Request, options: BuildOptions) -> ImportedModel:
    """Import with bounds for the dims that have none."""
    try:
        return import_graph(request)
    except UnboundedDimsError as error:
        wanted = {**dict.fromkeys(error.dims, OPEN_BOUNDS), **(options.dims or {})}
    return import_graph(make_build_request(dataclasses.replace(options, dims=wanted)))


def _write(written: WrittenModel, target: Path, weights: Path | None) -> None:
    """Write the files, the model last: if it is there, its weights are. Raises OutputError."""
    from packager.emit.file import with_data, with_external_data, write_weights

    try:
        if weights is None:
            model = with_data(written)
        else:
            model, outside = with_external_data(written, weights.name)
            with replacing(weights) as temporary, temporary.open("wb") as stream:
                write_weights(stream, outside)
        with replacing(target) as temporary:
            temporary.write_bytes(model.SerializeToString(deterministic=True))
    except OSError as error:
        raise OutputError(f"{target}: cannot be written: {error.strerror}") from None
