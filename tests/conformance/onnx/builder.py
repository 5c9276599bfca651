"""A process that builds cases one after the other: reads requests as lines of JSON, answers with lines of JSON."""

from __future__ import annotations

import os
import pickle
import warnings
from pathlib import Path
from typing import Any

import packager.frontends.onnx.load  # noqa: F401  (TVM, before the first request)
from packager.errors import PackagerError, UnboundedDimsError
from packager.pipeline.build import build
from tests.conformance.server import serve

BOUNDS = (1, 8)
EMPTY = "empty"  # the name that grouped cases have for extents of 0, which count as ones that are left open


def main() -> None:
    """Serve until standard input ends."""
    warnings.simplefilter("ignore")
    serve(_build)


def _build(request: dict[str, Any]) -> dict[str, Any]:
    folder = Path(request["folder"])
    os.environ["XDG_CACHE_HOME"] = request["cache"]
    inputs = pickle.loads((folder / "inputs.pickle").read_bytes())
    freeze = {name: inputs[name] for name in request["freeze"]}
    try:
        _build_bundle(folder, request["targets"], inputs, freeze)
    except PackagerError as error:
        first = (error.detail or "").strip().splitlines()
        return {"status": "refused", "message": error.message, "detail": first[0] if first else ""}
    except Exception as error:  # whatever it is, it is a finding
        return {"status": "failed", "message": f"{type(error).__name__}: {error}"[:500]}
    return {"status": "built"}


def _build_bundle(folder: Path, targets: list[str], inputs: dict[str, Any], freeze: dict[str, Any]) -> None:
    """Build; dims that the model leaves open get bounds."""
    options: dict[str, Any] = {"targets": targets, "freeze": freeze, "jobs": 1}
    try:
        build(folder / "model.onnx", folder / "model.so", **options)
    except UnboundedDimsError as error:
        # An extent that is 0 counts as one that is left open.
        empty = {
            f"input {name!r}, axis {axis}"
            for name, value in inputs.items()
            for axis, extent in enumerate(getattr(value, "shape", ()))
            if extent == 0
        }
        dims = {name: 0 if where in empty else BOUNDS for name, where in error.dims.items()}
        build(folder / "model.onnx", folder / "model.so", dims=dims, **options)


if __name__ == "__main__":
    main()
